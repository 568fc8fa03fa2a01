"""Handlers that write to tracefs while another thread, which waits for handlers, changes events."""

from __future__ import annotations

import threading

import pytest
from isolation import isolated
from sampled import sampled

import kprobes
import sandbox
from fprobe.tracefs import tracefs

IR = """
define i32 @one(i32 %x) { ret i32 %x }
define i32 @two(i32 %x) { ret i32 %x }
"""
CHANGES = {
    "define": [("dynamic_events", "p:new one"), ("dynamic_events", "r:ret one"), ("dynamic_events", "f:entry one")],
    "enable": [("events/kprobes/there/enable", "1"), ("events/fprobes/there/enable", "1")],
    "disable": [("events/kprobes/live/enable", "0"), ("events/fprobes/live/enable", "0")],
    "delete": [("dynamic_events", "-:there"), ("dynamic_events", "-:gone")],
}


@pytest.mark.parametrize("change", sampled(CHANGES, 2))
@isolated
def test_deadlock_of_a_handler_that_changes_events_with_a_thread_that_waits_for_it(change):
    module = sandbox.load(IR, name="prog")
    for line in ("p:there one", "r:gone one", "f:there one", "p:live one", "f:live one"):
        tracefs.write("dynamic_events", line, append=True)
    for path in ("events/kprobes/live/enable", "events/fprobes/live/enable"):
        tracefs.write(path, "1")
    inside, go, number = threading.Event(), threading.Event(), [0]

    def pre(p, regs):
        inside.set()
        go.wait()
        number[0] += 1
        tracefs.write("dynamic_events", f"p:from_handler{number[0]} two", append=True)
        tracefs.write(f"events/kprobes/from_handler{number[0]}/enable", "1")
        return 0

    kp = kprobes.kprobe(symbol_name="one", pre_handler=pre)
    kprobes.register_kprobe(kp)
    for file, text in CHANGES[change]:
        inside.clear()
        go.clear()
        caller = threading.Thread(target=lambda: module["one"](1))
        caller.start()
        inside.wait()
        changer = threading.Thread(target=tracefs.write, args=(file, text), kwargs={"append": True})
        changer.start()
        changer.join(0.2)  # it waits for the handler, or has ended
        go.set()
        changer.join()
        caller.join()
    kprobes.unregister_kprobe(kp)
    assert tracefs.read("kprobe_events").count("from_handler") == number[0] == len(CHANGES[change])
