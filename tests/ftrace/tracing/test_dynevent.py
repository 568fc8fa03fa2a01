"""Lines of definitions: how a write is split, which type takes a line, deletion and its refusals."""

from __future__ import annotations

import errno

import pytest
from sampled import in_stress

from ftrace.tracing.events import dynevent
from ftrace.tracing.events import registry as registry_module
from ftrace.tracing.events.dynevent import DynamicEvent, LineType, NotThisType, argv_split, run_commands
from ftrace.tracing.events.registry import EventRegistry, TraceEvent, enable_state, set_all_enabled
from ftrace.tracing.instances.error_log import ErrorLog
from ftrace.tracing.instances.trace_array import TraceArray, global_trace
from ftrace.tracing.probe_args.errors import ErrorCode, Finding, ProbeError


def commands(text):
    done = []
    try:
        run_commands(text, done.append)
    except OSError as failed:
        done.append(failed.errno)
    return done


def test_pe1_4_comments_and_lines():
    assert commands("a\n\n b # c\n#d\ne") == ["a", "", " b ", "", "e"]
    assert commands("") == []
    assert commands('s=\\"a#b"\n') == ['s=\\"a']


def test_pe1_6_the_longest_line():
    assert commands("a" * 4095) == ["a" * 4095]
    assert commands("a" * 4094 + "\nb") == ["a" * 4094, "b"]
    assert commands("x\n" + "a" * 4095 + "\n") == ["x", errno.EINVAL]
    assert commands("a" * 4096) == [errno.EINVAL]
    assert len(commands("a" * 4000 + "\n" + "b" * 4000 + "\n")) == 2


def test_pe1_5_the_first_failure_stops_a_write():
    done = []

    def create(line):
        done.append(line)
        if line == "b":
            raise OSError(errno.EEXIST, "b")

    with pytest.raises(OSError):
        run_commands("a\nb\nc\n", create)
    assert done == ["a", "b"]


@pytest.mark.parametrize("text", ["a\nb\0\nc\n", "a\n\0", "a\nb # \0\n"])
def test_pe1_4_a_line_with_a_nul_is_refused(text):
    done = []
    with pytest.raises(OSError) as raised:
        run_commands(text, done.append)
    assert raised.value.errno == errno.EINVAL and done == ["a"]


def test_pe1_7_words():
    assert argv_split(" p:a\tf\v\f\r x \n") == ["p:a", "f", "x"]


class Thing(DynamicEvent):
    def __init__(self, line_type, name):
        self.line_type, self.name, self.busy = line_type, name, False

    @property
    def is_busy(self):
        return self.busy

    def matches(self, group, event, words):
        return event in ("", self.name) and group in (None, "things")

    def free(self):
        if self.busy:
            raise OSError(errno.EBUSY, self.name)
        dynevent.dyn_event_remove(self)

    def __str__(self):
        return f"x:things/{self.name}"


class Things(LineType):
    def create(self, line):
        words = argv_split(line)
        if words[0][0] != "x":
            raise NotThisType
        if len(words) > 1:
            raise OSError(errno.ERANGE, "words")
        dynevent.dyn_event_add(Thing(self, words[0][2:]))


@pytest.fixture
def things(monkeypatch):
    monkeypatch.setattr(dynevent, "_types", [])
    monkeypatch.setattr(dynevent, "_events", [])
    made = Things()
    dynevent.dyn_event_register(made)
    return made


def number(call, *arguments):
    with pytest.raises(OSError) as raised:
        call(*arguments)
    return raised.value.errno


def test_pe1_8_pe1_9_each_type_is_asked_until_one_takes_the_line(things):
    dynevent.create_dyn_event("x:a")
    dynevent.create_dyn_event("   ")
    assert number(dynevent.create_dyn_event, "y:a") == errno.EINVAL
    assert number(dynevent.create_dyn_event, "x:a b") == errno.ERANGE
    assert number(dynevent.create_of_type, "!x:a", things) == errno.EINVAL
    assert dynevent.show() == "x:things/a\n"


@pytest.mark.parametrize("line", ["-", "-a", "-:", "!", "!:", "!ev", "-x:a"])
def test_pe7b_2_what_deletes_nothing(things, line):
    dynevent.create_dyn_event("x:a")
    assert number(dynevent.create_dyn_event, line) == errno.EINVAL
    assert dynevent.show() == "x:things/a\n"


@pytest.mark.parametrize("line", ["-:nosuch", "-:/", "-:things.a", "-:other/", "-:other/a"])
def test_pe7b_2_no_match(things, line):
    dynevent.create_dyn_event("x:a")
    assert number(dynevent.create_dyn_event, line) == errno.ENOENT


@pytest.mark.parametrize("line", ["-:a", "-:things/a", "-:things/", "!x:a", "!anything:things/a"])
def test_pe7b_1_pe7b_4_deletion(things, line):
    dynevent.create_dyn_event("x:a")
    dynevent.create_dyn_event(line)
    assert dynevent.show() == ""


def test_pe7b_2_the_first_that_is_busy_stops_a_deletion(things):
    for name in "abc":
        dynevent.create_dyn_event(f"x:{name}")
    dynevent.dynamic_events()[1].busy = True
    assert number(dynevent.create_dyn_event, "-:things/") == errno.EBUSY
    assert dynevent.show() == "x:things/b\nx:things/c\n"


def test_pe1_2_nothing_is_deleted_if_one_is_busy(things):
    for name in "abc":
        dynevent.create_dyn_event(f"x:{name}")
    dynevent.dynamic_events()[2].busy = True
    assert number(dynevent.release_all) == errno.EBUSY
    assert len(dynevent.dynamic_events()) == 3
    dynevent.dynamic_events()[2].busy = False
    dynevent.release_all(things)
    assert dynevent.dynamic_events() == []


# -- events -------------------------------------------------------------------------------------------------------


class Armed(TraceEvent):
    def __init__(self, name, fails=0):
        super().__init__("group", name, (), "")
        self.fails, self.armed = fails, False

    def arm(self):
        if self.fails:
            raise OSError(self.fails, self.name)
        self.armed = True

    def disarm(self):
        self.armed = False


def test_te1_2_ids_are_the_lowest_free_ones():
    registry = EventRegistry()
    events = [Armed(name) for name in "abc"]
    for event in events:
        registry.add(event)
    assert [event.id for event in events] == [20, 21, 22]
    registry.remove(events[1])
    assert events[1].removed
    again = Armed("d")
    registry.add(again)
    assert again.id == 21
    assert number(registry.add, Armed("a")) == errno.EEXIST


@pytest.mark.parametrize("ids", [1 << 10, in_stress(1 << 16)])
def test_te1_2_no_event_is_registered_without_a_free_id(monkeypatch, ids):
    assert registry_module._IDS == 1 << 16
    monkeypatch.setattr(registry_module, "_IDS", ids)
    registry = EventRegistry()
    events = [TraceEvent("g", f"e{number}", [], "") for number in range(ids - 20)]
    for event in events:
        registry.add(event)
    assert [events[0].id, events[-1].id] == [20, ids - 1]
    with pytest.raises(OSError, match="no id is free") as failed:
        registry.add(TraceEvent("g", "more", [], ""))
    assert failed.value.errno == errno.ENODEV and registry.find("g", "more") is None
    registry.remove(events[7])
    registry.add(TraceEvent("g", "more", [], ""))
    assert registry.find("g", "more").id == 27


def test_te1_5_te1_6_several_events():
    events = [Armed("a"), Armed("b", errno.ENOENT), Armed("c", errno.EBUSY), Armed("d")]
    files = [event.file for event in events]
    assert enable_state([]) == "?" and enable_state(files) == "0"
    assert number(set_all_enabled, events, True) == errno.ENOENT
    assert [event.enabled for event in events] == [True, False, False, True] == [event.armed for event in events]
    assert enable_state(files) == "X" and enable_state([files[0], files[3]]) == "1"
    assert number(set_all_enabled, [], False) == errno.EINVAL


def test_pe1_12_buffers_are_emptied_only_for_events_that_were_enabled(things, monkeypatch):
    emptied = []
    monkeypatch.setattr(TraceArray, "empty", lambda self: emptied.append(self))
    other = TraceArray("other")
    monkeypatch.setattr(
        Thing, "free", lambda self: (dynevent.event_registry.remove(event), dynevent.dyn_event_remove(self))
    )
    for arrays in ([], [global_trace()], [other], [global_trace(), other]):
        event = Armed("of_a_thing")
        dynevent.event_registry.add(event)
        dynevent.create_dyn_event("x:a")
        event.set_enabled(False)
        for array in arrays:
            event.set_enabled(True, event.file_in(array))
            event.set_enabled(False, event.file_in(array))
        dynevent.create_dyn_event("-:a")
        assert emptied == arrays
        emptied.clear()


# -- error_log ----------------------------------------------------------------------------------------------------


def test_pe8_1_pe8_2_pe8_3_entries_and_carets():
    log = ErrorLog()
    words = ["p:ev", "func", "a=%zz"]
    log.add_probe_error("trace_kprobe", words, ProbeError(errno.EINVAL, Finding(ErrorCode.BAD_REG_NAME, 2, 2)))
    first, command, caret = log.read().splitlines()
    assert first.endswith("] trace_kprobe: error: Invalid register name") and first[0] == "["
    assert command == "  Command: p:ev func a=%zz"
    assert caret == " " * (11 + 12) + "^"
    log.add_probe_error("trace_kprobe", words, ProbeError(errno.EEXIST, Finding(ErrorCode.DIFF_ARG_TYPE, 5, 9)))
    assert log.read().splitlines()[-1] == " " * (11 + len("p:ev func a=%zz") + 1) + "^"


def test_pe8_1_the_ninth_entry_replaces_the_first():
    log = ErrorLog()
    for number in range(9):
        log.add("s", f"m{number}", "c", 0)
    assert [line[-2:] for line in log.read().splitlines()[::3]] == [f"m{number}" for number in range(1, 9)]
    log.clear()
    assert log.read() == ""
