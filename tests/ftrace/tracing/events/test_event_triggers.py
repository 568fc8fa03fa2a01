"""Triggers other than histograms (TE-7.1 to 7.12), by the trigger file and by native hits."""

from __future__ import annotations

import ctypes
import errno

import pytest
from event_files import Instance, hit
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrace.tracing.events.triggers.trigger_file import AVAILABLE


@pytest.fixture
def instance():
    return Instance()


@pytest.fixture
def event(instance):
    return instance.event("t")


def refused(event, text):
    before = event.triggers.read()
    with pytest.raises(OSError) as caught:
        event.triggers.write(text)
    assert event.triggers.read() == before
    return caught.value.errno


def test_traceoff_with_a_count_and_a_condition_as_the_kernel_shows_it(instance, event):
    triggers = event.triggers
    assert triggers.read() == AVAILABLE
    triggers.write("traceoff:2 if fd == 3\n")
    assert triggers.read() == "traceoff:count=2 if fd == 3\n"
    for text in ("traceon:1 if fd == 4", "traceoff:2 if fd == 3", "traceoff"):
        assert refused(event, text) == errno.EEXIST
    hit(event, fd=3)
    assert instance.on.value == 0
    assert triggers.read() == "traceoff:count=1 if fd == 3\n"
    hit(event, fd=3)
    assert triggers.read() == "traceoff:count=1 if fd == 3\n", "a hit that changes nothing does not count"
    instance.on.value = 1
    hit(event, fd=4)
    assert instance.on.value == 1
    triggers.write("!traceoff")
    triggers.write("!traceon:1 if fd == 4")
    assert triggers.read() == AVAILABLE


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("traceon", "traceon:unlimited"),
        ("  traceon:", "traceon:unlimited"),
        ("traceon 2", "traceon:count=2"),
        ("traceon: 2", "traceon:count=2"),
        ("traceon:2:3", "traceon:count=2"),
        ("traceon:0x10", "traceon:count=16"),
        ("traceon:010", "traceon:count=8"),
        ("traceoff:0", "traceoff:count=0"),
        ("stacktrace:18446744073709551614", "stacktrace:count=-2"),  # counts are printed with a sign
        ("stacktrace:18446744073709551615", "stacktrace:unlimited"),
        ("snapshot if fd == 1 ", "snapshot:unlimited if fd == 1"),
        ("traceon:3 if   fd == 1", "traceon:count=3 if   fd == 1"),
        ("traceon if fd == 1", "traceon:unlimited if fd == 1"),
        ("traceon\tif fd == 1", "traceon:unlimited if fd == 1"),
        ("enable_event:kprobes:other", "enable_event:kprobes:other:unlimited"),
        ("disable_event:kprobes:t:3 if fd > 1", "disable_event:kprobes:t:count=3 if fd > 1"),
        ("enable_hist:kprobes:other:2", "enable_hist:kprobes:other:count=2"),
    ],
)
def test_a_trigger_is_listed_in_full(instance, event, text, line):
    instance.event("other")
    event.triggers.write(text)
    assert event.triggers.read() == f"{line}\n"


@pytest.mark.parametrize(
    "text",
    [
        "", "nosuch", "traceoff+0", "! traceon", "!nosuch", "traceon:x", "traceon:-1", "traceon:+2", "traceon:2if fd == 1",
        "traceon:08", "traceon if", "traceon:2 iff fd == 1", "traceon:18446744073709551616", "enable_event",
        "enable_event:kprobes", "enable_event:kprobes:nosuch", "enable_event:kprobes:*", "enable_event:kprobes:t:x",
        "enable_event:kprobes:t:", "enable_event:kprobes:t::3", "enable_hist:kprobes:t: 3",
        "!enable_event:kprobes:nosuch", f"traceon if fd == 1{' ' * 4096}",
    ],
)  # fmt: skip
def test_a_bad_trigger_is_refused_and_changes_nothing(event, text):
    number = refused(event, text)
    assert number == (errno.ERANGE if text.endswith("551616") else errno.EINVAL)
    assert event.held == 0


def test_te7_2_a_trigger_ends_at_a_nul(event):
    event.triggers.write("traceon:3\0x")
    event.triggers.write("stacktrace if fd == 3 \0 && nosuch")
    assert event.triggers.read() == "stacktrace:unlimited if fd == 3\ntraceon:count=3\n"


def test_a_bad_condition_is_logged_with_its_own_text_as_the_command(instance, event):
    assert refused(event, "traceon:2 if  nosuch == 3") == errno.EINVAL
    assert instance.log == [("event filter parse error", "Field not found", " nosuch == 3", 8)]


def test_te7_10_the_count_is_read_before_the_condition(instance, event):
    for text in ("traceon:5x if nosuch == 1", "enable_event:kprobes:t:x if nosuch == 1"):
        assert refused(event, text) == errno.EINVAL
    assert instance.log == []


def test_the_newest_is_listed_first(instance, event):
    instance.event("other")
    for text in ("traceon", "snapshot", "enable_event:kprobes:other"):
        event.triggers.write(text)
    assert event.triggers.read() == "enable_event:kprobes:other:unlimited\nsnapshot:unlimited\ntraceon:unlimited\n"


def test_removal_ignores_counts_filters_and_what_follows(instance, event):
    event.triggers.write("stacktrace:3 if fd == 1")
    event.triggers.write("!stacktrace:0 if nosuch rubbish")
    event.triggers.write("!snapshot")
    event.triggers.write("traceoff")
    event.triggers.write("!traceon")
    assert event.triggers.read() == AVAILABLE


def test_a_trigger_holds_its_event_and_the_one_it_acts_on(instance, event):
    other = instance.event("other")
    event.triggers.write("enable_event:kprobes:other")
    assert (event.held, other.held) == (1, 1)
    event.triggers.write("!disable_event:kprobes:other")
    assert (event.held, other.held) == (0, 0)


def test_what_cannot_be_held_leaves_nothing_behind(instance, event, monkeypatch):
    other = instance.event("other")

    def fail():
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr(event, "hold", fail)
    assert refused(event, "enable_event:kprobes:other") == errno.ENOMEM
    assert other.held == 0


def test_enable_event_switches_recording_and_counts_changes_only(instance, event):
    other = instance.event("other")
    event.triggers.write("enable_event:kprobes:other:1 if fd == 3")
    assert refused(event, "disable_event:kprobes:other") == errno.EEXIST
    hit(event, fd=4)
    assert not hit(other)
    hit(event, fd=3)
    assert hit(other)
    assert event.triggers.read() == "enable_event:kprobes:other:count=0 if fd == 3\n"
    other.word.value = 0
    hit(event, fd=3)
    assert not hit(other)


def test_an_event_may_disable_itself(instance, event):
    event.word.value = 1
    event.triggers.write("disable_event:kprobes:t if fd == 3")
    assert [hit(event, fd=value) for value in (1, 3, 1)] == [True, True, False]


def test_traceoff_comes_after_the_record(instance, event):
    event.word.value = 1
    event.triggers.write("traceoff")
    assert [hit(event), hit(event)] == [True, False]


def test_an_unconditional_traceon_comes_before_the_record_and_a_conditional_one_after(instance, event):
    event.word.value = 1
    instance.on.value = 0
    event.triggers.write("traceon")
    assert hit(event)
    instance.on.value = 0
    event.triggers.write("!traceon")
    event.triggers.write("traceon if fd == 0")
    assert [hit(event), hit(event)] == [False, True]


def test_stacktrace_is_recorded_after_the_event_and_counts_down(instance, event):
    event.word.value = 1
    event.triggers.write("stacktrace:1")
    hit(event)
    hit(event)
    assert instance.done == ["t", "stacktrace", "t"]
    assert event.triggers.read() == "stacktrace:count=0\n"


def test_snapshot_has_its_buffer_allocated_with_the_trigger(instance, event):
    event.triggers.write("snapshot:2")
    assert instance.snapshots == 1
    for _ in range(3):
        hit(event)
    assert instance.done == ["snapshot", "snapshot"]
    event.triggers.write("!snapshot")
    assert instance.snapshots == 0


def test_a_trigger_that_is_never_to_act_does_not(instance, event):
    event.triggers.write("traceoff:0")
    hit(event)
    assert instance.on.value == 1


def test_triggers_act_though_the_event_and_tracing_are_off(instance, event):
    instance.on.value = 0
    event.triggers.write("snapshot if fd == 3")
    assert not hit(event, fd=3)
    assert instance.done == ["snapshot"]


def test_truncation_keeps_what_is_no_histogram(event):
    event.triggers.write("traceon")
    event.triggers.truncate()
    assert event.triggers.read() == "traceon:unlimited\n"


def test_hits_that_may_still_use_a_list_are_waited_for_before_it_goes(instance, event):
    event.triggers.write("traceon")
    before = instance.freed
    event.triggers.write("!traceon")
    assert instance.freed == before + 1
    assert ctypes.c_uint64.from_address(event.triggers.table_address).value == 0


def test_every_trigger_of_an_event_goes_with_it(instance, event):
    other = instance.event("other")
    for text in ("traceon", "snapshot", "enable_event:kprobes:other"):
        event.triggers.write(text)
    event.triggers.remove_all()
    assert (event.held, other.held, instance.snapshots) == (0, 0, 0)


WORDS = (
    "traceon",
    "traceoff",
    "snapshot",
    "enable_event",
    "!",
    ":",
    " ",
    "kprobes",
    "t",
    "2",
    "if",
    "fd == 3",
    "x",
    "-",
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=9).map("".join))
def test_any_text_is_accepted_or_refused_with_an_errno(text):
    instance = Instance()
    event = instance.event("t")
    try:
        event.triggers.write(text)
    except OSError as error:
        assert error.errno
    else:
        lines = event.triggers.read()
        for line in lines.splitlines() if lines != AVAILABLE else ():
            event.triggers.write(f"!{line.replace(':unlimited', '').replace('count=', '')}")
    assert event.triggers.read() == AVAILABLE
    assert event.held == 0
