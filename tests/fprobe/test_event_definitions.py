"""Probe events on a program: where they can be, several probes of one event, enabling, modules that come and go."""

from __future__ import annotations

import errno
import os

import pytest
from isolation import isolated

import sandbox
from fprobe.tracefs import tracefs
from ftrace.tracing.events import dynevent
from ftrace.tracing.events.registry import event_registry

IR = """
define i32 @add(i32 %first, i32 %second) { %sum = add i32 %first, %second ret i32 %sum }
define i64 @twice(i64 %value) { %sum = add i64 %value, %value ret i64 %sum }
define void @nothing() { ret void }
define void @untold(i32 %0) { ret void }
"""


@pytest.fixture
def program():
    module = sandbox.load(IR, name="prog")
    yield module
    for event in event_registry.events():
        event.set_enabled(False)
    dynevent.release_all()
    tracefs.write("error_log", "")
    if module.state is not sandbox.loading.module.ModuleState.GONE:
        module.unload()


def define(line, file="dynamic_events"):
    tracefs.write(file, line + "\n", append=True)


def number(line, file="dynamic_events"):
    with pytest.raises(OSError) as raised:
        define(line, file)
    return raised.value.errno


def listed():
    return tracefs.read("dynamic_events").splitlines()


def hits():
    return {line.split()[0]: int(line.split()[1]) for line in tracefs.read("kprobe_profile").splitlines()}


def test_pe1_1_pe1_11_each_type_of_line_and_its_file(program):
    for line in ("p:a add", "r:b add $retval", "f:c add", "f:d add $retval", "t:e sched_switch", "s:g int x"):
        define(line)
    assert listed() == [
        "p:kprobes/a add", "r10:kprobes/b add arg1=$retval", "f:fprobes/c add", "f:fprobes/d add%return arg1=$retval",
        "t:tracepoints/e sched_switch", "s:synthetic/g\tint x",
    ]  # fmt: skip
    assert tracefs.read("kprobe_events").splitlines() == listed()[:2]
    assert tracefs.read("events/enable") == "0\n"
    tracefs.write("kprobe_events", "")
    assert listed() == [
        "f:fprobes/c add", "f:fprobes/d add%return arg1=$retval", "t:tracepoints/e sched_switch", "s:synthetic/g\tint x",
    ]  # fmt: skip
    for line in ("f:x add", "s:x int a", "t:x y", "p", "x add", "p /bin/true:0x10", "!p:x"):
        assert number(line, "kprobe_events") == errno.EINVAL
    assert number("e:x fprobes.c") == errno.EOPNOTSUPP
    assert "event_probe: error: " in tracefs.read("error_log")


def test_pe2_2_pe3_4_pe7_3_what_is_ignored_and_generated(program):
    for line in ("pfoo:ev add", "r3foo:", "f twice", "f tw*e", "f twice%return", "p add+0x5"):
        if line.endswith(":"):
            assert number("r3foo:ev add") == errno.EINVAL
            continue
        define(line)
    define("rfoo:rv add")
    define("ffoo:fv add")
    define("p:prog/ prog:add")
    assert listed() == [
        "p:kprobes/ev add", "f:fprobes/twice__entry twice", "f:fprobes/tw_e__entry tw*e", "f:fprobes/twice__exit twice%return",
        "p:kprobes/p_add_5 add+5", "r10:kprobes/rv add", "f:fprobes/fv add", "p:prog/p_prog_add_0 prog:add",
    ]  # fmt: skip


def test_pe7_1_pe7_4_a_listing_defines_the_same_again(program):
    for line in ("p:a add first b=%si:s32", "r5:b add $retval first", "f:c add $arg*", "f7:d add%return x=$arg2"):
        define(line)
    before = tracefs.read("dynamic_events")
    assert "r5:kprobes/b add arg1=$retval first=first\n" in before and "f7:fprobes/d add%return x=$arg2\n" in before
    tracefs.write("dynamic_events", before)
    assert tracefs.read("dynamic_events") == before


def test_pe4_12_a_program_in_ir_gives_its_parameters_names_and_types(program):
    define("p:a add $arg*")
    define("r:b twice $retval value")
    assert "field:s32 first;\toffset:16;\tsize:4;\tsigned:1;" in tracefs.read("events/kprobes/a/format")
    assert "field:s64 arg1;\toffset:24;\tsize:8;\tsigned:1;" in tracefs.read("events/kprobes/b/format")
    assert number("r:c nothing $retval") == errno.ENOENT
    assert number("p:c nothing $arg*") == errno.EINVAL
    assert number("p:c untold x") == errno.ENOENT
    define("p:d untold $arg1")
    assert listed()[-1] == "p:kprobes/d untold arg1=$arg1"


def test_pe4_5_pe4_7_arguments_at_an_address_are_registers_and_memory(program):
    address = program.symbol("add").address
    define(f"p:a {address:#x} %di")
    assert listed() == [f"p:kprobes/a 0x{address:016x} arg1=%di"]
    for argument in ("$arg1", "first", "$retval"):
        assert number(f"r:b {address:#x} {argument}") == errno.EINVAL
    assert number(f"r:b {address + 5:#x}") == errno.EINVAL
    define("p:far 12345")  # in no symbol: accepted, and never hit
    tracefs.write("events/kprobes/enable", "1")
    program["add"](1, 2)
    assert hits() == {"a": 1, "far": 0}


def test_pe5_1_names_that_several_functions_bear(program):
    other = sandbox.load("define void @add() { ret void }", name="other")
    assert number("p:a add") == errno.EINVAL
    assert "The symbol is not unique" in tracefs.read("error_log")
    define("p:a other:add")
    tracefs.write("dynamic_events", "")
    other.unload()


def test_pe6_1_to_pe6_4_several_probes_of_one_event(program):
    define("p:ev add x=%di")
    define("p:ev twice x=%di")
    assert number("p:ev add x=%di") == errno.EEXIST
    assert number("p:ev nothing y=%di") == errno.EEXIST
    assert number("r:ev nothing x=%di") == errno.EEXIST
    assert number("f:kprobes/ev nothing") == errno.EEXIST
    assert number("p:ev nothing+3 x=%di") == errno.EILSEQ  # the event keeps its probes
    assert len(listed()) == 2
    tracefs.write("events/kprobes/ev/enable", "1")
    define("p:ev nothing x=%di")
    for name, arguments in (("add", (1, 2)), ("twice", (1,)), ("nothing", ())):
        program[name](*arguments)
    profile = tracefs.read("kprobe_profile")
    assert profile == f"  {'ev':<44} {1:15} {0:15}\n" * 3
    define("-:ev twice")
    define("-:ev add x=%di")
    assert number("-:ev nothing") == errno.EBUSY
    assert number("-:ev nothing x=%si") == errno.ENOENT
    tracefs.write("events/kprobes/ev/enable", "0")
    define("-:ev nothing")
    assert listed() == [] and "kprobes" not in tracefs.listdir("events")


def test_te1_3_te1_4_te1_7_enable(program):
    define("p:ev add")
    path = "events/kprobes/ev/enable"
    for text in ("2", "x", "", " 1", "1 ", "0x1", "-1"):
        with pytest.raises(OSError) as raised:
            tracefs.write(path, text + "\n")
        assert raised.value.errno == errno.EINVAL
    for text, state in (("01", "1"), ("1", "1"), ("+0\n", "0")):
        tracefs.write(path, text)
        assert tracefs.read(path) == f"{state}\n"
    tracefs.write(path, "1")
    with pytest.raises(OSError) as raised:
        tracefs.write("kprobe_events", "")
    assert raised.value.errno == errno.EBUSY and listed()
    tracefs.write(path, "0")
    with tracefs.open(path) as kept:
        define("-:ev")
        with pytest.raises(OSError) as raised:
            kept.read()
    assert raised.value.errno == errno.ENODEV
    with pytest.raises(FileNotFoundError):
        tracefs.read(path)


def test_pe5_1_a_probe_waits_for_its_module(program):
    define("p:early later:early")
    define("r:back later:early")
    assert listed() == ["p:kprobes/early later:early", "r:kprobes/back later:early"]
    tracefs.write("events/kprobes/enable", "1")
    for turn in (1, 2):
        later = sandbox.load("define i32 @early(i32 %x) { ret i32 %x }", name="later")
        later["early"](3)
        assert hits()["early"] == turn
        assert listed()[1] == "r10:kprobes/back later:early"
        later.unload()
        assert len(listed()) == 2


def test_pe5_5_an_event_on_every_function_that_matches(program):
    define("f:all *n*")
    event = event_registry.find("fprobes", "all")
    event.set_enabled(True)
    program["nothing"]()
    program["untold"](1)
    program["add"](1, 2)
    assert event.probes[0].hits == 2
    for place in ("add+5", "none_*"):
        assert number(f"f:no {place}") == errno.EINVAL
    assert tracefs.read("error_log").count("trace_fprobe: error: Failed to register probe event") == 2


def test_pe8_4_error_log_is_cleared_by_truncation_alone(program):
    assert number("p:a nosuch") == errno.EINVAL
    log = tracefs.read("error_log")
    tracefs.write("error_log", "anything", append=True)
    assert tracefs.read("error_log") == log
    tracefs.write("error_log", "")
    assert tracefs.read("error_log") == ""


def test_te1_1_te2_7_built_in_events(program):
    assert {"function", "print", "raw_data"} <= set(tracefs.listdir("events/ftrace"))
    assert tracefs.listdir("events/ftrace/function") == ["format", "hist", "id"]
    assert tracefs.listdir("events/ftrace/print") == ["format", "hist", "id", "trigger"]
    assert [tracefs.read(f"events/ftrace/{name}/id") for name in ("function", "print", "raw_data")] == [
        "1\n",
        "5\n",
        "18\n",
    ]
    text = tracefs.read("events/ftrace/print/format")
    assert "\tfield:char buf[];\toffset:16;\tsize:0;\tsigned:0;\n" in text
    assert text.endswith('print fmt: "%ps: %s", (void *)REC->ip, REC->buf\n')
    assert "ftrace" not in tracefs.read("available_events")
    assert number("p:ftrace/function add") == errno.EEXIST
    define("p:ftrace/mine add")
    assert {"function", "mine"} <= set(tracefs.listdir("events/ftrace"))


def test_te5_2_set_event(program):
    for line in ("p:g/a add", "p:g/b twice", "p:h/a add"):
        define(line)
    tracefs.write("set_event", "g:a h:*")
    assert tracefs.read("set_event") == "h:a\ng:a\n"
    tracefs.write("set_event", "!g:a", append=True)
    assert tracefs.read("set_event") == "h:a\n"
    tracefs.write("set_event", "a\n")
    assert tracefs.read("set_event") == "h:a\ng:a\n"
    for token in ("g*", "g:?", "g/a", "g.a", "g:a:b", "nosuch"):
        with pytest.raises(OSError) as raised:
            tracefs.write("set_event", token, append=True)
        assert raised.value.errno == errno.EINVAL
    assert tracefs.read("available_events").startswith("h:a\ng:b\ng:a\n")


@pytest.mark.stress
@pytest.mark.parametrize("times", [2, pytest.param(30, marks=pytest.mark.stress)])
@isolated
def test_definitions_and_deletions_while_the_function_runs(times):
    import threading

    module = sandbox.load(IR, name="prog")
    stop = threading.Event()

    def call():
        while not stop.is_set():
            assert module["add"](2, 3) == 5

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(times):
        define("p:a add first")
        define("r:b add $retval first")
        define("f:c add%return first $retval")
        tracefs.write("events/enable", "1")
        tracefs.write("events/enable", "0")
        tracefs.write("dynamic_events", "")
    stop.set()
    for thread in threads:
        thread.join()


def test_te1_5_te5_1_an_event_whose_trigger_needs_its_hits_counts_as_enabled(program):
    for line in ("p:g/a add", "p:g/b twice"):
        define(line)
    tracefs.write("events/g/a/trigger", "stacktrace")
    assert tracefs.read("events/g/a/enable") == "0*\n"
    assert tracefs.read("events/g/enable") == "X\n" and tracefs.read("set_event") == "g:a\n"
    tracefs.write("set_event", "")
    assert tracefs.read("set_event") == "g:a\n"
    tracefs.write("events/g/b/trigger", "enable_event:g:b")
    assert tracefs.read("events/g/enable") == "1\n"
    tracefs.write("events/g/a/trigger", "!stacktrace")
    tracefs.write("events/g/b/trigger", "!enable_event:g:b")
    assert tracefs.read("events/g/enable") == "0\n" and tracefs.read("set_event") == ""


def test_te5_2_a_token_of_set_event_ends_at_a_nul(program):
    for line in ("p:g/a add", "p:g/b twice"):
        define(line)
    with tracefs.open("set_event", os.O_WRONLY) as handle:
        assert handle.write(b" g:a\0g:b\n") == 5
        assert handle.write(b"\0") == 1
    assert tracefs.read("set_event") == "g:a\n"


def test_te5_4_which_ids_set_event_pid_takes(program):
    tracefs.write("set_event_pid", "0x10 010 4294967297 1073741823 5 5\n")
    kept = "1\n5\n8\n16\n1073741823\n"
    assert tracefs.read("set_event_pid") == kept
    for text, error in (
        ("7 x", errno.EINVAL), ("-1", errno.EINVAL), ("99999999999999999999", errno.EINVAL),
        ("1073741824", errno.EPERM), ("4294967295", errno.EPERM),
    ):  # fmt: skip
        with pytest.raises(OSError) as raised:
            tracefs.write("set_event_pid", text, append=True)
        assert raised.value.errno == error and tracefs.read("set_event_pid") == kept, text
    tracefs.write("set_event_pid", "\n")


def recorded(path="trace"):
    return [line.rpartition("x=")[2] for line in tracefs.read(path).splitlines() if not line.startswith("#")]


def test_te7_8_a_snapshot_has_the_record_that_its_condition_read(program):
    define("f:ev twice x=$arg1:u64")
    tracefs.write("events/fprobes/ev/enable", "1")
    tracefs.write("trace", "")
    for trigger, kept, left in (
        ("snapshot:1 if x == 2", ["1", "2"], ["3"]),
        ("snapshot:1", [], ["1", "2", "3"]),  # without a condition it acts before the record is made
        ("snapshot:1 | hist:keys=x", ["1"], ["2", "3"]),  # the histogram needs the record first
    ):
        for text in trigger.split(" | "):
            tracefs.write("events/fprobes/ev/trigger", text, append=True)
        for value in (1, 2, 3):
            program["twice"](value)
        assert recorded("snapshot") == kept and recorded() == left, trigger
        tracefs.write("events/fprobes/ev/trigger", "!snapshot")
        tracefs.write("trace", "")
        tracefs.write("snapshot", "0")


def test_te7_8_a_trigger_that_enables_its_own_event(program):
    define("f:ev twice x=$arg1:u64")
    trigger = "events/fprobes/ev/trigger"
    for text, kept in (("enable_event:fprobes:ev", ["2"]), ("enable_event:fprobes:ev if x == 1", ["1", "2"])):
        tracefs.write("trace", "")
        tracefs.write(trigger, text)
        for value in (1, 2):
            program["twice"](value)
        assert recorded() == kept, text
        assert tracefs.read("events/fprobes/ev/enable") == "1*\n"
        tracefs.write(trigger, f"!{text}")
        tracefs.write("events/fprobes/ev/enable", "0")


def test_te7_8_a_trigger_that_disables_its_own_event(program):
    define("f:ev twice x=$arg1:u64")
    trigger, enable = "events/fprobes/ev/trigger", "events/fprobes/ev/enable"
    for text, kept in (("disable_event:fprobes:ev", ["1"]), ("disable_event:fprobes:ev if x == 2", ["1"])):
        tracefs.write("trace", "")
        tracefs.write(trigger, text)
        tracefs.write(enable, "1")
        for value in (1, 2, 3):
            program["twice"](value)
        assert recorded() == kept, text
        assert tracefs.read(enable) == "0*\n"
        tracefs.write(trigger, f"!{text}")
        tracefs.write(enable, "0")


def test_pe1_12_records_of_an_event_that_a_trigger_enabled_go_with_it(program):
    define("f:ev twice x=$arg1:u64")
    tracefs.write("events/fprobes/ev/trigger", "enable_event:fprobes:ev if x == 1")
    program["twice"](1)
    assert recorded() == ["1"]
    tracefs.write("events/fprobes/ev/trigger", "!enable_event:fprobes:ev")
    tracefs.write("events/fprobes/ev/enable", "0")
    define("-:ev")
    assert recorded() == []
