"""From events to a tree: pairing, nesting, lost returns, several threads."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from fprobe.calls.call_values import CallValues
from fprobe.calls.records import Event, Values
from fprobe.cli.calls import ProgramFunctions, TraceWords
from fprobe.cli.console import Console
from fprobe.prototypes.described import of_signature
from fprobe.report.nesting import Nesting, tracks_of
from fprobe.report.tree import CallTree
from fprobe.run.launcher.call_events import CallEvents, RecordedProcess, perfetto_trace
from sandbox.abi.signatures import Array, Integer, Parameter, Pointer, Record, Signature
from sandbox.symbols.table import Symbol

SIGNATURE = Signature("f", Integer(64), (Parameter(Integer(64), "n"),))
FUNCTIONS = ProgramFunctions(
    {ip: Symbol(name, ip, 16, "") for ip, name in ((16, "f"), (32, "g"), (48, "h"))}, lambda _: SIGNATURE
)


def event(kind, ip, place, value=0, *, time=0, thread=1, newest=True, outer=None):
    """An entry ('>') or return ('<') of the call at `place` on the shadow stack, by default inside of the one below."""
    words = (value, 0, 0, 0, 0, 0) if kind == ">" else (value, 0, 0, 0)
    return Event(
        time, thread, ip, place, kind == ">", newest, value, Values(words), place - 1 if outer is None else outer
    )


def shown(*events):
    console = Console(json=False, color=False, verbosity=0)
    tree = CallTree(console)
    lines = [*tree.lines(Nesting().steps(events), TraceWords(FUNCTIONS, console)), *tree.flush()]
    return [re.sub(r"^.*\[ *(\d+)\] \| ", r"\1 ", line) for line in lines]


def test_a_call_without_calls_takes_one_line():
    assert shown(event(">", 16, 1, 3), event("<", 16, 1, 4)) == ["1 f(n=3) = 4;"]


def test_nesting():
    events = [event(">", 16, 1), event(">", 32, 2), event("<", 32, 2, 1), event("<", 16, 1, 2)]
    assert shown(*events) == ["1 f(n=0) {", "1   g(n=0) = 1;", "1 } = 2 /* f */"]


def test_threads_do_not_mix():
    events = [event(">", 16, 1), event(">", 32, 1, thread=2), event("<", 16, 1), event("<", 32, 1, thread=2)]
    assert shown(*events) == ["1 f(n=0) {", "2 g(n=0) {", "1 } = 0 /* f */", "2 } = 0 /* g */"]


def test_recursion_in_one_frame_size():
    events = [event(">", 16, 1), event(">", 16, 2), event("<", 16, 2, 1), event("<", 16, 1, 2)]
    assert shown(*events) == ["1 f(n=0) {", "1   f(n=0) = 1;", "1 } = 2 /* f */"]


def test_a_return_that_was_not_seen_ends_with_its_caller():
    events = [event(">", 16, 1), event(">", 32, 2), event("<", 16, 1, 2)]
    assert shown(*events) == ["1 f(n=0) {", "1   g(n=0) /* return not seen */;", "1 } = 2 /* f */"]


def test_a_return_that_was_not_seen_ends_with_the_next_call_above():
    events = [event(">", 16, 1), event(">", 32, 2), event(">", 48, 2), event("<", 48, 2, 1)]
    assert shown(*events) == ["1 f(n=0) {", "1   g(n=0) /* return not seen */;", "1   h(n=0) = 1;"]


def test_a_call_that_an_exception_has_ended_is_not_around_the_next():
    events = [event(">", 16, 1), event(">", 32, 2), event(">", 16, 1), event("<", 16, 1, 2)]
    assert shown(*events) == [
        "1 f(n=0) {",
        "1   g(n=0) /* return not seen */;",
        "1 } /* f */ /* return not seen */",
        "1 f(n=0) = 2;",
    ]


def test_a_call_on_another_stack_outlives_one_that_began_before_it():
    events = [event(">", 16, 1), event(">", 32, 2), event("<", 16, 1, 5, newest=False), event("<", 32, 2, 6)]
    assert shown(*events) == ["1 f(n=0) {", "1   g(n=0) {", "1 } = 5 /* f */", "1   } = 6 /* g */"]


SUSPENDED = [
    *[event(">", 16, 1, time=1), event(">", 32, 2, time=2), event("<", 16, 1, 5, newest=False, time=3)],
    *[event(">", 48, 3, outer=0, time=4), event("<", 48, 3, 7, time=5), event("<", 32, 2, 6, time=6)],
]
"""f resumes a coroutine, whose g is suspended until h has returned."""


def test_a_call_is_not_inside_of_one_that_is_suspended():
    assert shown(*SUSPENDED) == ["1 f(n=0) {", "1   g(n=0) {", "1 } = 5 /* f */", "1 h(n=0) = 7;", "1   } = 6 /* g */"]


def test_calls_that_are_not_inside_each_other_have_tracks_of_their_own():
    steps = list(Nesting().steps(SUSPENDED))
    assert [(call.ip, number) for call, number in tracks_of(steps).items()] == [(16, 0), (32, 1), (48, 0)]
    nested = [event(">", 16, 1), event(">", 32, 2), event("<", 32, 2, 1), event(">", 48, 2), event("<", 16, 1, 2)]
    steps = list(Nesting().steps(nested))
    assert [*tracks_of(steps).values()] == [0, 0, 0]
    assert [call.ended for call, begins in steps if not begins] == [0, 0, 0]


def test_a_return_without_an_entry_is_left_out():
    assert shown(event("<", 16, 1), event(">", 32, 2), event("<", 32, 2)) == ["1 g(n=0) = 0;"]


def test_unfinished_calls():
    calls = Nesting()
    list(calls.steps([event(">", 16, 1), event(">", 32, 2)]))
    assert [FUNCTIONS.symbols[call.ip].name for call in calls.unfinished()] == ["f", "g"]


BYTES = Array(Integer(8), 20_000)


def test_values_that_a_record_has_no_space_for_are_not_read():
    kinds = [Record((("a", BYTES),)), Integer(32), Record((("a", BYTES),)), *[Pointer("char *")] * 40]
    parameters = tuple(Parameter(kind, f"p{number}") for number, kind in enumerate(kinds))
    known = of_signature(Signature("f", Integer(64), parameters, is_c=True))
    assert [each.place is not None for each in known.arguments[:4]] == [True, True, False, True]
    assert all(each.place is not None for each in known.arguments[3:8])
    assert known.stack_words >= 2500 and len(known.followed(at_return=False)) == 5


CHARS, ANY = Pointer("const char *"), Pointer()


@pytest.mark.parametrize(
    ("address", "kind", "target", "text"),
    [
        (0, CHARS, None, "NULL"),
        (16, CHARS, None, "0x10 <fault>"),
        (16, CHARS, b"a\0b", '"a"'),
        (16, CHARS, b"\0", '""'),
        (16, CHARS, b"\xff\x01\n\0", r'"\xff\x01\n"'),
        (16, CHARS, b'\\xff\\"\0', r'"\\xff\\\""'),
        (16, CHARS, "ä\u0085\u202e\x1b[31m\0".encode(), r'"ä\xc2\x85\xe2\x80\xae\x1b[31m"'),
        (16, CHARS, b"x" * 64, '"' + "x" * 64 + '"...'),
        (16, CHARS, b"x" * 63 + "ä".encode()[:1], '"' + "x" * 63 + '"...'),
        (16, CHARS, b"x...\0", '"x..."'),
        (16, ANY, None, "0x10"),
        (16, ANY, b"ab\0", '0x10 "ab"'),
        (16, ANY, b"a\0", "0x10"),
        (16, ANY, b"\x01b\0", "0x10"),
        (16, ANY, b"ab", "0x10"),
    ],
)
def test_pointers(address, kind, target, text):
    signature = Signature("f", Integer(64), (Parameter(kind, "p"),))
    functions = ProgramFunctions({16: Symbol("f", 16, 1, "m")}, lambda _: signature)
    recorded = Values((address, 0, 0, 0, 0, 0), targets=((address, target),))
    assert CallValues(functions).arguments(16, recorded) == f"p={text}"


def test_of_very_many_functions_each_is_looked_at_when_it_is_called():
    asked = []

    def signature_of(function):
        asked.append(function.name)
        return SIGNATURE

    symbols = {ip: Symbol(f"f{ip}", ip, 1, "m") for ip in range(ProgramFunctions.AT_ONCE + 1)}
    functions = ProgramFunctions(symbols, signature_of)
    assert functions.planned() == {}
    assert asked == []
    assert functions.described(7) is functions.described(7)
    assert asked == ["f7"]
    assert list(ProgramFunctions({7: symbols[7]}, signature_of).planned()) == [7]
    assert asked == ["f7", "f7"]


def slices(trace):
    """(track, name or None for an end) of a Perfetto trace, in order, tracks numbered from 0 on as they come."""
    definitions = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="no package perfetto")
    events = [
        packet.track_event for packet in definitions.Trace.FromString(trace).packet if packet.HasField("track_event")
    ]
    known = {each: number for number, each in enumerate(dict.fromkeys(event.track_uuid for event in events))}
    begin = definitions.TrackEvent.TYPE_SLICE_BEGIN
    return [(known[event.track_uuid], event.name if event.type == begin else None) for event in events]


@pytest.mark.parametrize(
    ("events", "found"),
    [
        (SUSPENDED, [(0, "f"), (1, "g"), (0, None), (0, "h"), (0, None), (1, None)]),
        (
            [
                event(">", 16, 1),
                event(">", 32, 2),
                event(">", 48, 3),
                event(">", 48, 2, time=1),
                event("<", 16, 1, time=2),
            ],
            [(0, "f"), (0, "g"), (0, "h"), (0, None), (0, None), (0, "h"), (0, None), (0, None)],
        ),
    ],
)
def test_every_slice_of_a_perfetto_trace_ends_on_its_track(events, found):
    """Also that of a call which an exception has ended."""
    pytest.importorskip("perfetto", reason="no package perfetto")
    names = SimpleNamespace(function=lambda ip: FUNCTIONS.symbols[ip].name)
    process = RecordedProcess(1, ["app"], names, CallEvents(events, 0))
    assert slices(perfetto_trace([process])) == found
