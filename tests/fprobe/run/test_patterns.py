"""Patterns that are matched again as a program loads more code."""

from __future__ import annotations

import ctypes
import shutil
import subprocess

import pytest
from built_library import build_library, needs_compilers
from sampled import in_stress, sampled

from fprobe.run.tracee.patterns import Pattern, new_functions
from sandbox.images.library_images import LibraryImage

ctypes.CDLL("libz.so.1")


class _Gone(LibraryImage):
    asked = 0

    @property
    def is_live(self):
        _Gone.asked += 1
        return False


def test_functions_that_are_known_are_not_new():
    functions = Pattern("libz:*").found()
    assert list(new_functions(functions, {each.function.address: each for each in functions})) == []


def test_what_has_been_unloaded_is_looked_up_once_for_all_of_its_functions():
    """Looking it up lists the libraries of the process: a hundred thousand times that is minutes."""
    functions = Pattern("libz:*").found()
    before = _Gone(functions[0].image.library)
    known = {each.function.address: each._replace(image=before) for each in functions}
    assert list(new_functions(functions, known)) == functions
    assert _Gone.asked == 1


def test_code_that_a_jit_compiler_makes_while_the_program_runs_is_probed(launch):
    source = """
    import ctypes
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(codemodel="small", reloc="pic")
    module = binding.parse_assembly("define i64 @triple(i64 %a) { %r = mul i64 %a, 3  ret i64 %r }")
    engine = binding.create_mcjit_compiler(module, machine)
    triple = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(engine.get_function_address("triple"))
    print(triple(14), triple(2))
    """
    done = launch("--stat", "jit:triple", source=source)
    assert (done.out, done.functions()["triple"]["hits"]) == ("42 6\n", 2)


# -- callers


CALLS = """
import ctypes, os, sys, _{module}
library = ctypes.CDLL({path!r})
library.asks.restype = ctypes.c_void_p
library.asks()
{end}
"""


@pytest.fixture
def asking(tmp_path):
    """A library without symbols that calls malloc."""
    (tmp_path / "asking.c").write_text("#include <stdlib.h>\nvoid *asks(void) { return (char *)malloc(77) + 1; }\n")
    library = str(tmp_path / "libasking.so")
    subprocess.run(["cc", "-s", "-shared", "-fPIC", "-O1", tmp_path / "asking.c", "-o", library], check=True)
    return library


@pytest.mark.stress
@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
@pytest.mark.parametrize("end", sampled(["", "os._exit(0)", "os.kill(os.getpid(), 9)"], 1))
def test_a_caller_in_a_library_that_is_loaded_later_and_has_no_pattern(launch, asking, end):
    done = launch("--stat", "libc:malloc", "--by", "caller", source=CALLS.format(module="bz2", path=asking, end=end))
    (process,) = done.report["processes"]
    callers = {row["caller"] for row in process["functions"]}
    assert any(caller.startswith("asks+0x") and caller.endswith(" [libasking]") for caller in callers)
    assert not [caller for caller in callers if caller.startswith("0x")]


@pytest.mark.stress
@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_callers_in_recorded_calls(launch, asking):
    done = launch("--trace", "libc:malloc", source=CALLS.format(module="bz2", path=asking, end=""))
    callers = {call["caller"] for call in done.report["processes"][0]["calls"]}
    assert not [caller for caller in callers if caller.startswith("0x")]


JUMPING = """
#define APART __attribute__((noinline, noclone))
int last(int n);
APART int middle(int n) { return last(n - 1); }
APART int last(int n) { return n > 0 ? middle(n) : n; }
int outer(int n) { return middle(n) + 1; }
"""


@pytest.fixture(scope="module")
def jumping(tmp_path_factory):
    """A library whose function `middle` ends with a jump to `last`, and that one with a jump to `middle`."""
    library = tmp_path_factory.mktemp("jumping") / "libjumping.so"
    build_library(library, JUMPING, "-foptimize-sibling-calls")
    return library


@pytest.mark.stress
@needs_compilers
@pytest.mark.parametrize(
    "options", [["--stat", "libjumping:*", "--by", "caller"], in_stress(["--trace", "libjumping:*"])]
)
def test_a_function_that_was_jumped_to_has_its_true_caller(launch, jumping, options):
    source = f"import ctypes; library = ctypes.CDLL({str(jumping)!r}); [library.outer(3) for _ in range(5)]"
    (process,) = launch(*options, source=source).report["processes"]
    rows = [row for row in process["functions"] + process.get("calls", []) if row.get("caller")]
    found = {(row.get("name") or row["function"], row["caller"].split("+")[0]) for row in rows}
    assert {("middle", "outer"), ("last", "outer")} <= found and not [
        pair for pair in found if pair[1].startswith("0x")
    ]


COMPILED = r"""
import ctypes
from llvmlite import binding
binding.initialize_native_target(); binding.initialize_native_asmprinter()
text = "declare double @erf(double)\n"
text += "define double @twice(double %x) { %e = call double @erf(double %x) %r = fadd double %e, %e ret double %r }"
engine = binding.create_mcjit_compiler(
    binding.parse_assembly(text), binding.Target.from_default_triple().create_target_machine()
)
engine.finalize_object()
assert ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(engine.get_function_address("twice"))(0.0) == 0.0
"""


@pytest.mark.stress
def test_a_caller_in_code_of_a_jit_compiler(launch):
    options = ("--stat", "libm:erf", "--stacks", "libm:erf", "--by", "caller")
    (process,) = launch(*options, source=COMPILED).report["processes"]
    (row,) = [row for row in process["functions"] if row["caller"].startswith("twice+0x")]
    assert row["hits"] == 1 and row["caller"].endswith(" [jit]")
    assert any("twice [jit]" in stack["frames"] for stack in process["stacks"])
