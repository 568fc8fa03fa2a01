"""The action snapshot() of hist triggers: the snapshot is that of the hit that changed the value."""

import threading

import pytest

import sandbox
from fprobe.tracefs import tracefs

PROGRAM = "define i64 @cs_f(i64 %key, i64 %value) noinline { ret i64 %value }"
EVENT = "events/kprobes/cshot"


@pytest.fixture(scope="module")
def program():
    module = sandbox.load(PROGRAM, name="csprog")
    yield module
    module.unload()


@pytest.fixture
def hit(program):
    tracefs.write("kprobe_events", "p:cshot cs_f key=%di:u64 value=%si:u64", append=True)
    tracefs.write(f"{EVENT}/enable", "1")
    tracefs.write("trace", "")
    yield lambda *values, key=1: [program["cs_f"](key, value) for value in values]
    tracefs.write(f"{EVENT}/enable", "0")
    for line in tracefs.read(f"{EVENT}/trigger").splitlines():
        if not line.startswith("#"):
            tracefs.write(f"{EVENT}/trigger", "!" + line.rpartition(" [")[0])
    tracefs.write("kprobe_events", "-:cshot", append=True)
    tracefs.write("snapshot", "0")
    tracefs.write("trace", "")


def values(file):
    """The values of the records that a file shows, in its order."""
    return [int(line.rpartition("value=")[2]) for line in tracefs.read(file).splitlines() if "value=" in line]


def test_the_snapshot_of_onmax_ends_with_the_highest_value(hit):
    tracefs.write(f"{EVENT}/trigger", "hist:keys=key:x=value:onmax($x).snapshot()")
    hit(3, 2, 9, 1, 5)
    assert values("snapshot") == [2, 9]
    assert values("trace") == [3, 1, 5]  # the first snapshot became the buffer at the second one, as in the kernel
    assert "onmax($x) }:          9" in tracefs.read(f"{EVENT}/hist")
    hit(7)
    assert values("snapshot") == [2, 9] and values("trace") == [3, 1, 5, 7]
    hit(10, 4)
    assert values("snapshot") == [3, 1, 5, 7, 10] and values("trace") == [2, 9, 4]


def test_the_snapshot_of_onchange_ends_with_the_last_change(hit):
    tracefs.write(f"{EVENT}/trigger", "hist:keys=key:x=value:onchange($x).snapshot()")
    hit(4, 4, 4)
    assert values("snapshot") == [4] and values("trace") == [4, 4]


def test_it_holds_for_each_slot_and_in_other_threads(hit):
    tracefs.write(f"{EVENT}/trigger", "hist:keys=key:x=value:onmax($x).snapshot()")
    threads = [threading.Thread(target=hit, args=numbers) for numbers in ((1,), (8, 2), (3,))]
    for thread in threads:
        thread.start()
        thread.join()
    assert values("snapshot")[-1] == 8
    assert sorted(values("snapshot") + values("trace")) == [1, 2, 3, 8]
    shown = [value for cpu in tracefs.listdir("per_cpu") for value in values(f"per_cpu/{cpu}/snapshot")]
    assert sorted(shown) == sorted(values("snapshot"))


def test_emptying_the_buffer_leaves_the_snapshot(hit):
    tracefs.write(f"{EVENT}/trigger", "hist:keys=key:x=value:onmax($x).snapshot()")
    hit(6, 1, 2)
    assert values("snapshot") == [6]
    tracefs.write("trace", "")
    assert values("trace") == [] and values("snapshot") == [6]
    hit(5, 7, 3)
    assert values("snapshot") == [5, 7] and values("trace") == [6, 3]


def test_an_old_snapshot_becomes_the_buffer(hit):
    hit(100)
    tracefs.write("snapshot", "1")
    tracefs.write(f"{EVENT}/trigger", "hist:keys=key:x=value:onmax($x).snapshot()")
    hit(6, 1)
    assert values("snapshot") == [6] and values("trace") == [100, 1]


def test_a_snapshot_by_hand_afterwards_exchanges_what_is_shown(hit):
    tracefs.write(f"{EVENT}/trigger", "hist:keys=key:x=value:onmax($x).snapshot()")
    hit(6, 1, 2)
    assert values("snapshot") == [6]
    tracefs.write(f"{EVENT}/trigger", "!hist:keys=key:x=value:onmax($x).snapshot()")
    tracefs.write("snapshot", "1")
    assert values("snapshot") == [1, 2] and values("trace") == [6]
    hit(3)
    assert values("trace") == [6, 3]
