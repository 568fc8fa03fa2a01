"""Definitions made and mutated at random: an answer with an errno, or a definition that reads back as an equal one."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ftrace.tracing.events.registry import event_registry
from ftrace.tracing.probe_args.types import is_good_name

HEADS = st.sampled_from(
    ["p", "r", "f", "t", "p:ev", "r3:ev", "f:g/ev", "p:g.", "r:g-1/e", "f5:ev", "p:", "-:ev", "!p:ev", "-:g/", "s:syn"]
)
PLACES = st.sampled_from(
    [
        "vfs_read",
        "vfs_read+9",
        "vfs_read%return",
        "kernel:vfs_read",
        "vfs_*",
        "other:x",
        "0x10",
        "kfree+0x0",
        "do_int3",
        "+",
        "",
    ]
)
SOURCES = st.sampled_from(
    ["%di", "%zz", "$stack", "$stack3", "$arg1", "$arg9", "$retval", "$comm", "@init_task", "@0x10", "@", "\\5", "\\-0x1",
     '\\"s"', "file", "file->f_mode", "file->f_path.dentry", "count", "$arg*", "&", "a=b"]
)  # fmt: skip
OFFSETS = st.sampled_from(["+0(", "-8(", "+u16(", "-u1(", "+-4(", "+x(", "-("])
TYPES = st.sampled_from(
    [
        "",
        ":u8",
        ":s64",
        ":x32[4]",
        ":string",
        ":ustring[2]",
        ":symbol",
        ":symstr",
        ":char[6]",
        ":b4@4/32",
        ":b9@0/8",
        ":%pd",
        ":x[",
        ":",
    ]
)
NAMES = st.sampled_from(["", "a=", "b=", "common_pid=", "=", "long_" * 7 + "="])


@st.composite
def arguments(draw):
    text = draw(SOURCES)
    for offset in draw(st.lists(OFFSETS, max_size=16)):
        text = f"{offset}{text})"
    return draw(NAMES) + text + draw(TYPES)


LINES = st.builds(lambda *parts: " ".join([*parts[:2], *parts[2]]), HEADS, PLACES, st.lists(arguments(), max_size=5))


@st.composite
def mutated(draw):
    line = draw(LINES)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(line)))
        line = (
            line[:at]
            + draw(st.text('+-u()@$%:[]/.*#\\"= \t\x00é08ax', max_size=3))
            + line[at + draw(st.integers(0, 2)) :]
        )
    return line


@pytest.mark.stress
@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(line=st.one_of(LINES, mutated()))
def test_a_definition_is_refused_or_reads_back(machine, line):
    tracefs = machine.tracefs
    try:
        tracefs.write("dynamic_events", line)
    except OSError as refused:
        assert refused.errno
    first = tracefs.read("dynamic_events")
    for event in event_registry.events():
        assert event.format().startswith(f"name: {event.name}\nID: ")
    if all(is_good_name(event.name) for event in event_registry.events()):  # generated ones need not be
        tracefs.write("dynamic_events", first)
        assert tracefs.read("dynamic_events") == first
    tracefs.write("dynamic_events", "")
    assert {event.group for event in event_registry.events()} <= {"module", "sched"}
    log = tracefs.read("error_log")
    assert len(log) < 1 << 16 and log.count(" error: ") <= 8
