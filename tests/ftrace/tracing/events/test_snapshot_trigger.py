"""The trigger snapshot (TE-7.9) after its buffer was freed: tracing_snapshot_instance_cond()."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isolation import isolated

if TYPE_CHECKING:
    from sandbox import Module


def demo_with(trigger: str) -> Module:
    """The demo, whose calls of vfs_read are an event with that trigger."""
    import sandbox
    import sandbox.demo
    from fprobe.tracefs import tracefs

    module = sandbox.load(sandbox.demo.source(), name="demo")
    tracefs.write("kprobe_events", "p:reads vfs_read\n")
    tracefs.write("events/kprobes/reads/trigger", trigger)
    tracefs.write("events/kprobes/reads/enable", "1")
    return module


@isolated
def test_te7_9_without_its_buffer_the_trigger_stops_the_trace():
    from fprobe.tracefs import tracefs

    module = demo_with("snapshot:3")
    module["demo_main"](2)
    assert ": reads: " in tracefs.read("snapshot")
    assert tracefs.read("tracing_on").strip() == "1"
    tracefs.write("snapshot", "0")
    module["demo_main"](1)
    lines = [line for line in tracefs.read("trace").splitlines() if not line.startswith("#")]
    who = "tracing_snapshot_instance_cond"
    assert len(lines) == 3 and ": reads: " in lines[0]
    assert lines[1].endswith(f"{who}: *** SNAPSHOT NOT ALLOCATED ***")
    assert lines[2].endswith(f"{who}: *** stopping trace here!   ***")
    assert tracefs.read("tracing_on").strip() == "0"
    assert tracefs.read("events/kprobes/reads/trigger") == "snapshot:count=0\n"


@isolated
def test_te7_9_a_forked_process_has_a_buffer_for_its_snapshots():
    import os

    from fprobe.tracefs import tracefs

    module = demo_with("snapshot")
    module["demo_main"](1)
    child = os.fork()
    if not child:
        module["demo_main"](2)
        is_kept = ": reads: " in tracefs.read("snapshot") and tracefs.read("tracing_on").strip() == "1"
        os._exit(0 if is_kept else 1)
    assert os.waitpid(child, 0)[1] == 0
