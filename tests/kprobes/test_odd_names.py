"""Symbols that have `::`, `/` or `+`, as those of C++, Rust and Go may, and names that several modules have."""

from __future__ import annotations

import pytest
from isolation import isolated

from ftrace.core.kstrtox import kstrtoll
from sandbox.symbols.names import names_owner, split_offset, split_owner

NAMES = ("ns::f", "runtime/debug.f", "a+b", "a+4", "a", "(*T).f-fm")
SOURCE = "\n".join(f'define i64 @"{name}"(i64 %n) noinline {{ %r = add i64 %n, 1  ret i64 %r }}' for name in NAMES)


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("vfs_read", ("", "", "vfs_read")),
        ("libz:crc32", ("libz", ":", "crc32")),
        ("ns::f", ("", "", "ns::f")),
        ("libns:ns::f", ("libns", ":", "ns::f")),
        ("*:a::*", ("*", ":", "a::*")),
        (":f", ("", ":", "f")),
    ],
)
def test_a_single_colon_ends_the_name_of_an_owner(text, split):
    assert split_owner(text) == split and names_owner(text) == bool(split[1])


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("a", ("a", 0)),
        ("a+4", ("a+4", 0)),
        ("a+0x4", ("a", 4)),
        ("a+4+1", ("a+4", 1)),
        ("a+b", ("a+b", 0)),
        ("a+b-1", ("a+b", -1)),
        ("none+2", ("none", 2)),
        ("libstdc++-6:f+2", ("libstdc++-6:f", 2)),
        ("libstdc++-6:f", ("libstdc++-6:f", 0)),
    ],
)
def test_the_longest_known_symbol_is_taken(text, split):
    assert split_offset(text, {"a", "a+4", "a+b"}.__contains__, kstrtoll) == split


def test_an_offset_that_is_no_number():
    with pytest.raises(OSError):
        split_offset("none+x", lambda _: False, kstrtoll)


@isolated(timeout=60)
def test_each_is_probed_by_its_name() -> None:
    import fprobe
    import kprobes
    import sandbox
    from ftrace.core.filters.image_functions import find_functions

    module = sandbox.load(SOURCE, name="odd")
    for name in NAMES:
        for written in (name, f"odd:{name}"):
            with fprobe.event(f"p:at {written} n=%di:s64", f"r:back {written} $retval:s64") as events:
                assert module[name](41) == 42
                found = [(record["event"], record.get("n"), record.get("arg1")) for record in events.records()]
                assert found == [("at", 41, None), ("back", None, 42)], written
            with kprobes.attach(written, action=kprobes.Count()) as kprobe:
                module[name](1)
            assert kprobe.hits == 1, written
            assert [each.function.name for each in find_functions(written)] == [name]
        with fprobe.attach(name, action=fprobe.Count()) as probe, fprobe.event(f"f:in {name} n=$arg1") as event:
            module[name](1)
        assert (probe.hits, event.hits) == (1, 1), name
    with fprobe.attach("ns::*", action=fprobe.Count()) as probe:
        module["ns::f"](1)
        assert (probe.functions, probe.hits) == (["ns::f"], 1)


@isolated
def test_a_name_with_a_bracket_is_suggested_as_a_glob_that_matches_it() -> None:
    import fprobe
    import sandbox

    module = sandbox.load('define i64 @"-[T f]"(i64 %n) noinline { ret i64 %n }', name="odd")
    with pytest.raises(OSError, match=r"did you mean (\S+)\?$") as raised:
        fprobe.attach("-[T f]", action=fprobe.Count()).attach()
    suggested = str(raised.value).rpartition("did you mean ")[2][:-1]
    with fprobe.attach(suggested, action=fprobe.Count()) as probe:
        module["-[T f]"](1)
    assert probe.hits == 1


@isolated(timeout=60)
def test_the_files_of_tracefs_have_them_too() -> None:
    import sandbox
    from fprobe.tracefs import tracefs

    module = sandbox.load(SOURCE, name="odd")
    tracefs.write("set_ftrace_filter", "ns::f runtime/debug.f a+b\n")
    shown = [line.split()[0] for line in tracefs.read("set_ftrace_filter").splitlines()]
    assert shown == ["ns::f", "runtime/debug.f", "a+b"]
    tracefs.write("set_ftrace_filter", "ns::f:traceon:3\n")
    assert "ns::f:traceon:count=3" in tracefs.read("set_ftrace_filter")
    tracefs.write("kprobe_events", "p a+b\np runtime/debug.f\np ns::f\n")
    listed = tracefs.read("kprobe_events").splitlines()
    assert listed == [
        "p:kprobes/p_a_b_0 a+b",
        "p:kprobes/p_runtime_debug_f_0 runtime/debug.f",
        "p:kprobes/p_ns__f_0 ns::f",
    ]
    assert module["a+b"](1) == 2


@isolated(timeout=60)
def test_a_function_of_the_program_that_this_project_has_too() -> None:
    """Hazard: the symbols of our own images are in the same table."""
    import fprobe
    import sandbox
    from ftrace.core.runtime import runtime
    from sandbox.symbols.table import symbol_table

    own = next(symbol.name for symbol in runtime().image.symbols if symbol.name.isidentifier())
    module = sandbox.load(f"define i64 @{own}(i64 %n) {{ ret i64 %n }}", name="mine")
    assert [symbol.module for symbol in symbol_table.named(own)] == ["mine"]
    with fprobe.event(f"p:at {own}") as event:
        module[own](1)
    assert event.hits == 1
    assert symbol_table.named(f"fprobe-runtime:{own}")[0].module == "fprobe-runtime"


@isolated(timeout=60)
def test_a_function_of_two_programs_has_the_forms_that_are_unique() -> None:
    import fprobe
    import sandbox

    for name in ("one", "two"):
        sandbox.load("define i64 @shared(i64 %n) { ret i64 %n }", name=name)
    try:
        fprobe.event("p:at shared").attach()
    except OSError as error:
        first, *_, last = str(error.strerror).splitlines()
        assert first == "The symbol is not unique"
        assert last in ("  give one of one:shared, two:shared", "  give one of two:shared, one:shared")
    else:
        raise AssertionError("it is not unique")
    with fprobe.event("p:at two:shared"):
        pass


def test_an_unknown_symbol_of_an_event_is_suggested():
    import ctypes

    import fprobe

    ctypes.CDLL("libz.so.1")
    with pytest.raises(OSError, match=r"\^\n  no symbol 'deflat' in \[libz.so.1\]; did you mean libz:deflate"):
        fprobe.event("p:at libz:deflat").attach()
