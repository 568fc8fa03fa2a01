"""Records that are read while events are deleted, defined again, or followed by several threads."""

import collections
import itertools
import threading

import pytest

import fprobe
import sandbox
from fprobe.tracefs import tracefs
from ftrace.ring_buffer import pages
from ftrace.ring_buffer.view import RingView
from ftrace.tracing.instances.trace_array import global_trace
from ftrace.tracing.output.trace import record_format

PROGRAM = """
define i64 @fo_leaf(i64 %n) noinline { %r = add i64 %n, 1  ret i64 %r }
define i64 @fo_spin(i64 %n) {
entry: br label %loop
loop: %i = phi i64 [0, %entry], [%k, %loop]
 %k = call i64 @fo_leaf(i64 %i)
 %c = icmp ult i64 %k, %n
 br i1 %c, label %loop, label %done
done: ret i64 %i }
"""
LEAF = "f:leafs fo_leaf n=$arg1:s64"


@pytest.fixture(scope="module")
def program():
    module = sandbox.load(PROGRAM, name="foprog")
    yield module
    module.unload()


@pytest.fixture
def decoded(monkeypatch):
    """A list that gets every event that is decoded."""
    found = []

    def counted(data, after=None):
        for event in real(data, after):
            found.append(event)
            yield event

    real = pages.decode
    monkeypatch.setattr(pages, "decode", counted)
    return found


def define(line, path="events/fprobes/leafs/enable"):
    tracefs.write("dynamic_events", line + "\n", append=True)
    tracefs.write(path, "1")


def delete(path="events/fprobes/leafs/enable"):
    tracefs.write(path, "0")
    tracefs.write("dynamic_events", "-:leafs\n", append=True)


def test_following_decodes_each_record_once_however_many_wait(program, decoded):
    with fprobe.event(LEAF) as leafs:
        program["fo_spin"](3000)
        assert len(list(itertools.islice(leafs.follow(), 3000))) == 3000
        assert len(decoded) == 3000


def test_following_decodes_each_record_once_though_they_arrive_one_by_one(program, decoded):
    with fprobe.event(LEAF) as leafs:
        following = leafs.follow()
        for _ in range(1000):
            program["fo_leaf"](1)
            next(following)
        assert len(decoded) == 1000


@pytest.mark.stress
def test_following_does_not_visit_the_pages_that_it_has_read(program, monkeypatch):
    visited = []
    real = RingView.meta_word
    monkeypatch.setattr(
        RingView, "meta_word", lambda self, page, field: visited.append(page) or real(self, page, field)
    )
    with fprobe.event(LEAF) as leafs:
        program["fo_spin"](30_000)  # more than a hundred sub-buffers
        following = leafs.follow()
        read = list(itertools.islice(following, 30_000))
        visited.clear()
        program["fo_leaf"](1)
        assert next(following)["n"] == 1 and len(visited) < 20
    assert len(read) == 30_000


@pytest.mark.stress
def test_followers_get_each_record_once_though_the_event_is_detached(program):
    for _ in range(3):
        got = []
        with fprobe.event(LEAF) as leafs:
            threads = [threading.Thread(target=lambda into: into.extend(leafs.follow()), args=(got,)) for _ in "ab"]
            for thread in threads:
                thread.start()
            for _ in range(10):
                program["fo_spin"](1000)
        for thread in threads:
            thread.join()
        again = collections.Counter((record["time"], record["n"]) for record in got)
        assert max(again.values()) == 1 and len(got) + sum(record["lost"] for record in got) == 10_000


def test_records_of_a_deleted_event_are_still_printed(program):
    """A reader of `trace` has copied them, and knows the event, when another thread deletes it."""
    define(LEAF)
    program["fo_leaf"](7)
    records, shown = list(global_trace().buffer.records()), record_format(global_trace(), {})
    delete()
    assert "".join(shown.lines(records)).endswith("leafs: (fo_leaf+0x0/0xa [foprog]) n=7\n")


@pytest.mark.parametrize("instance", ["", "instances/fo/"])
def test_the_next_event_gets_no_record_of_a_deleted_one(program, instance):
    if instance:
        tracefs.mkdir(instance)
    path = f"{instance}events/fprobes/leafs/enable"
    define(LEAF, path)
    program["fo_leaf"](7)
    delete(path)
    define("f:leafs fo_leaf other=$arg1:u8", path)
    assert "fo_leaf" not in tracefs.read(f"{instance}trace")
    delete(path)
    if instance:
        tracefs.rmdir(instance)


@pytest.mark.stress
def test_trace_is_read_while_events_are_defined_and_deleted(program):
    lines = [LEAF, "f:leafs fo_leaf a=$arg1 b=$arg1 c=$arg1", "f:leafs fo_leaf%return t=+0($retval):string"]
    failed, done = [], threading.Event()

    def read():
        while not done.is_set() and not failed:
            try:
                tracefs.read("trace")
            except Exception as error:
                failed.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for line in lines * 20:
        define(line)
        program["fo_spin"](30)
        delete()
    done.set()
    for reader in readers:
        reader.join()
    assert not failed
