"""Histograms with variables and actions (TE-8.4, 8.5, 8.8, 8.9): what hits count is what Python counts, also in many threads."""

from __future__ import annotations

import threading

import pytest
from event_files import Instance, hit
from event_records import record
from hist_model import HistModel
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrace.tracing.events.filters.fields import PlainField
from ftrace.tracing.events.hist.hist_trigger import read_hists, register_hist_command
from ftrace.tracing.events.hist.shared_table import SharedHistogram

register_hist_command()

WORDS = (
    PlainField("u64", "one", 8, 8),
    PlainField("u64", "two", 16, 8),
    PlainField("__data_loc char[]", "text", 24, 8),
)


@pytest.fixture
def instance():
    made = Instance()
    made.synthetic["ev"] = WORDS
    yield made
    for event in reversed(made.events.values()):
        event.triggers.remove_all()


NUMBERS = [
    "fd",
    "bl",
    "u",
    "wide",
    "half",
    "7",
    "fd+bl",
    "wide-fd",
    "bl*3",
    "wide/3",
    "wide/8",
    "u/fd",
    "fd-bl*u",
    "-(bl)",
]
STARTS = ["hist:keys={keys}:x={one},y=wide,t=name", "hist:keys={keys}:x={one}:vals=bl,half:y=wide,t=name"]
ENDS = [
    "hist:keys={keys}:d={one}-$x",
    "hist:keys={keys}:d=$x:vals={one},$y",
    "hist:keys={keys}:e=wide,s=$t:onmatch(kprobes.start).ev($e,wide,$s)",
    "hist:keys={keys}:e=wide:onmax($e).save(half,name,fd):onchange($e).trace(ev,$e,wide,kprobes.start.$t)",
    "hist:keys={keys}:d=$y+$x:onmax($d).save(bl,fixed):onchange($d).ev(wide,$y,name)",
]
KEYS = ["fd", "fd,name", "u.log2", "bl.buckets=7", "fixed,half"]
hits = st.tuples(
    st.booleans(),
    st.fixed_dictionaries(
        {
            "fd": st.integers(-1, 2), "bl": st.integers(-20, 20), "u": st.integers(0, 3), "half": st.integers(-1, 1),
            "wide": st.sampled_from([0, 1, 2, 3, 1 << 20, (1 << 64) - 1]),
            "name": st.sampled_from([b"", b"a", b"ab", b"y" * 255]), "fixed": st.sampled_from([b"", b"12345678", b"1\x002"]),
        }
    ),
)  # fmt: skip


def contents(trigger):
    return {
        entry.key: (entry.sums, dict(entry.tracked), list(entry.saved)) for entry in trigger.table.contents().entries
    }


@pytest.mark.stress
@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(KEYS),
    st.sampled_from(STARTS),
    st.sampled_from(ENDS),
    st.sampled_from(NUMBERS),
    st.lists(hits, max_size=30),
)
def test_te8_9_variables_and_actions_agree_with_python(keys, start_text, end_text, one, candidates):
    instance = Instance()
    instance.synthetic["ev"] = WORDS
    start, end = instance.event("start"), instance.event("end")
    start.triggers.write(start_text.format(keys=keys, one=one))
    end.triggers.write(end_text.format(keys=keys, one=one))
    models, generated = {}, []
    (first,), (second,) = start.triggers.hists, end.triggers.hists
    model_of = {start: HistModel(first, models, generated), end: HistModel(second, models, generated)}
    for is_start, values in candidates:
        event = start if is_start else end
        data = record(**values)
        hit(event, data)
        model_of[event].count(data)
    for trigger in (first, second):
        expected = models[trigger.table].shown()
        found = contents(trigger)
        assert {key: value[:2] for key, value in found.items()} == {key: value[:2] for key, value in expected.items()}
        for key, (_, _, saved) in expected.items():
            assert not saved or found[key][2] == saved
    assert instance.generated == generated
    end.triggers.remove_all()
    start.triggers.remove_all()


def at_once(work, count=4):
    """Run a function in several threads. `work(number)`."""
    ready = threading.Barrier(count)

    def run(number):
        ready.wait()
        work(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def totals(event):
    return [int(line.split()[1]) for line in read_hists(event.triggers).splitlines()[-3:]]


def test_te8_4_threads_count_in_one_table_and_no_hit_is_lost(instance):
    event = instance.event("h")
    event.triggers.write("hist:keys=fd:vals=bl:x=bl")
    at_once(lambda _number: [hit(event, fd=at % 100, bl=2) for at in range(2000)])
    (trigger,) = event.triggers.hists
    found = trigger.table.contents()
    assert (found.hits, found.dropped, len(found.entries)) == (8000, 0, 100)
    assert {entry.sums for entry in found.entries} == {(80, 160)}


def test_te8_4_threads_that_race_for_the_last_places_fill_the_table_exactly(instance):
    event = instance.event("h")
    event.triggers.write("hist:keys=fd:x=bl:size=128")
    at_once(lambda number: [hit(event, fd=(at * (1 + number % 2)) % 300) for at in range(300)])
    hits_, entries, dropped = totals(event)
    assert (hits_ + dropped, entries) == (1200, 128)
    (trigger,) = event.triggers.hists
    assert sum(entry.sums[0] for entry in trigger.table.contents().entries) == hits_
    hit(event, fd=trigger.table.contents().entries[0].key[0])
    assert totals(event) == [hits_ + 1, 128, dropped]


def test_te8_4_a_table_is_cleared_while_threads_count(instance):
    start, event = instance.event("start"), instance.event("end")
    start.triggers.write("hist:keys=fd:x=bl")
    text = "hist:keys=fd:vals=$x"
    event.triggers.write(text)
    for fd in range(50):
        hit(start, fd=fd)
    clear = f"{text}:clear"
    at_once(lambda number: [hit(event, fd=at % 50) if number else event.triggers.write(clear) for at in range(300)])
    event.triggers.write(clear)
    assert totals(event) == [0, 0, 0]
    hit(event, fd=1)
    assert totals(event) == [1, 1, 0]


def test_te8_5_onmax_keeps_the_greatest_value_of_all_threads(instance):
    event = instance.event("h")
    event.triggers.write("hist:keys=fd:x=wide:onmax($x).save(wide)")
    at_once(lambda number: [hit(event, fd=1, wide=4 * at + number) for at in range(500)])
    assert "\tmax:       1999" in read_hists(event.triggers)


def test_te8_9_a_text_moves_once_for_each_key(instance):
    event = instance.event("h")
    event.triggers.write("hist:keys=fd:t=name:onchange($t).ev(wide,wide,$t):onmax($t).ev(wide,wide,$t)")
    for fd, name in ((1, b"a"), (1, b"b"), (2, b"c"), (1, b"d")):
        hit(event, fd=fd, name=name, wide=fd)
    assert instance.generated == [("ev", fd, fd, name) for fd, name in ((1, b"a"), (1, b"a"), (2, b"c"), (2, b"c"))]


def test_te8_9_a_variable_that_is_used_up_is_used_once(instance):
    start, end = instance.event("start"), instance.event("end")
    start.triggers.write("hist:keys=fd:x=wide")
    end.triggers.write("hist:keys=fd:d=wide-$x")
    for fd in range(400):
        hit(start, fd=fd, wide=1)
    at_once(lambda _number: [hit(end, fd=fd, wide=2) for fd in range(400)])
    assert totals(end) == [400, 400, 0], "four threads have read each of 400 variables, and one has got it"


def test_te8_8_what_save_reads_from_another_histogram_has_to_be_set(instance):
    start, end = instance.event("start"), instance.event("end")
    start.triggers.write("hist:keys=fd:x=wide,t=name")
    end.triggers.write("hist:keys=fd:y=bl:onmax($y).save($x,$t)")
    hit(end, fd=1, bl=3)
    assert totals(end) == [0, 0, 0]
    hit(start, fd=1, wide=9, name=b"text")
    hit(end, fd=1, bl=3)
    assert f"\tmax: {3:10}  $x: {9:10}  $t: {'text':<32}" in read_hists(end.triggers)


def test_the_hits_of_four_threads_in_eight_tables_are_where_they_belong(instance):
    events = [instance.event(f"e{number}") for number in range(8)]
    for event in events:
        event.triggers.write("hist:keys=fd:x=bl")
        assert isinstance(event.triggers.hists[0].table, SharedHistogram)
    at_once(lambda number: [hit(events[(at + number) % 8], fd=number) for at in range(800)])
    assert all(totals(event) == [400, 4, 0] for event in events)
