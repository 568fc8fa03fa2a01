"""Writers of files of tracefs that meet: no deadlock, and no exception but an OSError with an errno."""

from __future__ import annotations

import threading
import time

import pytest
from programs import basic

from fprobe.tracefs import tracefs
from ftrace.core.tracer import tracer
from ftrace.tracing.events.event_mutex import event_mutex
from ftrace.tracing.instances.trace_array import global_trace, trace_types_lock
from ftrace.tracing.tracers.thread_filters import NEVER, ONLY, DroppedSlots, PidLists, TracePidList


@pytest.fixture
def event():
    program = basic()
    tracefs.write("dynamic_events", f"p:meeting {program.name}:factorial n=%di:u64", append=True)
    yield "events/kprobes/meeting"
    tracefs.write("events/kprobes/meeting/trigger", "", append=False)
    tracefs.write("dynamic_events", "-:meeting", append=True)
    program.unload()


def test_a_hist_trigger_that_sets_the_clock_leaves_event_mutex_to_who_makes_an_instance(event):
    """Who makes an instance holds trace_types_lock and waits for event_mutex: the order of docs/locking.md."""
    before, buffer = global_trace().buffer.clock, global_trace().buffer
    buffer.clock = "mono"
    trigger = "hist:keys=n:t=common_timestamp.usecs:clock=global"
    writer = threading.Thread(target=tracefs.write, args=(f"{event}/trigger", trigger), kwargs={"append": True})
    with trace_types_lock:
        writer.start()
        end = time.monotonic() + 20
        while buffer.clock != "global" and time.monotonic() < end:
            time.sleep(0.01)
        is_free = event_mutex.acquire(timeout=20)
        if is_free:
            event_mutex.release()
    writer.join(20)
    buffer.clock = before
    assert is_free and not writer.is_alive()


@pytest.mark.parametrize("name", ["enabled_functions", "touched_functions"])
def test_what_functions_lead_to_is_read_when_nobody_changes_it(name):
    reader = threading.Thread(target=tracefs.read, args=(name,))
    with tracer().table.lock:
        reader.start()
        reader.join(0.2)
        waits = reader.is_alive()
    reader.join(20)
    assert waits and not reader.is_alive()


def test_a_list_of_threads_that_is_written_while_another_one_is_followed(monkeypatch):
    lists, writers, seen = PidLists(DroppedSlots()), [], TracePidList.see_threads

    def see_threads(self):
        if not writers:
            writers.append(threading.Thread(target=lists.add, args=(NEVER, "1")))
            writers[0].start()
            writers[0].join(0.2)
        seen(self)

    lists.add(ONLY, "1")
    monkeypatch.setattr(TracePidList, "see_threads", see_threads)
    lists.follow_forks(True)
    writers[0].join(20)
    assert lists.pids(ONLY) == [1] == lists.pids(NEVER)
