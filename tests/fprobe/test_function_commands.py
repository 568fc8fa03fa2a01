"""The commands of set_ftrace_filter that act on the buffer and on events (TE-9.5)."""

from __future__ import annotations

import errno

import pytest
from isolation import isolated, run_forked

import sandbox
from fprobe.tracefs import tracefs
from ftrace.core.tracer import detach_all
from ftrace.tracing.instances.trace_array import global_trace

PROGRAM = """
define i64 @fc_one(i64 %x) noinline { %r = add i64 %x, 1  ret i64 %r }
define i64 @fc_two(i64 %x) noinline { %r = call i64 @fc_one(i64 %x)  %s = add i64 %r, 1  ret i64 %s }
"""
EVERYTHING = "#### all functions enabled ####\n"


@pytest.fixture(scope="module")
def program():
    module = sandbox.load(PROGRAM, name="fcprog")
    yield module
    module.unload()


@pytest.fixture(autouse=True)
def _clean():
    yield
    while shown := listed():
        name, _, count = shown[0].partition(":")[2].rpartition(":")
        command(f"!*:{name}" + ":0" * count.startswith("count="))
    tracefs.write("set_event", "")
    tracefs.write("dynamic_events", "")
    tracefs.write("tracing_on", "1")
    tracefs.write("snapshot", "0")
    global_trace().buffer.clear()


def command(text):
    tracefs.write("set_ftrace_filter", f"{text}\n", append=True)


def listed():
    return tracefs.read("set_ftrace_filter").removeprefix(EVERYTHING).splitlines()


def lines():
    return [line for line in tracefs.read("trace").splitlines() if not line.startswith("#")]


def refused(text, number=errno.EINVAL):
    with pytest.raises(OSError) as caught:
        command(text)
    assert caught.value.errno == number, caught.value


def test_stacktrace_records_the_stack_as_often_as_it_says(program):
    command("fc_one:stacktrace:2")
    for _ in range(3):
        program["fc_two"](1)
    found = lines()
    assert sum("<stack trace>" in line for line in found) == 2
    assert found[1:3] == [" => fc_one [fcprog]", " => fc_two [fcprog]"]
    assert listed() == ["fc_one:stacktrace:count=0"]
    command("!fc_one:stacktrace:0")
    assert listed() == []
    refused("!fc_one:stacktrace:0", errno.ENODEV)


def test_a_stack_that_is_not_recorded_does_not_count(program):
    command("fc_one:stacktrace:2")
    tracefs.write("tracing_on", "0")
    program["fc_two"](1)
    assert listed() == ["fc_one:stacktrace:count=2"] and lines() == []
    tracefs.write("tracing_on", "1")
    program["fc_two"](1)
    assert listed() == ["fc_one:stacktrace:count=1"]
    command("!fc_one:stacktrace:0")


def test_snapshot_exchanges_the_buffers(program):
    tracefs.write("trace_marker", "before")
    command("fc_one:snapshot")
    program["fc_one"](1)
    assert lines() == []
    assert "before" in tracefs.read("snapshot")
    assert listed() == ["fc_one:snapshot:unlimited"]


def test_enable_event_switches_an_event_that_is_armed_before(program):
    tracefs.write("dynamic_events", "p:ke fc_one\np:kf fc_one\n")
    command("fc_two:enable_event:kprobes:ke:1")
    assert tracefs.read("events/kprobes/ke/enable") == "0*\n"
    program["fc_two"](1)
    assert tracefs.read("events/kprobes/ke/enable") == "1*\n"
    program["fc_two"](1)  # it is on: this does not count
    assert len(lines()) == 2
    assert listed() == ["fc_two:enable_event:kprobes:ke:count=0"]
    with pytest.raises(OSError) as caught:
        tracefs.write("dynamic_events", "-:ke", append=True)
    assert caught.value.errno == errno.EBUSY
    command("!fc_two:enable_event:kprobes:ke:0")
    assert tracefs.read("events/kprobes/ke/enable") == "1\n"


def test_a_function_has_one_target_of_a_command_and_others_beside_it(program):
    tracefs.write("dynamic_events", "p:ke fc_one\np:kf fc_one\n")
    command("fc_two:enable_event:kprobes:ke")
    refused("fc_two:enable_event:kprobes:kf")
    command("fc_one:enable_event:kprobes:kf")
    command("fc_two:disable_event:kprobes:ke")
    command("fc_two:enable_event:kprobes:kf:3")
    assert sorted(listed()) == [
        "fc_one:enable_event:kprobes:kf:unlimited",
        "fc_two:disable_event:kprobes:ke:unlimited",
        "fc_two:enable_event:kprobes:ke:unlimited",
        "fc_two:enable_event:kprobes:kf:count=3",
    ]
    command("!fc_*:enable_event:kprobes:ke")
    assert sorted(listed()) == [
        "fc_two:disable_event:kprobes:ke:unlimited",
        "fc_two:enable_event:kprobes:kf:count=3",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "fc_two:enable_event", "fc_two:enable_event:kprobes", "fc_two:enable_event:kprobes:nosuch",
        "fc_two:enable_event:kprobes:ke:", "fc_two:enable_event:kprobes:ke:x", "fc_two:stacktrace:x", "nosuch:snapshot",
        "fc_two:stacktrace:-1",
    ],
)  # fmt: skip
def test_what_is_wrong_holds_nothing(program, text):
    tracefs.write("dynamic_events", "p:ke fc_one\n")
    refused(text)
    assert tracefs.read("events/kprobes/ke/enable") == "0\n"
    tracefs.write("dynamic_events", "-:ke", append=True)


def test_set_ftrace_notrace_takes_no_command(program):
    with pytest.raises(OSError) as caught:
        tracefs.write("set_ftrace_notrace", "fc_one:stacktrace\n", append=True)
    assert caught.value.errno == errno.EINVAL


@isolated
def test_commands_that_are_detached_release_their_events():
    module = sandbox.load(PROGRAM, name="fcprog")
    tracefs.write("dynamic_events", "p:ke fc_one\n")
    command("fc_two:enable_event:kprobes:ke")
    detach_all()
    assert tracefs.read("events/kprobes/ke/enable") == "0\n"
    tracefs.write("dynamic_events", "-:ke", append=True)
    module.unload()


DUMPED = """
import os, sys, tempfile, time
sys.path[:0] = {path!r}
import sandbox
from fprobe.tracefs import tracefs

standard_error, dumped = os.dup(2), tempfile.TemporaryFile()
os.dup2(dumped.fileno(), 2)
module = sandbox.load({program!r}, name="fcprog")
tracefs.write("trace_marker", "dumped text")
tracefs.write("set_ftrace_filter", "fc_one:{command}\\n")
print(tracefs.read("set_ftrace_filter").splitlines()[-1])
for _ in range(3):
    tracefs.write("tracing_on", "1")
    module["fc_one"](1)
print(tracefs.read("tracing_on"))
deadline = time.monotonic() + 20
while os.pread(2, 1 << 20, 0).count(b"tracing_mark_write: dumped text") < {times} and time.monotonic() < deadline:
    time.sleep(0.01)
time.sleep(0.1)  # for one dump too many
os.write(standard_error, os.pread(2, 1 << 20, 0))
"""


@pytest.mark.parametrize(
    ("name", "shown", "times"), [("dump:7", "dump:count=1", 1), ("cpudump", "cpudump:unlimited", 3)]
)
def test_dump_writes_the_buffer_to_standard_error(name, shown, times):
    done = run_forked(DUMPED.format(path=[], program=PROGRAM, command=name, times=times), 30)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"fc_one:{shown}"
    assert done.stderr.count("Dumping ftrace buffer:") == times, done.stderr
    assert "tracing_mark_write: dumped text" in done.stderr
    assert done.stdout.splitlines()[1] == str(int(times == 1))
