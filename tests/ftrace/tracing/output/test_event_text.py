"""The text of each kind of event, and the options that change it (TE-3.6, TE-3.8, TE-3.12, TE-9.1)."""

from __future__ import annotations

import re
import struct
from typing import Any

from isolation import isolated

IR = """
define i64 @callee(i64 %x) noinline { %r = add i64 %x, 1  ret i64 %r }
define i64 @caller(i64 %x) noinline { %r = call i64 @callee(i64 %x)  %s = add i64 %r, 1  ret i64 %s }
"""


def program() -> Any:
    import sandbox

    return sandbox.load(IR, name="two")


def record(name: str, *fields: bytes, group: str = "kprobes") -> None:
    """Record an event as its probe would, with these fields."""
    from ftrace.tracing.events.registry import event_registry
    from ftrace.tracing.instances.trace_array import global_trace

    event = event_registry.find(group, name)
    assert event is not None
    assert global_trace().buffer.write(event.id, b"".join(fields))


def word(value: int) -> bytes:
    return struct.pack("<Q", value)


def texts(*options: str) -> list[str]:
    """The text of each record, with the options; the options are taken back."""
    from fprobe.tracefs import tracefs

    for option in options:
        tracefs.write("trace_options", option)
    lines = [line for line in tracefs.read("trace").splitlines() if not line.startswith("#")]
    for option in options:
        tracefs.write("trace_options", option.removeprefix("no") if option.startswith("no") else f"no{option}")
    return [re.sub(r"^ *\S+-\d+ +\[\d{3}\] \.{5} +\d+\.\d{6}: ", "", line) for line in lines]


def raw(line: str) -> str:
    """A line of the options raw or hex, without thread, slot and time."""
    return " ".join(line.split()[3:])


@isolated
def test_te3_6_probe_events_show_where_and_their_arguments() -> None:
    from fprobe.tracefs import tracefs

    module = program()
    callee, caller = module.symbol("callee"), module.symbol("caller")
    tracefs.write("kprobe_events", "p:at callee x=%di:s32 name=+0(%si):string\n")
    tracefs.write("kprobe_events", "r:back callee $retval:x64\n", append=True)
    record("at", word(callee.address), struct.pack("<iI", -3, 4 << 16 | 24), b"a\xff\n\0")
    record("back", word(callee.address), word(caller.address + 4), word(255))
    record("at", word(8), struct.pack("<iI", 0, 0))
    size, of_caller = f"{callee.size:#x}", f"{caller.size:#x}"
    entry = f'at: (callee+0x0/{size} [two]) x=-3 name="a\udcff'
    back = f"back: (caller+0x4/{of_caller} [two] <- callee [two]) arg1=0xff"
    assert "\n".join(texts()).encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape") == "\n".join(
        (entry, '"', back, "at: (0x8) x=0 name=(fault)")
    )
    assert texts("sym-offset")[2] == back
    first, second = (f" <{address:016x}>" for address in (caller.address + 4, callee.address))
    assert texts("sym-addr")[2] == (f"back: (caller+0x4/{of_caller} [two]{first} <- callee [two]{second}) arg1=0xff")


@isolated
def test_te3_12_probe_events_in_raw_hex_fields_and_without_context() -> None:
    from fprobe.tracefs import tracefs
    from ftrace.tracing.events.registry import event_registry

    program()
    tracefs.write(
        "kprobe_events", "p:at callee b=%di:u8 c=%di:u8 h=%si:s16 w=%dx:u32 s=+0(%si):string a=+0(%di):u8[3]\n"
    )
    at = struct.pack("<BBhII3B", ord("A"), 7, -2, 0xFFFFFFFF, 5 << 16 | 31, 1, 2, 3)
    record("at", word(16), at, b"text\0")
    event = event_registry.find("kprobes", "at")
    assert event is not None
    assert texts("fields") == [
        "at: __probe_ip=0x10 (16) b='A'(65) c=(7) h=0xfffe (-2) w=0xffffffff (-1) s=text a=<INVALID-SIZE>"
    ]
    assert [raw(line) for line in texts("raw")] == [f"type: {event.id}"]
    assert [raw(line) for line in texts("hex")] == [f"type: {event.id}", ""]
    assert texts("nocontext-info") == ['at: (0x10) b=65 c=7 h=-2 w=4294967295 s="text" a={1,2,3}']


@isolated
def test_te3_12_fields_shows_texts_of_fixed_length_and_no_stacks() -> None:
    from fprobe.tracefs import tracefs

    tracefs.write("synthetic_events", "made char name[16]; unsigned long[] stack; u64 v\n")
    stack = struct.pack("<II", 16 << 16 | 280, 0) + word(7) + word(1) + word(0x10)
    record("made", b"fixed".ljust(256, b"\0"), stack, group="synthetic")
    assert texts("fields") == ["made: name=fixed stack=<INVALID-TYPE> v=0x7 (7)"]


@isolated
def test_te3_8_te3_12_te9_1_built_in_records() -> None:
    from fprobe.tracefs import tracefs
    from ftrace.core.runtime import runtime
    from ftrace.tracing.events.builtin import FUNCTION
    from ftrace.tracing.instances.trace_array import global_trace

    module = program()
    callee, caller = module.symbol("callee"), module.symbol("caller")
    global_trace().buffer.write(FUNCTION.id, word(callee.address) + word(caller.address + 4))
    tracefs.write("trace_marker", "text\n")
    with tracefs.open("trace_marker_raw", 1) as handle:
        handle.write(b"\x01\0\0\0z")
    bytes_shown = "# 1 buf: 7a" + " 00" * 15
    assert texts() == ["callee [two] <-caller [two]", "tracing_mark_write: text", bytes_shown]
    assert texts("noprint-parent")[0] == "callee [two]"
    assert texts("sym-offset")[0].startswith(f"callee+0x0/{callee.size:#x} [two] <-caller+0x4/")
    assert texts("fields") == ["UNKNOWN TYPE 1", "UNKNOWN TYPE 5", "UNKNOWN TYPE 18"]
    assert [raw(line) for line in texts("raw")] == [
        f"{callee.address:x} {caller.address + 4:x}",
        f"# {runtime().image.address('tracing_mark_write'):x} text",
        bytes_shown,
    ]
    assert re.fullmatch(r"tracing_mark_write\+0x0/0x[0-9a-f]+: text", texts("sym-offset")[1])
    assert re.fullmatch(r"tracing_mark_write <[0-9a-f]{16}>: text", texts("sym-addr")[1])
    assert texts("printk-msg-only")[1] == "text"
    tracefs.write("trace", "")
    global_trace().buffer.write(FUNCTION.id, word(callee.address) + word(0))
    assert texts() == ["callee [two]"]


@isolated
def test_te3_7_a_record_outlives_its_module_and_one_of_an_event_that_is_gone_is_no_longer_there() -> None:
    from fprobe.tracefs import tracefs
    from ftrace.tracing.instances.trace_array import global_trace

    module = program()
    address = module.symbol("callee").address
    tracefs.write("kprobe_events", f"p:at 0x{address:x}\n")
    record("at", word(address))
    assert global_trace().buffer.write(1999, b"")
    assert "Unknown type 1999" in texts()
    tracefs.write("events/kprobes/at/enable", "1")
    tracefs.write("events/kprobes/at/enable", "0")
    tracefs.write("kprobe_events", "")
    assert texts() == []


@isolated
def test_te3_4_threads_that_ended_before_anybody_read_are_shown_by_the_names_they_had() -> None:
    import ctypes
    import threading

    from fprobe.tracefs import tracefs
    from ftrace.tracing.events.builtin import FUNCTION
    from ftrace.tracing.instances.trace_array import global_trace

    def work(name: bytes) -> None:
        ctypes.CDLL(None).prctl(15, name)
        global_trace().buffer.write(FUNCTION.id, bytes(16))

    tids = {}
    for number in range(20):
        thread = threading.Thread(target=work, args=[b"worker-%d" % number])
        thread.start()
        thread.join()
        tids[thread.native_id] = f"worker-{number}"
    text = tracefs.read("trace")
    for tid, name in tids.items():
        assert f"{name:>16}-{tid}" in text
        assert f"{tid} {name}\n" in tracefs.read("saved_cmdlines")


@isolated
def test_te3_4_a_thread_of_which_nothing_is_known() -> None:
    from ftrace.tracing.instances.cmdlines import SavedCmdlines

    saved = SavedCmdlines()
    assert (saved.find(1 << 22), saved.find(0)) == ("<...>", "<idle>")
    for tid in range(6652):
        saved.save(tid + 1, "x")
    assert saved.read().startswith("101 x\n") and saved.read().endswith("6652 x\n")


@isolated
def test_te3_6_te9_1_addresses_in_libraries_are_shown_by_their_symbols() -> None:
    import ctypes

    from fprobe.tracefs import tracefs
    from ftrace.tracing.events.builtin import FUNCTION
    from ftrace.tracing.instances.trace_array import global_trace

    here = ctypes.cast(ctypes.CDLL(None).getenv, ctypes.c_void_p).value or 0
    global_trace().buffer.write(FUNCTION.id, word(here) + word(0x10))
    (plain,), (offset,) = texts(), texts("sym-offset")
    assert re.fullmatch(r"\w*getenv\w* \[libc[^ ]*\] <-0x00000010", plain), plain
    assert re.fullmatch(r"\w*getenv\w*\+0x0/0x[0-9a-f]+ \[libc[^ ]*\] <-0x10", offset), offset
    tracefs.write("trace", "")
