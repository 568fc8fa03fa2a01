"""Events that Python writes: markers with triggers, module events, synthetic events (TE-1.5, TE-4.2, TE-7.12, TE-8.9)."""

from __future__ import annotations

import os

import pytest

import fprobe.tracefs  # noqa: F401  (the files of all packages)
import sandbox
from ftrace.tracing.events.registry import event_registry
from ftrace.tracing.instances.trace_array import global_trace
from ftrace.tracing.output.lines import fitted
from ftrace.tracing.tracefs.tree import tracefs

PROGRAM = "define i64 @we_one(i64 %x) noinline { %r = add i64 %x, 1  ret i64 %r }"


@pytest.fixture(autouse=True)
def _clean():
    yield
    for event in ("events/ftrace/print", *(f"events/{each.group}/{each.name}" for each in event_registry.events())):
        for line in tracefs.read(f"{event}/trigger").splitlines():
            if not line.startswith("#"):
                tracefs.write(f"{event}/trigger", f"!{line.rpartition(' [')[0] or line}", append=True)
    tracefs.write("set_event", "")
    tracefs.write("dynamic_events", "")
    tracefs.write("tracing_on", "1")
    global_trace().buffer.clear()


def lines():
    """The texts of the records, after their times."""
    text = tracefs.read("trace").splitlines()
    return [line.partition(": ")[2] for line in text if not line.startswith("#")]


def mark(data):
    with tracefs.open("trace_marker", os.O_WRONLY) as handle:
        handle.write(data)


def test_a_marker_trigger_sees_the_text_as_it_was_written():
    tracefs.write("events/ftrace/print/trigger", 'traceoff if buf == "stop"')
    mark(b"stop\n")  # its newline counts
    assert tracefs.read("tracing_on") == "1\n"
    mark(b"stop")
    assert tracefs.read("tracing_on") == "0\n"
    assert lines() == ["tracing_mark_write: stop"] * 2  # the record that stopped it is there


def test_te7_8_a_snapshot_has_the_marker_that_caused_it():
    mark(b"before")
    tracefs.write("events/ftrace/print/trigger", "snapshot:1")
    for text in (b"cause", b"after"):
        mark(text)
    assert lines() == ["tracing_mark_write: after"]
    shown = [line.rpartition(": ")[2] for line in tracefs.read("snapshot").splitlines() if not line.startswith("#")]
    assert shown == ["before", "cause"]
    tracefs.write("events/ftrace/print/trigger", "!snapshot")
    tracefs.write("snapshot", "0")


def test_te7_12_markers_run_the_triggers_of_their_own_instance():
    tracefs.mkdir("instances/marked")
    tracefs.write("instances/marked/events/ftrace/print/trigger", "hist:keys=common_cpu")
    mark(b"top")
    with tracefs.open("instances/marked/trace_marker", os.O_WRONLY) as handle:
        handle.write(b"own")
    shown = tracefs.read("instances/marked/events/ftrace/print/hist")
    assert "    Hits: 1\n" in shown
    assert tracefs.read("events/ftrace/print/hist") == ""
    tracefs.rmdir("instances/marked")


def test_markers_are_counted_by_triggers():
    tracefs.write("events/ftrace/print/trigger", "traceoff:1")
    for _ in range(2):
        tracefs.write("tracing_on", "1")
        mark(b"one")
    assert tracefs.read("tracing_on") == "1\n"
    assert tracefs.read("events/ftrace/print/trigger") == "traceoff:count=0\n"


def test_a_histogram_of_markers():
    tracefs.write("events/ftrace/print/trigger", "hist:keys=common_pid.execname")
    for _ in range(3):
        mark(b"counted")
    assert "hitcount:          3" in tracefs.read("events/ftrace/print/hist")


@pytest.mark.parametrize(("number", "length"), [(b"rrrr", 8154), (b"\1\0\0\0", 8153), (b"\x41\0\0\0", 8154)])
def test_te3_11_a_raw_marker_is_cut_without_a_newline_where_the_next_byte_does_not_fit(number, length):
    with tracefs.open("trace_marker_raw", os.O_WRONLY) as handle:
        handle.write(number + b"x" * 2996)
    mark(b"next")
    (line,) = [line for line in tracefs.read("trace").splitlines() if not line.startswith("#")]
    assert line[length - 3 : length] == " 78" and line.endswith(": tracing_mark_write: next")
    assert line[length:].lstrip().startswith(line[: line.index("[")].strip())


def test_te3_11_what_just_fits_has_its_newline():
    front = "x" * 65
    assert fitted(front + " 78" * 2696 + "\n") == front + " 78" * 2696 + "\n"
    assert fitted(front + "x" + " 78" * 2696 + "\n") == front + "x" + " 78" * 2696 + "\n"
    assert fitted(front + "xx" + " 78" * 2696 + "\n") == front + "xx" + " 78" * 2696
    assert fitted(front + "xxx" + " 78" * 2696 + "\n") == front + "xxx" + " 78" * 2695


def test_events_of_modules_are_permanent_and_recorded():
    assert tracefs.read("available_events").splitlines()[-2:] == ["module:module_free", "module:module_load"]
    tracefs.write("events/module/enable", "1")
    tracefs.write("events/module/module_free/filter", 'name != "we_second"')
    for name in ("we_first", "we_second"):
        sandbox.load(PROGRAM, name=name).unload()
    assert lines() == ["module_load: we_first ", "module_free: we_first", "module_load: we_second "]


def test_everything_can_be_enabled_when_no_probe_is_defined():
    tracefs.write("events/enable", "1")
    assert tracefs.read("events/enable") == "1\n"
    tracefs.write("events/enable", "0")
    assert tracefs.read("events/enable") == "0\n"


def test_the_name_of_a_permanent_event_is_taken():
    module = sandbox.load(PROGRAM, name="we_taken")
    try:
        with pytest.raises(OSError, match="already used"):
            tracefs.write("dynamic_events", "p:module/module_load we_one\n", append=True)
    finally:
        module.unload()


def test_a_synthetic_event_is_shown_filtered_and_counted():
    module = sandbox.load(PROGRAM, name="we_synth")
    try:
        tracefs.write("dynamic_events", "s:synthetic/lat u64 less; u64 big; char who[]\np:we we_one n=%di who=$comm\n")
        action = "onmax($seen).trace(lat,$less,$seen,who)"
        tracefs.write("events/kprobes/we/trigger", f"hist:keys=common_pid:seen=n:less=$seen-9:{action}")
        tracefs.write("events/synthetic/lat/enable", "1")
        tracefs.write("events/synthetic/lat/filter", "big < 100")
        tracefs.write("events/synthetic/lat/trigger", "hist:keys=big")
        for value in (4, 7, 200):
            module["we_one"](value)
        tracefs.read("events/kprobes/we/hist")
        found = lines()
    finally:
        tracefs.write("events/kprobes/we/trigger", "")
        tracefs.write("events/synthetic/lat/trigger", "")
        tracefs.write("set_event", "")
        tracefs.write("dynamic_events", "")
        module.unload()
    assert len(found) == 2 and all(line.startswith("lat: less=") and " big=" in line for line in found), found
