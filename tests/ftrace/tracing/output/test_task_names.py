"""Which threads are known by their names: the option record-cmd (TE-3.4, TE-3.13; trace_sched_switch.c)."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

from isolation import isolated


def marker_of_another_thread(text: str) -> int:
    """Written by a thread that has ended; its id."""
    from fprobe.tracefs import tracefs

    thread = threading.Thread(target=tracefs.write, args=("trace_marker", text))
    thread.start()
    thread.join()
    assert thread.native_id is not None
    while Path(f"/proc/self/task/{thread.native_id}").exists():  # a live thread becomes known later
        time.sleep(0.001)
    return thread.native_id


def names() -> dict[int, str]:
    """The name that trace has for each thread."""
    from fprobe.tracefs import tracefs

    found = re.findall(r"^ *(\S.*?)-(\d+) +\[", tracefs.read("trace"), re.MULTILINE)  # a name may have spaces
    return {int(tid): name for name, tid in found}


@isolated
def test_te3_4_a_thread_that_recorded_while_record_cmd_was_off_is_unknown() -> None:
    from fprobe.tracefs import tracefs

    before = marker_of_another_thread("a")
    tracefs.write("trace_options", "norecord-cmd")
    while_off = marker_of_another_thread("b")
    tracefs.write("trace_options", "record-cmd")
    after = marker_of_another_thread("c")
    shown = names()
    assert shown[while_off] == "<...>"
    assert "<...>" not in (shown[before], shown[after])
    listed = tracefs.read("saved_cmdlines")
    assert f"{before} " in listed and f"{after} " in listed and f"{while_off} " not in listed


@isolated
def test_te3_4_a_tracer_records_names_whatever_the_option_says() -> None:
    from fprobe.tracefs import tracefs

    tracefs.write("trace_options", "norecord-cmd")
    tracefs.write("set_ftrace_filter", "")
    tracefs.write("current_tracer", "function")
    tid = marker_of_another_thread("a")
    assert names()[tid] != "<...>"
    tracefs.write("current_tracer", "nop")
    tid = marker_of_another_thread("b")
    assert names()[tid] == "<...>"


@isolated
def test_te4_11_a_thread_is_listed_before_anybody_has_read_its_records() -> None:
    from fprobe.tracefs import tracefs

    tid = marker_of_another_thread("a")
    assert f"{tid} " in tracefs.read("saved_cmdlines")


@isolated
def test_te4_11_a_new_size_of_saved_cmdlines_drops_the_names() -> None:
    from fprobe.tracefs import tracefs

    before = marker_of_another_thread("a")
    assert f"{before} " in tracefs.read("saved_cmdlines")
    tracefs.write("saved_cmdlines_size", "4096")
    after = marker_of_another_thread("b")
    listed = tracefs.read("saved_cmdlines")
    assert f"{before} " not in listed and f"{after} " in listed
    assert names()[before] == "<...>" != names()[after]
