"""Programs whose functions are hard to name, or are chosen when the program starts."""

import re
import shutil
import subprocess
import sys

import pytest
from command import COMMAND

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="no g++")

SOURCE = """
#include <stdlib.h>
#include <stddef.h>
#define APART __attribute__((noinline, noipa))
struct Item { int x; APART void *operator new(size_t size) { return malloc(size); } };
APART unsigned long long operator""_km(unsigned long long n) { return n; }
namespace { APART int hidden(int n) { return n; } }
extern "C" {
static APART int chosen(int n) { return n; }
static int (*resolve())(int) { return chosen; }
int indirect(int) __attribute__((ifunc("resolve")));
}
int main() { new Item, new Item; 5_km; return hidden(1) + indirect(2) + indirect(3) - 6; }
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    made = {}

    def compiled(*flags):
        if flags not in made:
            made[flags] = tmp_path_factory.mktemp("odd") / "odd"
            command = ["g++", "-xc++", "-g", "-O1", "-w", *flags, "-", "-o", made[flags]]
            subprocess.run(command, input=SOURCE, text=True, check=True)
        return made[flags]

    return compiled


@pytest.mark.parametrize("flags", [(), ("-no-pie",), ("-rdynamic",)])
def test_a_program_with_functions_that_are_chosen_at_its_start(launch, program, flags):
    done = launch("--stat", "odd:*", words=[program(*flags)])
    assert done.returncode == 0
    hits = {name: row["hits"] for name, row in done.functions().items()}
    assert hits.items() >= {"chosen": 2, "Item::operator new": 2, "main": 1}.items()
    done = launch("--stat", "odd:indirect", words=[program(*flags)])
    assert {name: row["hits"] for name, row in done.functions().items()} == {"indirect": 2}


@pytest.mark.parametrize(
    ("kind", "wrong", "suggested"),
    [
        ("f", "odd:Item::operator new", "odd:Item::operator?new"),
        ("f", "odd:(anonymous namespace)::hidden", "odd:(anonymous?namespace)::hidden"),
        ("p", "odd:Item::operator new", "odd:Item::operator?new"),
    ],
)
def test_what_is_suggested_for_a_name_with_a_space_can_be_given(launch, program, kind, wrong, suggested):
    done = launch("-e", f"{kind}:x {wrong}", words=[program()], as_json=False)
    assert done.returncode == 1
    assert re.search(rf"did you mean {re.escape(suggested)}(?: or |\?$)", done.err, re.MULTILINE), done.err
    done = launch("-e", f"{kind}:x {suggested}", words=[program()], as_json=False)
    assert re.search(r": x: \(", done.err), done.err


ODD = {
    "f1": "!odd", "f2": "odd%return", "f3": "odd:12", "f4": "12odd", "f5": "odd*[x]?\\", "f6": "gr\xf6n",
    "f7": "odd+0x10", "f8": "odd space", "f9": "odd.c:12", "f10": "lib:fn", "f11": "l" * 300, "f12": "o\udc80d",
}  # fmt: skip


@pytest.fixture(scope="module")
def oddly_named(tmp_path_factory):
    """A program that calls three times each function whose name is in ODD."""
    folder = tmp_path_factory.mktemp("odd")
    functions = "".join(f"APART int {name}(int n) {{ return n + {at}; }}\n" for at, name in enumerate(ODD))
    calls = "".join(f"{name}(n);" for name in ODD)
    main = f"int main() {{ for (int n = 0; n < 3; n++) {{ {calls} }} }}"
    source = f"#define APART __attribute__((noinline, noipa))\n{functions}{main}"
    subprocess.run(["gcc", "-xc", "-w", "-", "-o", folder / "odd"], input=source, text=True, check=True)
    renamed = [word for name, odd in ODD.items() for word in ("--redefine-sym", f"{name}={odd}")]
    subprocess.run(["objcopy", *renamed, folder / "odd"], check=True)
    return folder / "odd"


def test_every_name_that_is_shown_is_a_pattern(launch, oddly_named):
    rows = launch("--stat", "odd:*", words=[oddly_named]).functions()
    shown = {name for name, row in rows.items() if row["hits"] == 3}
    assert shown == {*ODD.values()} - {ODD["f12"]} | {r"o\x80d"}
    options = [word for name in shown for word in ("--stat", f"odd:{name}")]
    assert launch(*options, words=[oddly_named]).functions().keys() == shown


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        ("!odd", "!odd"), ("odd?return", "odd%return"), ("odd?12", "odd:12"), ("odd?space+0x4", "odd space+0x4"),
        (r"o\x80d", r"o\x80d"), ("odd+0x10+0x4", "odd+0x10+0x4"), ("odd*[x]?\\", "odd*[x]?\\"),
    ],
)  # fmt: skip
def test_every_name_can_be_given_in_a_kprobe_event(launch, oddly_named, place, shown):
    """Where a sign means something else in a line, `?` is in its place."""
    done = launch("-e", f"p:x odd:{place}", words=[oddly_named], as_json=False)
    assert done.returncode == 0 and done.err.count(f"x: ({shown}") == 3, done.err


def test_a_line_that_cannot_have_the_name_says_what_can(launch, oddly_named):
    done = launch("-e", "r:x odd:odd?return", words=[oddly_named], as_json=False)
    assert done.returncode == 1 and "a line f can, such as 'f odd:odd?return%return'" in done.err
    done = launch("-e", "f:x odd:odd?return%return", words=[oddly_named], as_json=False)
    assert done.err.count("<- odd%return [odd])") == 3


def test_a_pattern_does_not_leave_out_functions(launch, oddly_named):
    """`!FUNCTION` was taken for FUNCTION."""
    for option in ("--stat", "--trace", "--stacks"):
        done = launch(option, "*", option, "!main", words=[oddly_named], as_json=False)
        assert done.returncode == 2 and "it cannot leave functions out here" in done.err


@pytest.mark.parametrize("name", ["o[d]d", "o:d", "o d"])
def test_programs_with_signs_of_patterns_in_their_names(launch, oddly_named, tmp_path, name):
    program = shutil.copy(oddly_named, tmp_path / name)
    pattern = f"{name.replace(':', '?')}:12odd"
    assert launch("--stat", pattern, words=[program]).functions()["12odd"]["hits"] == 3
    done = launch("--stat", f"{name}:12odd", words=[program], as_json=False)
    assert (done.returncode == 0) == (":" not in name) or f"did you mean {pattern}?" in done.err


def test_operators_in_kprobe_events(launch, tmp_path):
    source = """
    struct M { int a; __attribute__((noinline, noipa)) int operator()(int q) { return q + a; }
        __attribute__((noinline, noipa)) int operator+(int q) const { return q - a; } };
    int main() { M m{3}; return m(2) + (m + 1) - 3; }
    """
    subprocess.run(["g++", "-xc++", "-g", "-O1", "-", "-o", tmp_path / "m"], input=source, text=True, check=True)
    for name in ("M::operator()", "M::operator+"):
        done = launch("-e", f"p:x {name} q=q", words=[tmp_path / "m"], as_json=False)
        assert done.returncode == 0 and f"x: ({name}" in done.err, done.err
    done = launch("--trace", "M::operator()", words=[tmp_path / "m"], as_json=False)
    assert re.search(r"M::operator\(\) \[m\]\(this=0x\w+, q=2\) = 5;", done.err), done.err


TRACER = """
import ctypes, os, signal, sys
ptrace = ctypes.CDLL(None).ptrace
ptrace.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
child = os.fork()
if not child:
    ptrace(0, 0, None, None)  # PTRACE_TRACEME
    os.kill(os.getpid(), signal.SIGSTOP)
    os.execv(sys.argv[1], sys.argv[1:])
os.waitpid(child, 0)
if ptrace(0x4200, child, None, 2 | 4 | 8):  # PTRACE_SETOPTIONS: forks, vforks, clones
    sys.exit(99)
ptrace(7, child, None, None)  # PTRACE_CONT
while True:
    pid, status = os.waitpid(-1, 0x4000_0000)
    if os.WIFSTOPPED(status):
        number = os.WSTOPSIG(status)
        ptrace(7, pid, None, 0 if number in (signal.SIGSTOP, signal.SIGTRAP) else number)
    elif pid == child:
        sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_launcher_whose_children_are_traced_says_so(program):
    command = [*COMMAND, "run", "--stat", "odd:main", program()]
    done = subprocess.run([sys.executable, "-c", TRACER, *command], capture_output=True, text=True, timeout=60)
    if done.returncode == 99:
        pytest.skip("no ptrace here")
    assert done.returncode == 1
    assert re.search(
        r"process \d+ \(a debugger or strace\) traces what fprobe starts, .* strace without -f", done.stderr
    )
