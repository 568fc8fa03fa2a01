"""fprobe.event: definitions, filters and triggers, records as dicts, text and arrays, live, and what stays afterwards."""

import ctypes
import errno
import threading

import pytest

import fprobe
import sandbox
from fprobe.tracefs import tracefs

PROGRAM = """
define i64 @pe_add(i64 %x, i64 %y) noinline { %r = add i64 %x, %y  ret i64 %r }
define ptr @pe_self(ptr %p) noinline { ret ptr %p }
"""
HELLO = ctypes.create_string_buffer(b"hello")
ADD = "p:adds pe_add x=%di:u64 y=%si:s32"


@pytest.fixture(scope="module")
def program():
    module = sandbox.load(PROGRAM, name="peprog")
    yield module
    module.unload()


def test_records_are_dicts_with_typed_values(program):
    with fprobe.event(ADD, "r:sums pe_add $retval:s64") as both:
        program["pe_add"](7, -2)
        first, second = both.records()
    assert (first["event"], first["x"], first["y"], first["lost"]) == ("adds", 7, -2, 0)
    assert (second["event"], second["arg1"]) == ("sums", 5)
    assert first["tid"] == threading.get_native_id() and first["time"] < second["time"]
    assert first["__probe_ip"] == program.symbol("pe_add").address


@pytest.mark.parametrize("letter", "pf")
def test_a_filter_keeps_what_it_passes_and_hits_count_all(program, letter):
    with fprobe.event(f"{letter}:adds pe_add a=$arg1", filter="a > 2 && a < 5") as adds:
        for number in range(10):
            program["pe_add"](number, 0)
        assert [record["a"] for record in adds.records()] == [3, 4]
        assert (adds.hits, adds.missed) == (10, 0)


def test_triggers_are_set_and_removed(program):
    with fprobe.event(ADD, trigger=["hist:keys=x", "traceoff:1 if x == 3"]) as adds:
        for number in range(5):
            program["pe_add"](number, 0)
        assert tracefs.read(f"{adds.instance}/events/kprobes/adds/hist").count("hitcount:") >= 5
        assert [record["x"] for record in adds.records()] == [0, 1, 2, 3]
        assert tracefs.read(f"{adds.instance}/tracing_on") == "0\n"
    assert tracefs.read("tracing_on") == "1\n" and tracefs.listdir("instances") == []
    assert tracefs.read("dynamic_events") == ""


def test_definitions_of_one_event_are_deleted_together(program):
    with fprobe.event("p:both pe_add x=$arg1", "p:both pe_self x=$arg1") as both:
        program["pe_add"](7, 0)
        program["pe_self"](9)
    assert [record["x"] for record in both.records()] == [7, 9] and tracefs.read("dynamic_events") == ""


def test_an_event_that_another_instance_has_enabled_stays_defined(program):
    adds = fprobe.event(ADD).attach()
    tracefs.mkdir("instances/other")
    tracefs.write("instances/other/events/kprobes/adds/enable", "1")
    for _ in range(2):
        with pytest.raises(OSError, match=r"kprobes/adds cannot be deleted.* detach again") as refused:
            adds.detach()
        program["pe_add"](1, 2)
    assert refused.value.errno == errno.EBUSY and not adds.attached and "kprobes/adds" in tracefs.read("dynamic_events")
    assert tracefs.listdir("instances") == ["other"] and tracefs.read("instances/other/trace").count("adds:") == 2
    with pytest.raises(OSError, match="cannot be deleted"):
        adds.attach()
    tracefs.rmdir("instances/other")
    adds.detach()
    assert tracefs.read("dynamic_events") == "" and adds.hits == 0 and adds.records() == []
    with adds:
        program["pe_add"](1, 2)
    assert len(adds.records()) == 1


def test_an_instance_of_which_a_file_is_open_stays_attached(program):
    adds = fprobe.event(ADD).attach()
    program["pe_add"](1, 2)
    with tracefs.open(f"{adds.instance}/trace_pipe"), pytest.raises(OSError, match="are open; close them first"):
        adds.detach()
    assert adds.attached and len(adds.records()) == 1
    adds.detach()
    assert len(adds.records()) == 1 and tracefs.read("dynamic_events") == "" and tracefs.listdir("instances") == []


def test_text_and_memory(program):
    with fprobe.event("p:selves pe_self name=+0(%di):string far=@16:string b=+0(%di):u8[3]") as selves:
        program["pe_self"](ctypes.addressof(HELLO))
        record = selves.records()[0]
        assert selves.text().endswith('name="hello" far=(fault) b={104,101,108}\n')
    assert (record["name"], record["far"], record["b"]) == ("hello", None, [104, 101, 108])


def test_what_was_recorded_stays_when_it_is_detached(program):
    with fprobe.event(ADD) as adds:
        program["pe_add"](1, 2)
    assert not adds.attached and adds.hits == 1
    assert [record["x"] for record in adds.records()] == [1]
    assert [record["x"] for record in adds.follow()] == [1]
    program["pe_add"](3, 4)
    assert len(adds.records()) == 1 and list(adds.follow()) == []


def test_it_can_be_attached_again_and_begins_anew(program):
    adds = fprobe.event(ADD)
    for number in (5, 6):
        with adds:
            program["pe_add"](number, 0)
            assert [record["x"] for record in adds.records()] == [number]
    with adds, pytest.raises(OSError, match="already attached"):
        adds.attach()


def test_following_gives_each_record_once_and_ends_after_the_time_limit(program):
    with fprobe.event(ADD) as adds:
        worker = threading.Thread(target=lambda: [program["pe_add"](number, 0) for number in range(3000)])
        worker.start()
        found = [record["x"] for record in adds.follow(timeout=0.3)]
        worker.join()
        assert found == list(range(3000))
        program["pe_add"](1, 1)
        assert next(adds.follow(timeout=30))["x"] == 1
        assert list(adds.follow(timeout=0)) == []
        with pytest.raises(ValueError, match="timeout is -1"):
            next(adds.follow(timeout=-1))


def test_following_passes_over_what_was_recorded_before(program):
    with fprobe.event(ADD) as first:
        program["pe_add"](1, 1)
        with fprobe.event("p:others pe_self") as others:
            program["pe_add"](2, 2)
            program["pe_self"](0)
            assert [record["event"] for record in others.follow(timeout=0)] == ["others"]
            assert [record["x"] for record in first.records()] == [1, 2]


def test_arrays_are_structured(program):
    pytest.importorskip("numpy")
    with fprobe.event(ADD) as adds:
        for number in range(100):
            program["pe_add"](number, -number)
        blocks = adds.arrays()["adds"]
        assert [int(x) for block in blocks for x in block.events["x"]] == list(range(100))
        assert [int(y) for block in blocks for y in block.events["y"]] == [-n for n in range(100)]


@pytest.mark.parametrize(
    ("definition", "options", "message", "caret"),
    [
        ("p:x pe_add a=%zz", {}, "Invalid register name", "p:x pe_add a=%zz|             ^"),
        ("p:x   pe_add a=%di:u99", {}, "Unknown type is specified", "p:x pe_add a=%di:u99|                 ^"),
        (ADD, {"filter": "x > 1 && z == 2"}, "Field not found", "x > 1 && z == 2|           ^"),
        (ADD, {"trigger": "hist:keys=zz"}, "Couldn't find field", "hist:keys=zz|          ^"),
    ],
)
def test_errors_are_a_sentence_with_a_caret_and_nothing_stays(program, definition, options, message, caret):
    with pytest.raises(OSError) as refused, fprobe.event(definition, **options):
        pass
    text, marked = caret.split("|")
    assert refused.value.errno == errno.EINVAL
    lines = refused.value.strerror.splitlines()
    assert lines[0] == message and lines[1].strip() == text
    assert lines[2].index("^") - 2 == marked.index("^")
    assert tracefs.read("dynamic_events") == ""


def test_other_bad_input(program):
    with pytest.raises(ValueError, match="at least one definition"):
        fprobe.event()
    with pytest.raises(OSError, match="must begin with the letter"), fprobe.event("q:x pe_add"):
        pass
    for line in ("p:r", "r:r", "f:x", "t", "p:group/name"):
        with pytest.raises(OSError, match=f"the line is '{line}', without a place; add a function"):
            tracefs.write("dynamic_events", line)
    with pytest.raises(OSError, match="does not define a probe"), fprobe.event("s:only u64 x"):
        pass
    tracefs.write("dynamic_events", "")
    with pytest.raises(OSError, match="Invalid probed address"), fprobe.event(ADD, "p:y pe_nothing"):
        pass
    assert tracefs.read("dynamic_events") == ""
