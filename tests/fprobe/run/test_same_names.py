"""Hazard: several functions have one name, and the report has several rows that nobody can tell apart."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter

import pytest
from attaching import fprobe, has_interpreter
from sampled import in_stress

from fprobe.run.launcher.names import Named, Names
from sandbox.images.numba.mangling import argument_types

TYPES = {
    "_ZN4mine1fB2v1B4tag1E5ArrayIdLi1E1C7mutable7alignedEx": "array(float64, 1d, C), int64",
    "_ZN4mine1fEB2v15ArrayIfLi2E1F7mutable9unalignedE": "array(float32, 2d, F, mutable, unaligned)",
    "_ZN4mine1fB2v1E8UniTupleIxLi2EE": "UniTuple(int64, 2)",
    "_ZN4mine1fB2v1E24omitted_28default_3d3_29": "omitted(default=3)",
    "_ZN4mine1fB2v1EN3pkg4kindEDhv": "pkg.kind, float16, none",
    "_ZN4mine1fB2v1E": "",
    "_ZN4mine1fB2v1EQ": "",
    "_ZN4mine1fB2v1E5ArrayIdLi1": "",
    "__ufunc__._ZN4mine1fB2v1Edd": "float64, float64",
    "plain": "",
}


@pytest.mark.parametrize("symbol", TYPES)
def test_types_in_symbols_of_numba(symbol):
    assert argument_types(symbol) == TYPES[symbol]


def test_a_name_is_extended_only_as_far_as_it_has_to_be():
    names = Names()
    names.take_functions([(1, "f", "numba", "int64"), (2, "f", "numba", "float64"), (3, "g", "jit", "")])
    assert [str(names.function(address)) for address in (1, 2, 3)] == [
        "f(int64) [numba]",
        "f(float64) [numba]",
        "g [jit]",
    ]
    names.take_functions([(4, "g", "jit", ""), (3, "g", "jit", "")])
    assert [str(names.function(address)) for address in (3, 4)] == ["g at 0x3 [jit]", "g at 0x4 [jit]"]
    child = Names()
    child.inherit(names)
    assert child.function(4) == Named("g", "jit", "", "0x4", "g")


@pytest.mark.stress
def test_specialisations_of_a_numba_function(launch):
    pytest.importorskip("numba")
    source = """
    import numba
    @numba.njit
    def cube(n): return n * n * n
    print(cube(2), cube(2.0), cube(3.0))
    """
    done = launch("--stat", "numba:__main__.cube", source=source)
    rows = {row["types"]: row["hits"] for row in done.report["processes"][0]["functions"]}
    assert rows == {"int64": 1, "float64": 2}


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_static_functions_of_one_name(launch, tmp_path):
    for number in (1, 2):
        text = f"static __attribute__((noipa)) int step(int n) {{ return n + {number}; }}\n"
        (tmp_path / f"part{number}.c").write_text(f"{text}int part{number}(int n) {{ return step(n) + 1; }}\n")
    library = tmp_path / "libparts.so"
    subprocess.run(["cc", "-shared", "-fPIC", "part1.c", "part2.c", "-o", library], cwd=tmp_path, check=True)
    source = f"import ctypes; parts = ctypes.CDLL({str(library)!r}); parts.part1(1); parts.part2(1); parts.part2(1)"
    done = launch("--stat", "libparts:*", source=source)
    rows = done.report["processes"][0]["functions"]
    steps = {row["place"]: row["hits"] for row in rows if row["name"] == "step"}
    assert sorted(steps.values()) == [1, 2] and all(place.startswith("+0x") for place in steps)
    assert all("place" not in row for row in rows if row["name"] != "step")


@pytest.fixture
def twins(tmp_path):
    """The folder of two libraries of one name, whose function `work` is called 3 times and 4 times by `source`."""
    for folder, added in (("one", 1), ("two", 2)):
        (tmp_path / folder).mkdir()
        source = f"int __attribute__((noipa)) work(int amount) {{ return amount + {added}; }}\n"
        words = ["cc", "-g", "-O1", "-shared", "-fPIC", "-x", "c", "-", "-o", str(tmp_path / folder / "_core.so")]
        subprocess.run(words, input=source, text=True, check=True)
    return tmp_path


CALLS = """
import ctypes
for folder, calls in (("one", 3), ("two", 4)):
    work = ctypes.CDLL(f"{FOLDER}/{folder}/_core.so").work
    for amount in range(calls):
        work(amount)
"""


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_libraries_of_one_name(launch, twins):
    source = CALLS.replace("{FOLDER}", str(twins))
    words = ["--stat", "_core:work", "--trace", "_core:work", "--hist", "_core:work", "--of", "amount"]
    (process,) = launch(*words, "-e", "f:mine _core:work amount", source=source).report["processes"]
    assert {(row["module"], row["hits"]) for row in process["functions"]} == {("one/_core", 3), ("two/_core", 4)}
    calls = [(call["module"], call["arguments"], call["result"]) for call in process["calls"]]
    assert calls == [
        (f"{folder}/_core", {"amount": amount}, amount + added)
        for folder, added in (("one", 1), ("two", 2))
        for amount in range(2 + added)
    ]
    assert {(row["module"], row["hits"]) for row in process["values"]} == {("one/_core", 3), ("two/_core", 4)}
    assert [each["fields"]["amount"] for each in process["probe_events"]] == [0, 1, 2, 0, 1, 2, 3]


@pytest.mark.stress
@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
@pytest.mark.parametrize("owner", [in_stress("two/_core"), in_stress("{folder}/two/_core.so"), "{folder}/t?o/_core"])
def test_a_library_by_its_path(launch, twins, owner):
    owner = owner.format(folder=twins)
    events = ["-e", "p:short two/_core:work amount", "-e", f"p:whole {twins}/two/_core.so:work amount"]
    done = launch("--stat", f"{owner}:work", *events, source=CALLS.replace("{FOLDER}", str(twins)))
    (process,) = done.report["processes"]
    assert [row["hits"] for row in process["functions"]] == [4]
    assert Counter(each["event"] for each in process["probe_events"]) == {"short": 4, "whole": 4}


@pytest.mark.stress
@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_a_kprobe_event_says_which_of_two_it_probes(launch, twins):
    done = launch("-e", "p:mine _core:work", source=CALLS.replace("{FOLDER}", str(twins)))
    (process,) = done.report["processes"]
    assert len(process["probe_events"]) == 3
    assert "work [_core.so], loaded later, is written two/_core:work" in "".join(process["remarks"])


LOADED = """
__attribute__((noinline, noipa)) int inner(int x) { return x + 1; }
__attribute__((noinline, noipa)) int outer(int x) { return inner(x) * 2; }
"""
LATER = """
__attribute__((noinline, noipa)) double else_1(double d, double e) { return d * e * 3 + 1; }
__attribute__((noinline, noipa)) int else_2(int y, const char *s) { return y - s[0]; }
__attribute__((noinline, noipa)) int else_3(int x) { return x + else_1(1, 2) + else_2(x, "abc"); }
"""
REPLACES = """
import ctypes, os, sys
loaded, later = sys.argv[1:]
library = ctypes.CDLL(loaded)
os.rename(later, loaded) if later else os.unlink(loaded)
for number in range(3): library.outer(number)
"""


@pytest.fixture
def built(tmp_path):
    def build(name, source):
        command = ["gcc", "-xc", "-g", "-O1", "-shared", "-fPIC", "-", "-o", tmp_path / name]
        subprocess.run(command, input=source, text=True, check=True)
        return str(tmp_path / name)

    return build


@pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc")
@pytest.mark.parametrize("later", ["liblater.so", ""])
def test_names_are_those_of_the_library_that_was_loaded(launch, built, later):
    """They were read from the file that has replaced it: other functions, as callers and in records of events."""
    words = [built("libkept.so", LOADED), later and built(later, LATER)]
    rows = launch("--stat", "libkept:inner", "--by", "caller", source=REPLACES, words=words).functions().values()
    assert [row["caller"].partition("+")[0] for row in rows] == ["outer"]
    for options in (("--stacks", "libkept:inner"), ("-e", "f:x libkept:inner"), ("--trace", "libkept:*er")):
        words = [built("libkept.so", LOADED), later and built(later, LATER)]
        done = launch(*options, source=REPLACES, words=words, as_json=False)
        assert "inner" in done.err and "else_" not in done.err and "dtors" not in done.err, done.err
        assert "(y=" not in done.err and "(d=" not in done.err


@pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc")
def test_a_library_in_a_memory_file_has_its_name(launch, built):
    source = """
import ctypes, os, sys
number = os.memfd_create("libmem.so")
os.write(number, open(sys.argv[1], "rb").read())
library = ctypes.CDLL(f"/proc/self/fd/{number}")
for number in range(3): library.outer(number)
"""
    done = launch("--stat", "libmem:*er", "--by", "caller", source=source, words=[built("libx.so", LOADED)])
    rows = {(row["name"], row["module"], row["hits"]) for row in done.functions().values()}
    assert rows == {("inner", "libmem", 3), ("outer", "libmem", 3)}


@pytest.mark.skipif(not (shutil.which("gcc") and has_interpreter()), reason="no gcc, or no interpreter to bring")
@pytest.mark.parametrize("is_replaced", [True, False])
def test_a_program_that_was_built_anew_while_it_runs(tmp_path, is_replaced):
    """Its functions were offsets only, called `app (deleted)+0x1139`."""
    source = """
    #include <unistd.h>
    __attribute__((noinline, noipa)) static int hidden(int n) { return n + 1; }
    __attribute__((noinline, noipa)) int work(int n) { return hidden(n) * 2; }
    int main(void) { for (int n = 0;; n++) { work(n); usleep(5000); } }
    """
    command = ["gcc", "-xc", "-g", "-O1", "-", "-o", tmp_path / "app"]
    subprocess.run(command, input=source, text=True, check=True)
    with subprocess.Popen([tmp_path / "app"]) as running:
        try:
            (tmp_path / "app").unlink()
            if is_replaced:
                subprocess.run(command, input=f"int zero(void) {{ return 0; }} {source}", text=True, check=True)
            stat = fprobe("stat", "-p", running.pid, "*i*", "work", "--by", "caller", "--duration", "0.2")
            trace = fprobe("trace", "-p", running.pid, "hidden", "--duration", "0.2")
        finally:
            running.kill()
    assert "hidden [app] <- work+0x" in stat.stdout and "work [app] <- main+0x" in stat.stdout, stat
    assert "hidden [app](n=" in trace.stdout, trace
