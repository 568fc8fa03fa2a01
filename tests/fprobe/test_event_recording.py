"""Events from their definition to the record: every source and type against values that the program knows."""

import ctypes
import gc
import linecache
import os
import struct
import threading
import time

import pytest
from isolation import isolated
from sampled import in_stress, sampled

import fprobe
import sandbox
from fprobe.tracefs import tracefs
from ftrace.ring_buffer.formatters import Memo, compiled
from ftrace.tracing.events.registry import event_registry
from ftrace.tracing.instances.trace_array import global_trace
from ftrace.tracing.probe_args.layout import record_pieces

PROGRAM = """
define i64 @ev_add(i64 %x, i64 %y) noinline { %r = add i64 %x, %y  ret i64 %r }
define i64 @ev_many(i64 %a, i64 %b, i64 %c, i64 %d, i64 %e, i64 %f, i64 %g, i64 %h) noinline {
  %r = add i64 %g, %h  ret i64 %r }
define ptr @ev_self(ptr %p) noinline { ret ptr %p }
@ev_word = global i64 81985529216486895
"""


@pytest.fixture(scope="module")
def program():
    module = sandbox.load(PROGRAM, name="evprog")
    yield module
    module.unload()


@pytest.fixture(autouse=True)
def clean(program):
    yield
    if event_registry.events():
        tracefs.write("events/enable", "0")
    tracefs.write("dynamic_events", "")
    tracefs.write("tracing_on", "1")
    global_trace().buffer.clear()


def event(line):
    """Define an event and enable it; its name is that after the colon."""
    tracefs.write("dynamic_events", line, append=True)
    event_registry.events()[-1].set_enabled(True)


def texts(symbolize=hex):
    """The records: event, and arguments as they are printed, without the addresses before them."""
    found = []
    for record in global_trace().buffer.records():
        number = struct.unpack_from("<H", record.data)[0]
        made = next(each for each in event_registry.events() if each.id == number)
        show = compiled(record_pieces(made.probes[0].layout, Memo(symbolize), Memo(symbolize)))
        text = show(record.data)
        found.append((made.name, text.partition(") ")[2]))
    return found


KINDS = ["p:k ev_add", "f:k ev_add"]


@pytest.mark.parametrize("kind", sampled(KINDS, 1))
def test_arguments_of_a_function(program, kind):
    event(f"{kind} a=$arg1 b=$arg2:u8 c=$arg2:s8 d=$arg1:x16 e=$arg1:u64 f=$arg2:char")
    program["ev_add"](0x12345, 0xFFFF_FF41)
    program["ev_add"](1, 0x80)
    assert texts() == [
        ("k", "a=0x12345 b=65 c=65 d=0x2345 e=74565 f='A'"),
        ("k", "a=0x1 b=128 c=-128 d=0x1 e=1 f='\udc80'"),
    ]


def test_the_addresses_of_a_record(program):
    event("p:k ev_add")
    event("r:r ev_add")
    program["ev_add"](1, 2)
    entry, back = (bytes(record.data) for record in global_trace().buffer.records())
    assert struct.unpack_from("<Q", entry, 8)[0] == program["ev_add"].address
    assert struct.unpack_from("<Q", back, 8)[0] == program["ev_add"].address


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_beyond_the_registers_and_the_stack(program, kind):
    event(f"{kind.replace('ev_add', 'ev_many')} f=$arg6 g=$arg7 h=$arg8 s0=$stack0 s1=$stack1 s=$stack n=\\-3:s64")
    program["ev_many"](1, 2, 3, 4, 5, 6, 0x77, 0x88)
    values = dict(pair.split("=") for pair in texts()[0][1].split())
    assert (values["f"], values["g"], values["h"]) == ("0x6", "0x77", "0x88")
    assert values["s1"] == "0x77"
    assert values["n"] == "-3"
    assert int(values["s"], 16) % 16 == 8


def test_registers_of_a_kprobe_inside_a_function(program):
    event("p:k ev_add a=%di b=%si c=%ip")
    program["ev_add"](3, 4)
    (_, text), *_ = texts()
    assert text.startswith("a=0x3 b=0x4 c=0x")


@pytest.mark.parametrize("line", ["r:k ev_add", "f:k ev_add%return"])
def test_a_return_probe_has_the_result_and_what_the_arguments_were(program, line):
    event(f"{line} a=$arg1 b=$arg2:u8 r=$retval:s32")
    program["ev_add"](0x10, 0xFF)
    program["ev_add"]((1 << 64) - 7, 2)
    assert texts() == [("k", "a=0x10 b=255 r=271"), ("k", "a=0xfffffffffffffff9 b=2 r=-5")]


@pytest.mark.parametrize("kind", ["p:k ev_self", in_stress("f:k ev_self")])
def test_memory_strings_arrays_and_bitfields(program, kind):
    data = ctypes.create_string_buffer(bytes(range(1, 17)) + b"A text\0", 64)
    event(f"{kind} w=+0($arg1):x32 arr=+1($arg1):u8[3] t=+16($arg1):string b=+0($arg1):b4@8/16")
    program["ev_self"](ctypes.addressof(data))
    assert texts() == [("k", 'w=0x4030201 arr={2,3,4} t="A text" b=2')]


@pytest.mark.parametrize("filtered", [False, in_stress(True)])
def test_texts_of_every_length_end_where_they_do_and_leave_what_follows(program, filtered):
    text = ctypes.create_string_buffer(64)
    event(f"p:lengths ev_add s=@{ctypes.addressof(text):#x}:string t=@{ctypes.addressof(text):#x}:string x=%di")
    if filtered:
        tracefs.write("events/kprobes/lengths/filter", 's != "none"')
    written = [bytes(33 + (index + length) % 90 for index in range(length)) for length in range(50)]
    for number, value in enumerate(written):
        ctypes.memmove(text, value + b"\0", len(value) + 1)
        program["ev_add"](number, 0)
    expected = [f's="{value.decode()}" t="{value.decode()}" x={number:#x}' for number, value in enumerate(written)]
    assert [found for _, found in texts()] == expected


def test_an_array_of_pointers_to_text_and_a_chain_of_dereferences(program):
    one, two = ctypes.create_string_buffer(b"one"), ctypes.create_string_buffer(b"two!")
    pointers = (ctypes.c_uint64 * 3)(ctypes.addressof(one), 8, ctypes.addressof(two))
    event("p:k ev_self s=+0($arg1):string[3] d=+1(+16($arg1)):string")
    program["ev_self"](ctypes.addressof(pointers))
    assert texts() == [("k", 's={"one",(fault),"two!"} d="wo!"')]


def test_pointers_that_lead_nowhere_are_faults_and_zeros(program):
    event('p:k ev_add t=+0($arg1):string w=+8($arg1) v=+0(+0($arg1)):u8 a=+0($arg1):u16[2] l=\\"text":string')
    program["ev_add"](0x10, 2)
    assert texts() == [("k", 't=(fault) w=0x0 v=0 a={0,0} l="text"')]


def test_a_symbol_comm_and_constants(program):
    event("p:k ev_add w=@ev_word c=$comm i=\\42:u32")
    program["ev_add"](1, 2)
    (_, text), *_ = texts()
    assert text.startswith('w=0x123456789abcdef c="') and text.endswith("i=42")


def test_pe9_7_a_record_too_large_for_a_sub_buffer_is_dropped(program):
    event("p:k ev_self s=+0(%di):string")
    text = ctypes.create_string_buffer(b"x" * 4095)
    program["ev_self"](ctypes.addressof(text))
    program["ev_self"](ctypes.addressof(text) + 4000)
    assert texts() == [("k", f's="{"x" * 95}"')]


def test_the_source_of_a_handler_goes_with_it(program):
    def kept():
        return {name for name in linecache.cache if name.startswith("<event ")}

    before = kept()
    tracefs.write("dynamic_events", "p:k ev_self a=%di:u32 b=\\987654321\n", append=True)
    assert len(kept() - before) == 1
    tracefs.write("dynamic_events", "-:k\n", append=True)
    gc.collect()
    assert kept() <= before


def test_a_symstr_is_looked_up_when_it_is_recorded(program):
    event("p:k ev_self a=%di:symstr b=%si:symstr c=+0(%di):u8 d=$comm")
    address = program["ev_add"].address
    size = program.symbol("ev_add").size
    program["ev_self"](address)
    program["ev_self"](0xDEAD)
    later = sandbox.load("define i64 @ev_later() noinline { ret i64 1 }", name="evlater")
    try:
        program["ev_self"](later.symbol("ev_later").address)
    finally:
        later.unload()
    found = [dict(word.split("=", 1) for word in text.replace(" [", "[").split()) for _, text in texts()]
    assert found[0]["a"] == f'"ev_add+0x0/{size:#x}[evprog]"'
    assert found[1]["a"] == '"0xdead"'
    assert found[2]["a"].startswith('"ev_later+0x0/0x') and found[2]["a"].endswith('[evlater]"')
    assert found[0]["d"] == found[2]["d"] and found[0]["d"].startswith('"')


def test_a_filter_matches_a_symstr(program):
    event("p:k ev_self a=%di:symstr")
    tracefs.write("events/kprobes/k/filter", 'a ~ "ev_add+0x0/*"')
    program["ev_self"](program["ev_add"].address)
    program["ev_self"](program["ev_many"].address)
    assert len(texts()) == 1


def test_several_probes_of_one_event(program):
    event("p:k ev_add a=$arg1")
    tracefs.write("dynamic_events", "p:k ev_many a=$arg2", append=True)
    program["ev_add"](1, 2)
    program["ev_many"](5, 6, 7, 8, 9, 10, 11, 12)
    assert texts() == [("k", "a=0x1"), ("k", "a=0x6")]


def test_what_is_disabled_is_not_recorded(program):
    event("p:k ev_add a=$arg1")
    program["ev_add"](1, 2)
    tracefs.write("events/kprobes/k/enable", "0")
    program["ev_add"](2, 2)
    tracefs.write("events/kprobes/k/enable", "1")
    tracefs.write("tracing_on", "0")
    program["ev_add"](3, 2)
    tracefs.write("tracing_on", "1")
    program["ev_add"](4, 2)
    assert texts() == [("k", "a=0x1"), ("k", "a=0x4")]
    assert tracefs.read("kprobe_profile").split() == ["k", "3", "0"]


def test_counts_and_records_of_several_threads(program):
    event("r:k ev_add a=$arg1 r=$retval")
    add = program["ev_add"]
    threads = [
        threading.Thread(target=lambda base=base: [add(base, i) for i in range(500)]) for base in (0, 1000, 2000)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = texts()
    assert len(found) == 1500
    assert {text for _, text in found} == {f"a={b:#x} r={b + i}" for b in (0, 1000, 2000) for i in range(500)}
    assert tracefs.read("kprobe_profile").split() == ["k", "1500", "0"]


@pytest.mark.stress
@isolated
def test_a_forked_child_records_into_a_buffer_of_its_own():
    program = sandbox.load(PROGRAM, name="evprog")
    event("p:k ev_add a=$arg1")
    program["ev_add"](1, 2)
    child = os.fork()
    if not child:
        program["ev_add"](7, 2)
        os._exit(0 if texts() == [("k", "a=0x7")] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert texts() == [("k", "a=0x1")]


@pytest.mark.parametrize("kind", [*KINDS, "r:k ev_add", "f:k ev_add%return"])
def test_a_filter_keeps_what_it_passes(program, kind):
    event(f"{kind} a=$arg1 b=$arg2:u8")
    path = f"events/{'fprobes' if kind[0] == 'f' else 'kprobes'}/k/filter"
    tracefs.write(path, "a > 2 && b == 1")
    for i in range(6):
        program["ev_add"](i, i & 1)
    assert texts() == [("k", "a=0x3 b=1"), ("k", "a=0x5 b=1")]
    with pytest.raises(OSError, match="Field not found"):
        tracefs.write(path, "nothing == 1")
    assert "Field not found" in tracefs.read("error_log")
    tracefs.write(path, "0")
    program["ev_add"](0, 0)
    assert texts()[-1] == ("k", "a=0x0 b=0")


def test_a_filter_on_text_and_on_the_common_fields(program):
    data = ctypes.create_string_buffer(b"/etc/passwd")
    event("p:k ev_self name=+0($arg1):string")
    tracefs.write("events/kprobes/k/filter", f'name ~ "*pass*" && common_pid == {threading.get_native_id()}')
    program["ev_self"](ctypes.addressof(data))
    program["ev_self"](ctypes.addressof(data) + 9)
    assert texts() == [("k", 'name="/etc/passwd"')]


def test_a_group_filter_reaches_every_event(program):
    event("p:k ev_add a=$arg1")
    event("p:l ev_add b=$arg1")
    tracefs.write("events/kprobes/filter", "a == 2")
    for i in range(4):
        program["ev_add"](i, 0)
    assert [text for name, text in texts() if name == "k"] == ["a=0x2"]
    assert len([text for name, text in texts() if name == "l"]) == 4


def test_triggers_stop_and_start_recording(program):
    event("p:k ev_add a=$arg1")
    tracefs.write("events/kprobes/k/trigger", "traceoff if a == 2", append=True)
    for i in range(5):
        program["ev_add"](i, 0)
    assert texts() == [("k", "a=0x0"), ("k", "a=0x1"), ("k", "a=0x2")]
    tracefs.write("events/kprobes/k/trigger", "!traceoff", append=True)
    tracefs.write("events/kprobes/k/trigger", "traceon if a == 7", append=True)
    for i in range(6, 9):
        program["ev_add"](i, 0)
    assert texts()[3:] == [
        ("k", "a=0x8")
    ]  # TE-7.8: its room would have been reserved before the condition was looked at
    tracefs.write("tracing_on", "0")
    tracefs.write("events/kprobes/k/filter", "a >= 7")  # with a filter the record is written after the triggers
    for i in range(6, 9):
        program["ev_add"](i, 0)
    assert texts()[4:] == [("k", "a=0x7"), ("k", "a=0x8")]
    tracefs.write("events/kprobes/k/trigger", "!traceon", append=True)
    tracefs.write("events/kprobes/k/trigger", "traceon", append=True)
    tracefs.write("tracing_on", "0")
    program["ev_add"](7, 0)
    assert texts()[6:] == [("k", "a=0x7")]
    tracefs.write("events/kprobes/k/trigger", "!traceon", append=True)


def test_a_trigger_enables_another_event_which_is_armed_before(program):
    event("p:k ev_add a=$arg1")
    tracefs.write("dynamic_events", "p:other ev_many a=$arg1", append=True)
    tracefs.write("events/kprobes/k/trigger", "enable_event:kprobes:other:1 if a == 2", append=True)
    assert tracefs.read("events/kprobes/other/enable") == "0*\n"
    for i in range(4):
        program["ev_many"](i, 0, 0, 0, 0, 0, 0, 0)
        program["ev_add"](i, 0)
    assert [text for name, text in texts() if name == "other"] == ["a=0x3"]
    with pytest.raises(OSError, match="is enabled, or used by"):
        tracefs.write("dynamic_events", "-:kprobes/other", append=True)
    tracefs.write("events/kprobes/k/trigger", "!enable_event:kprobes:other", append=True)
    tracefs.write("events/kprobes/other/enable", "0")
    assert tracefs.read("events/kprobes/other/enable") == "0\n"


def test_a_histogram_counts_hits_of_an_event_that_is_not_enabled(program):
    tracefs.write("dynamic_events", "r:k ev_add a=$arg1 r=$retval", append=True)
    tracefs.write("events/kprobes/k/trigger", "hist:keys=r:vals=a if a < 4", append=True)
    for i in range(6):
        program["ev_add"](i, i & 1)
    assert texts() == []
    text = tracefs.read("events/kprobes/k/hist")
    assert "{ r:          2 } hitcount:          2  a:          3" in text
    assert "Hits: 4" in text
    tracefs.write("events/kprobes/k/trigger", "")
    assert "hist:" not in tracefs.read("events/kprobes/k/trigger")


def test_events_of_several_threads_are_apart(program):
    """Each thread had the events of the others, too, when they were defined at the same moment, and deleted them."""
    failures = []

    def record(number):
        try:
            for _ in range(8):
                with fprobe.event(f"f:apart{number}/e ev_add x=$arg1") as recorded:
                    assert [each.group for each in recorded.formats] == [f"apart{number}"]
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=record, args=(number,)) for number in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not failures and "apart" not in tracefs.read("dynamic_events")


def test_events_of_one_call_record_from_one_moment_on_and_until_one(program):
    """Else hundreds of calls have an entry without a return, or the other way round."""
    add, is_over = program["ev_add"], threading.Event()

    def calls():
        while not is_over.is_set():
            add(1, 2)

    thread = threading.Thread(target=calls)
    thread.start()
    try:
        for _ in range(5):
            with fprobe.event("f:ev_asked ev_add", "f:ev_done ev_add%return") as both:
                time.sleep(0.01)
            found = [record["event"] for record in both]
            assert abs(found.count("ev_asked") - found.count("ev_done")) <= 1, found[:3] + found[-3:]
    finally:
        is_over.set()
        thread.join()
