"""Start-up definitions: FPROBE_EVENTS."""

from __future__ import annotations

from isolation import run_source

from ftrace.events.boot import definitions

SOURCE = """
import sandbox
from fprobe.tracefs import tracefs

early = sandbox.load("define i32 @one(i32 %x) {{ ret i32 %x }}", name="early")
print(tracefs.read("kprobe_events"), end="")
late = sandbox.load("define i32 @two(i32 %x) {{ ret i32 %x }}", name="late")
early["one"](1), late["two"](2), late["two"](3)
print(tracefs.read("dynamic_events"), tracefs.read("kprobe_profile"), sep="", end="")
print(tracefs.read("events/kprobes/enable"), tracefs.read("error_log").count("error:"))
"""


def test_pe7c_1_the_parameters_text():
    assert definitions("p:a,f,x=%di;;r:b,g ; ,") == ["p:a f x=%di", "r:b g "]


def test_pe7c_1_definitions_wait_for_their_program_and_are_enabled():
    done = run_source(SOURCE.format(), FPROBE_EVENTS="p:a,one,x=%di:s32;p:b,two;f:c,tw*;p:never,three;q:d,one")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "p:kprobes/a one x=%di:s32"
    assert lines[1:4] == ["p:kprobes/a one x=%di:s32", "p:kprobes/b two", "f:fprobes/c tw*"]
    assert [line.split() for line in lines[4:6]] == [["a", "1", "0"], ["b", "2", "0"]]
    assert lines[6] == "1"
    assert lines[7] == " 4"  # one for each that failed at first, however often it was tried
    reported = done.stderr.splitlines()
    assert reported[0] == "fprobe: never defined: 'p:never three': Invalid probed address or symbol"
    assert len(reported) == 2 and "'q:d one'" in reported[1]
