"""Files that show or set one thing each: sizes before the first use, depths, selections, raw snapshots (TE-4, TE-9, TE-11)."""

from __future__ import annotations

import errno
import os

import pytest
from isolation import isolated

BOOT = "7 (expanded: 1408)\n"


@isolated
def test_te4_5_what_expands_the_buffer() -> None:
    from fprobe.tracefs import tracefs
    from ftrace.tracing.instances.trace_array import global_trace

    top = global_trace()
    for path, text in (
        ("current_tracer", "nop"),
        ("current_tracer", "nosuch"),
        ("set_event", "nosuch"),
        ("set_event_pid", ""),
        ("snapshot", "0"),
        ("events/enable", "0"),
        ("free_buffer", "x"),
    ):
        top.is_expanded = False
        assert tracefs.read("buffer_size_kb") == BOOT
        if tracefs.is_directory("per_cpu/cpu0"):
            assert tracefs.read("per_cpu/cpu0/buffer_size_kb") == "7\n"
        try:
            tracefs.write(path, text + "\n")
        except OSError:
            assert text == "nosuch"
        assert tracefs.read("buffer_size_kb") in ("1410\n", "7\n"), path


@isolated
def test_te4_5_what_does_not() -> None:
    from fprobe.tracefs import tracefs

    for path, text in (("trace_marker", "a"), ("trace", ""), ("tracing_on", "0"), ("trace_clock", "mono")):
        tracefs.write(path, text + "\n")
    assert tracefs.read("buffer_size_kb") == BOOT


@isolated
def test_te9_4_max_graph_depth_has_32_bits() -> None:
    from fprobe.tracefs import tracefs

    for text, shown in (("5", "5"), ("4294967295", "-1"), ("4294967296", "0"), ("+7", "7")):
        tracefs.write("max_graph_depth", text + "\n")
        assert tracefs.read("max_graph_depth") == f"{shown}\n"


@isolated
def test_te9_4_nobody_hears_of_the_error_of_a_token_that_is_read_when_the_file_is_closed() -> None:
    from fprobe.tracefs import tracefs

    for name in ("set_graph_function", "set_graph_notrace"):
        tracefs.write(name, "nosuch")
        with pytest.raises(OSError, match="no function matches"):
            tracefs.write(name, "nosuch\n")


@isolated
def test_te4_7_snapshot_raw_gives_the_pages_of_the_snapshot_and_does_not_wait() -> None:
    from fprobe.tracefs import tracefs

    path = "per_cpu/cpu0/snapshot_raw"
    with tracefs.open(path) as handle:
        assert handle.read(4096) == b""
    with tracefs.open(path, os.O_NONBLOCK) as handle, pytest.raises(BlockingIOError):
        handle.read(4096)
    tracefs.write("trace_marker", "in the snapshot")
    tracefs.write("snapshot", "1")
    tracefs.write("trace_marker", "in the buffer")
    with tracefs.open(path) as handle:
        page = handle.read(4096)
        assert b"in the snapshot" in page and b"in the buffer" not in page
        assert handle.read(4096) == b""


@isolated
def test_the_mode_of_a_size_and_the_number_of_functions() -> None:
    import sandbox
    from fprobe.tracefs import tracefs

    assert tracefs.read("dyn_ftrace_total_info") == "0 pages:0 groups: 0\n"
    module = sandbox.load("define i64 @f(i64 %x) { ret i64 %x } define i64 @g(i64 %x) { ret i64 %x }", name="two")
    assert tracefs.read("dyn_ftrace_total_info") == "2 pages:1 groups: 1\n"
    assert tracefs.find("per_cpu/cpu0/buffer_size_kb").mode == 0o440
    tracefs.write("per_cpu/cpu0/buffer_size_kb", "100\n")
    module.unload()


@isolated
def test_te4_10_te8_9_while_a_histogram_takes_the_snapshots_nobody_else_does() -> None:
    import sandbox
    from fprobe.tracefs import tracefs

    sandbox.load("define i64 @cs_f(i64 %x) noinline { ret i64 %x }", name="snaps")
    tracefs.write("kprobe_events", "p:a cs_f x=%di:u64\np:b cs_f x=%di:u64\n")
    trigger = "hist:keys=x:m=x:on{}($m).snapshot()"
    tracefs.write("events/kprobes/a/trigger", trigger.format("change"))
    assert "# * Snapshot is allocated *" in tracefs.read("snapshot")
    for path, text in (("snapshot", "0"), ("snapshot", "1"), ("snapshot", "2"), ("per_cpu/cpu0/snapshot", "2")):
        with pytest.raises(OSError, match="remove that trigger") as refused:
            tracefs.write(path, text)
        assert refused.value.errno == errno.EBUSY
    with pytest.raises(OSError, match="remove that trigger"):
        tracefs.write("events/kprobes/b/trigger", trigger.format("max"))
    assert "hist:" not in tracefs.read("events/kprobes/b/trigger")
    tracefs.mkdir("instances/own")
    tracefs.write("instances/own/snapshot", "1")
    tracefs.write("events/kprobes/a/trigger", "!" + trigger.format("change"), append=True)
    tracefs.write("snapshot", "1")
    tracefs.write("events/kprobes/b/trigger", trigger.format("max"))
