"""Events from their definition to the record: every source and type against values that the program knows."""

import struct

import pytest

import sandbox
from fprobe.tracefs import tracefs
from ftrace.events.registry import event_registry
from ftrace.events.trace_array import global_trace
from ftrace.probe_args.values import record_text

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
    tracefs.write("events/enable", "0") if event_registry.events() else None
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
        text = record_text(made.probes[0].layout, record.data, symbolize, symbolize)
        found.append((made.name, text.partition(") ")[2]))
    return found


KINDS = ["p:k ev_add", "f:k ev_add"]


@pytest.mark.parametrize("kind", KINDS)
def test_arguments_of_a_function(program, kind):
    event(f"{kind} a=$arg1 b=$arg2:u8 c=$arg2:s8 d=$arg1:x16 e=$arg1:u64 f=$arg2:char")
    program["ev_add"](0x12345, 0xFFFF_FF41)
    program["ev_add"](1, 0x80)
    assert texts() == [
        ("k", "a=0x12345 b=65 c=65 d=0x2345 e=74565 f='A'"),
        ("k", "a=0x1 b=128 c=-128 d=0x1 e=1 f='\x80'"),
    ]


def test_the_addresses_of_a_record(program):
    event("p:k ev_add")
    event("r:r ev_add")
    program["ev_add"](1, 2)
    entry, back = (bytes(record.data) for record in global_trace().buffer.records())
    assert struct.unpack_from("<Q", entry, 8)[0] == program["ev_add"].address
    assert struct.unpack_from("<Q", back, 8)[0] == program["ev_add"].address
