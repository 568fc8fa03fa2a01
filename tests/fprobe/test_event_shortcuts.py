"""Hits that an event's shortcut deals with (HAZARDS 10: what is dropped leaves no trace but its count)."""

import ctypes
import itertools
import struct
import threading

import pytest
from filter_model import passes
from sampled import in_stress, sampled

import sandbox
from fprobe.tracefs import tracefs
from ftrace.tracing.events.filters.parser import parse_filter
from ftrace.tracing.events.registry import event_registry
from ftrace.tracing.instances.trace_array import global_trace
from kprobes import kprobe, register_kprobe, unregister_kprobe

PROGRAM = """
define i64 @sc_add(i64 %x, i64 %y) noinline { %r = add i64 %x, %y  ret i64 %r }
define ptr @sc_self(ptr %p) noinline { ret ptr %p }
define i64 @sc_late(i64 %a, i64 %b, i64 %c, i64 %d, i64 %e, i64 %f, i64 %g) noinline { ret i64 %g }
define void @sc_leaf() noinline { ret void }
define i64 @sc_text(ptr %p) noinline { ret i64 0 }

define {i64, i64} @sc_pair(i64 %x) noinline {
  %r = call {i64, i64} asm sideeffect "movq $$0x1111, %rax; movq $$0x2222, %rdx; movq $$0x3333, %rcx",
    "={rax},={rdx},~{rcx}"()
  ret {i64, i64} %r
}

; 0 if sc_pair's results and what it puts into rcx are here after its return, and what calls keep was kept.
define i64 @sc_keeps_results() noinline {
  %changed = call i64 asm sideeffect "
    movq $$2, %rdi; movq $$8, %rbx; movq $$9, %r12; movq $$10, %r13; movq $$11, %r14; movq $$12, %r15
    call sc_pair
    xorq $$0x1111, %rax; xorq $$0x2222, %rdx; xorq $$0x3333, %rcx
    xorq $$8, %rbx; xorq $$9, %r12; xorq $$10, %r13; xorq $$11, %r14; xorq $$12, %r15
    orq %rdx, %rax; orq %rcx, %rax; orq %rbx, %rax; orq %r12, %rax; orq %r13, %rax; orq %r14, %rax; orq %r15, %rax",
    "={rax},~{rdi},~{rsi},~{rdx},~{rcx},~{r8},~{r9},~{r10},~{r11},~{rbx},~{r12},~{r13},~{r14},~{r15},~{memory},~{flags}"()
  ret i64 %changed
}

; 0 if sc_leaf finds and leaves every register that is anyone's as it is here.
define i64 @sc_keeps() noinline {
  %changed = call i64 asm sideeffect "
    movq $$1, %rax; movq $$2, %rdi; movq $$3, %rsi; movq $$4, %rdx; movq $$5, %rcx; movq $$6, %r8; movq $$7, %r9
    movq $$8, %rbx; movq $$9, %r12; movq $$10, %r13; movq $$11, %r14; movq $$12, %r15
    call sc_leaf
    xorq $$1, %rax; xorq $$2, %rdi; xorq $$3, %rsi; xorq $$4, %rdx; xorq $$5, %rcx; xorq $$6, %r8; xorq $$7, %r9
    xorq $$8, %rbx; xorq $$9, %r12; xorq $$10, %r13; xorq $$11, %r14; xorq $$12, %r15
    orq %rdi, %rax; orq %rsi, %rax; orq %rdx, %rax; orq %rcx, %rax; orq %r8, %rax; orq %r9, %rax
    orq %rbx, %rax; orq %r12, %rax; orq %r13, %rax; orq %r14, %rax; orq %r15, %rax",
    "={rax},~{rdi},~{rsi},~{rdx},~{rcx},~{r8},~{r9},~{r10},~{r11},~{rbx},~{r12},~{r13},~{r14},~{r15},~{memory},~{flags}"()
  ret i64 %changed
}
"""
KINDS = ["p:k", "f:k"]
VALUES = (0, 1, 5, 0x7F, 0x80, 0xFF, 0x1234, 0x8000_0000, 0xFFFF_FFFF, (1 << 63) + 5, (1 << 64) - 1)


@pytest.fixture(scope="module")
def program():
    module = sandbox.load(PROGRAM, name="scprog")
    yield module
    module.unload()


@pytest.fixture(autouse=True)
def clean(program):
    yield
    for event in event_registry.events():
        event.set_enabled(False)
        event.file.triggers.remove_all()
    tracefs.write("dynamic_events", "")
    tracefs.write("tracing_on", "1")
    global_trace().buffer.clear()


def defined(line, enabled=True):
    tracefs.write("dynamic_events", line, append=True)
    event = event_registry.events()[-1]
    event.set_enabled(enabled)
    return event, event.probes[0]


def has_shortcut(probe):
    return probe.recording.native.shortcut != 0


def is_early(probe):
    return probe.recording.native.early != 0


def write(event, file, text):
    tracefs.write(f"events/{event.group}/{event.name}/{file}", text, append=True)


def recorded(event):
    return [bytes(record.data) for record in global_trace().buffer.records()]


FILTERS = [
    "a == 5", "a != 0x7f", "b < 0", "b >= -1 && c > 4", "!(a == 1 || b == 5) && d & 0x80", "c <= 255", "c >= 0", "e == 3",
    "d & 0x8000 || (a > 5 && b == -1)", "common_pid != 0", "common_pid == 0", "__probe_ip != 0", "a == 5 || e == 2",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", sampled(FILTERS, 3))
def test_a_filter_of_numbers_keeps_the_records_that_the_same_filter_passes_in_python(program, kind, text):
    event, probe = defined(f"{kind} sc_add a=$arg1 b=$arg2:s8 c=$arg1:u16 d=$arg2:x32 e=$arg1:b3@2/8")
    for value in VALUES:
        program["sc_add"](value, value)
    expected = [data for data in recorded(event) if passes(parse_filter(text, event.fields), data)]
    global_trace().buffer.clear()
    write(event, "filter", text)
    assert has_shortcut(probe)
    before = probe.hits
    for value in VALUES:
        program["sc_add"](value, value)
    assert recorded(event) == expected
    assert (probe.hits - before, probe.misses) == (len(VALUES), 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_filter_reads_the_memory_that_it_names_and_no_other(program, kind):
    event, probe = defined(f"{kind} sc_self w=+0($arg1):u32 t=+4($arg1):string")
    write(event, "filter", "w == 7")
    assert has_shortcut(probe)
    words = [(ctypes.c_uint64 * 2)(7 | 0x61 << 32), (ctypes.c_uint64 * 2)(8 | 0x62 << 32)]
    for each in words:
        program["sc_self"](ctypes.addressof(each))
    program["sc_self"](8)  # cannot be read: 0
    assert [struct.unpack_from("<I", data, 16)[0] for data in recorded(event)] == [7]
    assert probe.hits == 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("passes", [False, True])
@pytest.mark.parametrize("counts", [in_stress(False), True])
def test_what_comes_before_the_trampoline_keeps_every_register_and_counts_the_hit(program, kind, passes, counts):
    """Section 1: scratch registers belong to the site."""
    arguments = " ".join(f"a{number}=$arg{number}" for number in range(1, 7))
    event, probe = defined(f"{kind} sc_leaf {arguments}", enabled=not counts)
    if counts:
        write(event, "trigger", "hist:keys=a1,a2,a6:vals=a3,a4 if a5 == 6")
    else:
        write(
            event, "filter", f"a1 == 2 && a2 == 3 && a3 == 4 && a4 == 5 && a5 == 6 && a6 {'==' if passes else '!='} 7"
        )
    assert is_early(probe)
    assert [program["sc_keeps"]() for _ in range(3)] == [0, 0, 0]
    assert (len(recorded(event)), probe.hits, probe.misses) == (3 * passes * (not counts), 3, 0)
    if counts:
        assert "hitcount:          3" in tracefs.read(f"events/{event.group}/k/hist")
    if kind == "f:k":
        assert probe.fp.hits == 3


@pytest.mark.parametrize(
    "line",
    [f"{kind} sc_late a={what}" for kind in KINDS for what in ("$arg7", "$stack1", "$stack")] + ["p:k sc_late a=%bx"],
)
def test_what_is_not_in_an_argument_register_has_to_wait_for_the_others(program, line):
    event, probe = defined(line)
    assert not is_early(probe)
    write(event, "filter", "a == 7")
    assert has_shortcut(probe)
    assert not is_early(probe)
    program["sc_late"](1, 2, 3, 4, 5, 6, 8)
    assert probe.hits == 1


def test_beside_another_probe_and_in_a_disabled_event_nothing_is_early(program):
    event, probe = defined("p:k sc_add a=$arg1")
    write(event, "filter", "a == 5")
    other, second = defined("f:m sc_add a=$arg1")
    write(other, "filter", "a == 6")
    assert is_early(probe) and is_early(second)
    for value in (5, 6, 7):
        program["sc_add"](value, 0)
    assert (probe.hits, second.hits, len(recorded(event))) == (3, 3, 2)
    event.set_enabled(False)
    program["sc_add"](6, 0)
    assert (probe.hits, second.hits, len(recorded(event))) == (3, 4, 3)


@pytest.mark.parametrize("text", ['t == "x"', "cpu >= 0", 'a == 5 && comm == "nobody"'])
def test_other_filters_have_no_shortcut(program, text):
    event, probe = defined('p:k sc_add a=$arg1 t=\\"x"')
    write(event, "filter", text)
    assert not has_shortcut(probe)


def test_ip_of_a_register_has_none(program):
    event, probe = defined("p:k sc_add ip=%ip")
    write(event, "filter", "ip != 0")
    program["sc_add"](1, 2)
    assert not has_shortcut(probe)
    assert len(recorded(event)) == 1


def test_it_goes_with_the_filter_and_when_a_trigger_comes(program):
    event, probe = defined("p:k sc_add a=$arg1")
    write(event, "filter", "a == 5")
    write(event, "trigger", "traceoff if a == 6")
    assert not has_shortcut(probe)
    program["sc_add"](6, 0)
    assert tracefs.read("tracing_on") == "0\n", "a trigger acts on what the filter drops"
    tracefs.write("tracing_on", "1")
    write(event, "trigger", "!traceoff")
    assert has_shortcut(probe)
    write(event, "filter", "0")
    assert not has_shortcut(probe)
    program["sc_add"](9, 0)
    assert len(recorded(event)) == 1


def test_an_event_in_two_trace_arrays_has_none(program):
    event, probe = defined("p:k sc_add a=$arg1")
    write(event, "filter", "a == 5")
    tracefs.mkdir("instances/sc")
    try:
        tracefs.write(f"instances/sc/events/{event.group}/{event.name}/enable", "1")
        assert not has_shortcut(probe)
        program["sc_add"](6, 0)
        assert recorded(event) == []
        assert "a=0x6" in tracefs.read("instances/sc/trace")
    finally:
        tracefs.rmdir("instances/sc")
    assert has_shortcut(probe)


HISTS = [
    "keys=a",
    "keys=b:vals=a",
    "keys=a,b",
    "keys=a,b,common_pid:vals=d,a",
    "keys=e.hex",
    "keys=common_pid.execname",
    "keys=a.log2",
    "keys=b.buckets=7,a.log2:vals=a/3,b*d",
    "keys=a-b:vals=d/b,-(a)",
    "keys=d/1000,c/8:vals=hitcount,hitcount",
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("keys", sampled(HISTS, 2))
@pytest.mark.parametrize("condition", sampled(["", " if b != 1"], 1))
def test_a_histogram_counts_the_same_with_and_without(program, kind, keys, condition):
    line = f"{kind} sc_add a=$arg1 b=$arg2:s8 c=$arg1:u16 d=$arg2:x32 e=$arg1:b3@2/8"
    event, probe = defined(line, enabled=False)
    found = []
    for is_recorded in (False, True):
        event.set_enabled(is_recorded)
        write(event, "trigger", f"hist:{keys}{condition}")
        assert has_shortcut(probe)
        for value in (*VALUES, *VALUES):
            program["sc_add"](value, value & 3)
        found.append(tracefs.read(f"events/{event.group}/k/hist"))
        write(event, "trigger", f"!hist:{keys}{condition}")
    assert found[0] == found[1]
    assert f"Hits: {sum(not condition or value & 3 != 1 for value in VALUES) * 2}\n" in found[0]
    assert len(recorded(event)) == 2 * len(VALUES)
    assert probe.hits == 4 * len(VALUES)


def test_a_paused_histogram_counts_nothing_and_hits_are_counted(program):
    event, probe = defined("p:k sc_add a=$arg1", enabled=False)
    write(event, "trigger", "hist:keys=a")
    for text in ("hist:keys=a:pause", "hist:keys=a:cont"):
        program["sc_add"](1, 1)
        program["sc_add"](1, 1)
        write(event, "trigger", text)
    program["sc_add"](1, 1)
    assert "Hits: 3\n" in tracefs.read(f"events/{event.group}/k/hist")
    assert probe.hits == 5


@pytest.mark.parametrize("trigger", ["hist:keys=common_timestamp", "hist:keys=stacktrace", "hist:keys=cpu"])
def test_other_histograms_have_none(program, trigger):
    event, probe = defined("p:k sc_add a=$arg1", enabled=False)
    write(event, "trigger", trigger)
    assert not has_shortcut(probe)


def test_more_keys_than_entries_are_dropped_and_counted(program):
    event, probe = defined("p:k sc_add a=$arg1", enabled=False)
    write(event, "trigger", "hist:keys=a:size=128")
    assert has_shortcut(probe)
    for _ in range(2):
        for value in range(200):
            program["sc_add"](value, 0)
    text = tracefs.read(f"events/{event.group}/k/hist")
    assert "Hits: 256\n" in text
    assert "Entries: 128\n" in text
    assert "Dropped: 144\n" in text
    assert probe.hits == 400


@pytest.mark.stress
def test_filters_and_histograms_change_while_threads_hit(program):
    """Every hit is counted once, whatever shortcut it took."""
    event, probe = defined("p:k sc_add a=$arg1", enabled=False)
    event.hold()
    stop, calls = threading.Event(), [0, 0]

    def hit(which):
        while not stop.is_set():
            program["sc_add"](5, 0)
            calls[which] += 1

    threads = [threading.Thread(target=hit, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        write(event, "filter", "a == 6")
        write(event, "trigger", "hist:keys=a")
        write(event, "trigger", "!hist:keys=a")
        write(event, "filter", "0")
    stop.set()
    for thread in threads:
        thread.join()
    event.release()
    assert probe.hits + probe.misses == sum(calls)


# -- hits that are recorded before a register is saved ------------------------------------------------------------


@pytest.fixture
def second_array():
    """A second trace array: hits of an event that both record go to its handler."""
    tracefs.mkdir("instances/sc")
    yield lambda event: tracefs.write(f"instances/sc/events/{event.group}/{event.name}/enable", "1")
    tracefs.rmdir("instances/sc")


def taken():
    """The records so far, which are cleared. Their times differ."""
    found = recorded(None)
    global_trace().buffer.clear()
    return found


@pytest.mark.parametrize(
    "line",
    sampled([
        *(f"{kind} sc_add a=$arg1 b=$arg2:s8 c=$arg1:u16 d=$arg2:x32 e=$arg1:b3@2/8" for kind in KINDS),
        *(f'{kind} sc_text s=+0($arg1):string w=+0($arg1):u32 bad=@8:u64 worse=+8(@8):string t=\\"x"' for kind in KINDS),
        *(f"{kind} sc_text v=+0($arg1):x8[5] c=$comm:string i=\\7" for kind in KINDS),
        "p:k sc_add n=%ax:u8 a=%di",
        "r:k sc_add $retval", "r:k sc_add a=$arg1 r=$retval:s32 b=$arg2", "f:k sc_add $retval",
        "f:k sc_add%return a=$arg1 r=$retval:s32 b=$arg2", "r:k sc_self a=$retval t=+0($retval):u64",
        "f:k sc_self a=$retval t=+0($retval):u64", "r:k sc_leaf", "f:k sc_leaf%return",
    ], 4),
)  # fmt: skip
def test_an_early_record_is_the_handlers(program, second_array, line):
    event, probe = defined(line)
    text = ctypes.create_string_buffer(b"early words")

    def calls():
        for value in VALUES:
            program["sc_add"](value, value ^ 3)
        program["sc_text"](ctypes.addressof(text))
        program["sc_self"](ctypes.addressof(text))
        program["sc_self"](8)
        program["sc_leaf"]()
        return taken()

    assert is_early(probe)
    early, hits = calls(), probe.hits
    second_array(event)
    assert not is_early(probe)
    assert calls() == early != []
    assert (len(early), probe.hits, probe.misses) == (hits, 2 * hits, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_recording_early_keeps_every_register(program, kind):
    """Section 1: scratch registers belong to the site."""
    arguments = " ".join(f"a{number}=$arg{number}" for number in range(1, 7))
    event, probe = defined(f"{kind} sc_leaf {arguments}")
    assert is_early(probe)
    assert [program["sc_keeps"]() for _ in range(3)] == [0, 0, 0]
    records = recorded(event)
    assert [struct.unpack_from("<6Q", data, 16) for data in records] == [(2, 3, 4, 5, 6, 7)] * 3
    assert {struct.unpack_from("<Q", data, 8)[0] for data in records} == {program["sc_leaf"].address}
    assert (probe.hits, probe.misses) == (3, 0)


@pytest.mark.parametrize(
    "line", ["r:k sc_pair $retval", "f:k sc_pair $retval", "r:k sc_pair a=$arg1", "f:k sc_pair%return a=$arg1"]
)
def test_recording_a_return_early_keeps_results_and_what_calls_keep(program, line):
    event, probe = defined(line)
    assert is_early(probe)
    assert [program["sc_keeps_results"]() for _ in range(3)] == [0, 0, 0]
    value = 2 if "$arg1" in line else 0x1111
    assert [struct.unpack_from("<Q", data, 24)[0] for data in recorded(event)] == [value] * 3
    assert (probe.hits, probe.misses) == (3, 0)


@pytest.mark.parametrize(
    "lines",
    sampled(
        [*map(list, itertools.permutations(["r:k sc_add r=$retval", "f:m sc_add%return r=$retval", "r:n sc_add"], 2))],
        3,
    ),
)
def test_returns_beside_another_probe_go_to_the_handlers(program, lines):
    made = [defined(line) for line in lines]
    assert [is_early(probe) for _, probe in made] == [True, True]
    for value in VALUES:
        program["sc_add"](value, 1)
    records = recorded(None)
    assert len(records) == 2 * len(VALUES)
    assert all(probe.hits == len(VALUES) and not probe.misses for _, probe in made)
    results = [struct.unpack_from("<Q", data, 24)[0] for data in records if len(data) == 32]
    named = sum("$retval" in line for line in lines)
    assert sorted(results) == sorted([value + 1 & (1 << 64) - 1 for value in VALUES] * named)
    made[0][0].set_enabled(False)
    program["sc_add"](1, 1)
    assert [probe.hits for _, probe in made] == [len(VALUES), len(VALUES) + 1]


@pytest.mark.parametrize(
    "line", ["p:k sc_add a=$arg1", "f:k sc_add a=$arg1", "r:k sc_add a=$retval", "f:k sc_add a=$retval"]
)
def test_what_is_judged_has_to_wait_for_the_registers(program, line):
    event, probe = defined(line)

    def records():
        program["sc_add"](5, 6)
        return len(taken())

    assert (is_early(probe), records()) == (True, 1)
    for file in ("options/stacktrace", "set_event_pid"):
        tracefs.write(file, "1")
        assert records() == (2 if file.endswith("trace") else 0)
        tracefs.write(file, "0" if file.endswith("trace") else "")
        assert records() == 1
    write(event, "trigger", "traceoff:1")
    assert (is_early(probe), records(), tracefs.read("tracing_on")) == (False, 1, "0\n")
    write(event, "trigger", "!traceoff:1")
    assert (is_early(probe), records()) == (True, 0)
    tracefs.write("tracing_on", "1")
    assert (records(), probe.hits, probe.misses) == (1, 8, 0)


def test_a_soft_disabled_event_records_nothing_early(program):
    event, probe = defined("p:k sc_add a=$arg1")
    tracefs.write("set_ftrace_filter", f"sc_leaf:disable_event:{event.group}:{event.name}\n", append=True)
    try:
        for _ in range(2):
            program["sc_add"](5, 6)
            program["sc_leaf"]()
        assert (len(taken()), probe.hits) == (1, 2)
    finally:
        tracefs.write("set_ftrace_filter", f"!sc_leaf:disable_event:{event.group}:{event.name}\n", append=True)


def test_a_hit_inside_a_kprobes_handler_is_missed_not_recorded_early(program):
    """As in the kernel, which reenters no kprobe."""
    event, probe = defined("p:k sc_add a=$arg1")
    kp = kprobe(symbol_name="scprog:sc_self", pre_handler=lambda *_: program["sc_add"](1, 2) and 0)
    register_kprobe(kp)
    try:
        program["sc_self"](0)
    finally:
        unregister_kprobe(kp)
    program["sc_add"](3, 4)
    assert (len(recorded(event)), probe.hits, probe.misses) == (1, 1, 1)


RETURNS = ["r:k sc_add", "f:k sc_add%return"]
AT_RETURN = "a=$arg1 b=$arg2:s16 r=$retval:s64 h=$retval:u16"


@pytest.mark.parametrize("kind", RETURNS)
@pytest.mark.parametrize(
    "text",
    [
        "a == 5", "r < 0 && b != 4", "__probe_ret_ip != 0 && a == 1",
        *map(in_stress, ("h & 0x10 || a > 0x80", "__probe_func == 0")),
    ],
)  # fmt: skip
def test_a_filter_at_return_keeps_the_records_that_the_same_filter_passes_in_python(program, kind, text):
    event, probe = defined(f"{kind} {AT_RETURN}")
    for value in VALUES:
        program["sc_add"](value, value)
    expected = [data for data in taken() if passes(parse_filter(text, event.fields), data)]
    write(event, "filter", text)
    assert is_early(probe)
    for value in VALUES:
        program["sc_add"](value, value)
    assert taken() == expected
    assert (probe.hits, probe.misses) == (2 * len(VALUES), 0)


@pytest.mark.stress
@pytest.mark.parametrize("kind", RETURNS)
def test_a_histogram_at_return_counts_the_same_early_and_by_the_handler(program, kind):
    event, probe = defined(f"{kind} {AT_RETURN}", enabled=False)
    found = []
    for is_recorded in (False, True):
        event.set_enabled(is_recorded)
        write(event, "trigger", "hist:keys=b:vals=a,r if h != 2")
        assert is_early(probe)
        for value in (*VALUES, *VALUES):
            program["sc_add"](value, value & 3)
        found.append(tracefs.read(f"events/{event.group}/k/hist"))
        write(event, "trigger", "!hist:keys=b:vals=a,r if h != 2")
    assert found[0] == found[1]
    assert f"Hits: {sum(value + (value & 3) & 0xFFFF != 2 for value in VALUES) * 2}\n" in found[0]
    assert (len(recorded(event)), probe.hits) == (2 * len(VALUES), 4 * len(VALUES))


def test_an_event_that_is_never_hit_is_enabled_without():
    event, probe = defined("t:k sc_tracepoint")
    assert (event.file.state, probe.hits) == ("1", 0)
