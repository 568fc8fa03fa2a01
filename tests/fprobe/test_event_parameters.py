"""Named parameters of functions whose arguments are not all in integer registers."""

from __future__ import annotations

import errno
import shutil

import pytest

import sandbox
from fprobe.events.lines import missing_argument
from fprobe.prototypes.prototypes import prototype as shipped_prototype
from ftrace.tracing.probe_args.arguments import parse_arguments
from ftrace.tracing.probe_args.fetch import EntryArgument, ReturnValue
from ftrace.tracing.probe_args.scope import Scope
from sandbox.images.btf import of_signature, prototype

C = """
struct big { long a, b, c; };
struct small { int a; };
long mixed(double x, int n, float y, char *name) { return n + (long)x + (long)y + (long)name; }
struct big made(int seed) { struct big b = {seed, 1, 2}; return b; }
struct one { double a; };
struct mixed_pair { double a; int b; };
struct nothing_in_it {};
union either { long l; double d; };
double real(int a) { return a; }
float short_real(int a) { return a; }
long double long_real(int a) { return a; }
double _Complex turned(int a) { return a; }
struct one wrapped(int a) { return (struct one){a}; }
struct mixed_pair paired(int a) { return (struct mixed_pair){a, 1}; }
struct nothing_in_it emptied(int a) { struct nothing_in_it s; return s; }
union either united(int a) { return (union either){a}; }
__int128 wide(int a) { return a; }
_Bool flag(int a) { return a; }
char *text(int a) { return 0; }
void idle(int a) { }
long given(int first, struct big b, int after) { return first + b.a + after; }
long slight(int first, struct small s, int after) { return first + s.a + after; }
long seven(int a, int b, int c, int d, int e, int f, int g) { return a + b + c + d + e + f + g; }
long none(void) { return 0; }
long any(int a, ...) { return a; }
long spilled(double x, int a, int b, int c, int d, int e, int f, int g) { return x + a + b + c + d + e + f + g; }
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("the program is in C")
    path = tmp_path_factory.mktemp("c") / "mixed.c"
    path.write_text(C)
    module = sandbox.load(path)
    yield module
    module.unload()


def source(function, name):
    scope = Scope(at_entry=True, find_prototype=lambda: prototype(function))
    return parse_arguments([name], scope)[0].fetch.source


@pytest.mark.parametrize(
    "function, name, index",
    [
        ("mixed", "n", 0), ("mixed", "name", 1), ("made", "seed", 1), ("given", "first", 0), ("given", "after", 1),
        ("slight", "first", 0), ("slight", "after", 2), ("spilled", "g", 6), ("seven", "f", 5), ("seven", "g", 6),
    ],
)  # fmt: skip
def test_parameters_are_where_the_calling_convention_puts_them(program, function, name, index):
    assert source(function, name) == EntryArgument(index)


@pytest.mark.parametrize(
    "function, numbers",
    [
        ("mixed", {1, 2}), ("made", {1, 2}), ("given", {1, 2, 7, 8, 9}), ("slight", {1, 2, 3}),
        ("spilled", set(range(1, 8))), ("none", set()), ("any", set(range(1, 13))), ("nothing", set(range(1, 13))),
    ],
)  # fmt: skip
def test_numbers_of_arguments_that_a_function_has(program, function, numbers):
    found = {number for number in range(1, 13) if not missing_argument(function, [f"x=$arg{number}:u8", "a"])}
    assert found == numbers
    assert missing_argument("mixed", ["$arg3"]) == "it has no arg3: its parameters are x, n, y, name"
    assert missing_argument("none", ["$arg1"]) == "it has no arg1: its parameters are none"


NO_RESULT = ("real", "short_real", "long_real", "turned", "wrapped", "emptied", "idle")


@pytest.mark.parametrize("function", [*NO_RESULT, "paired", "united", "wide", "flag", "text", "made", "mixed"])
def test_a_result_that_is_not_in_ax_is_refused(program, function):
    missing = missing_argument(function, ["retval=$retval:u64"])
    reason = "it returns nothing" if function == "idle" else "its result is not in a general register"
    assert missing == (f"it has no retval: {reason}" if function in NO_RESULT else "")
    scope = Scope(at_return=True, find_prototype=lambda: prototype(function))
    if not missing:
        assert parse_arguments(["$retval"], scope)[0].fetch.source == ReturnValue()
        return
    with pytest.raises(OSError) as raised:
        parse_arguments(["$retval"], scope)
    assert raised.value.errno == errno.ENOENT


@pytest.mark.parametrize(
    "function, name", [("mixed", "x"), ("mixed", "y"), ("given", "b"), ("slight", "s"), ("nothing", "x")]
)
def test_parameters_that_are_in_no_known_register_are_refused(program, function, name):
    with pytest.raises(OSError) as raised:
        source(function, name)
    assert raised.value.errno == errno.ENOENT


def test_a_parameter_that_a_header_has_as_text_may_be_recorded_as_text():
    """Without debug information, as of Debian's libc without libc6-dbg."""
    known = of_signature(shipped_prototype("libc.so.6", ["open64"]).signature)
    scope = Scope(at_entry=True, find_prototype=lambda: known)
    assert parse_arguments(["file:string"], scope)[0].fetch.reads_memory
    with pytest.raises(OSError, match="does not fit for string"):
        parse_arguments(["oflag:string"], scope)


CXX = """
struct Owned { int value; ~Owned() {} };
union Either { int whole; float part; };
struct Flags { unsigned low : 3, high : 5; };
struct Wide { long a, b, c; };
extern "C" {
long owned(Owned o, int after) { return o.value + after; }
Owned built(int seed) { return Owned{seed}; }
long either(Either e, int after) { return e.whole + after; }
long flags(Flags f, _Complex double c, int after) { return f.low + after + (long)__real__ c; }
long spread(int a, int b, int c, int d, int e, int f, Wide w, int first, long double x, int second) {
    return a + b + c + d + e + f + w.a + first + (long)x + second;
}
}
template <class... Each> long packed(Each... each) { return (each + ... + 0); }
template long packed(int, double, long);
"""


@pytest.fixture(scope="module")
def cxx_program(tmp_path_factory):
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        pytest.skip("the program is in C++")
    path = tmp_path_factory.mktemp("cxx") / "classes.cpp"
    path.write_text(CXX)
    module = sandbox.load(path, cflags=["-std=c++17"])
    yield module
    module.unload()


@pytest.mark.parametrize(
    "function, name, index",
    [
        ("owned", "after", 1), ("owned", "o", 0), ("built", "seed", 1), ("either", "after", 1), ("flags", "after", 1),
        ("spread", "f", 5), ("spread", "first", 6 + 3), ("spread", "second", 6 + 6),
    ],
)  # fmt: skip
def test_parameters_of_cxx_are_where_the_calling_convention_puts_them(cxx_program, function, name, index):
    assert source(function, name) == EntryArgument(index)


def test_the_fields_of_an_object_that_is_passed_by_reference(cxx_program):
    scope = Scope(at_entry=True, find_prototype=lambda: prototype("owned"))
    fetch = parse_arguments(["o->value"], scope)[0].fetch
    assert fetch.source == EntryArgument(0) and [each.offset for each in fetch.dereferences] == [0]


@pytest.mark.parametrize("name", ["e", "f", "c", "w", "x"])
def test_values_of_cxx_that_are_no_integers_are_refused(cxx_program, name):
    function = {"e": "either", "f": "flags", "c": "flags"}.get(name, "spread")
    with pytest.raises(OSError):
        source(function, name)


def test_the_parameters_of_a_parameter_pack_are_counted(cxx_program):
    found = prototype("_Z6packedIJidlEElDpT_")
    assert found is not None and found.numbers == (0, None, 1)
