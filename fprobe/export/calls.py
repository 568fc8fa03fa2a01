"""The calls of a trace.dat, from pairs of records to trees, folded stacks and Perfetto's format.

A call is a pair of funcgraph_entry and funcgraph_exit of the function_graph tracer, or a pair of hits of probes at a
function's entry and return. Any other record is an instant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fprobe.export.formats import EventFormat
from fprobe.export.perfetto import PerfettoTrace
from fprobe.export.print_fmt import Addresses, arguments, parameters, result
from fprobe.export.trace_dat_reader import Instance, Trace
from fprobe.report.durations import duration
from fprobe.report.speedscope import speedscope as speedscope_of
from fprobe.report.tree import HEADER, NOT_SEEN, CallTree, folded_stack
from ftrace.hit.events.builtin_records import FTRACE_TRAMPOLINE_MARKER
from ftrace.ring_buffer.formatters import Memo, Show, compiled
from ftrace.ring_buffer.reader import Record

ENTER, LEAVE, INSTANT = "enter", "leave", "instant"
_SHOWS = {ENTER: parameters, LEAVE: result, INSTANT: arguments}
_GRAPH_ENTRY, _GRAPH_EXIT = "funcgraph_entry", "funcgraph_exit"
_PID = 1
"""The process id of the top level in Perfetto's format, a placeholder: a trace does not contain it."""


@dataclass
class Call:
    """A call. `depth`: number of its callers; `entered`: time of its entry; `inner`: time spent in calls that it made.

    `level`: its depth by the function_graph tracer, -1 for others.
    """

    thread: int
    depth: int
    function: int
    name: str
    entered: int
    arguments: str
    inner: int = 0
    level: int = -1


@dataclass
class Step:
    """A record interpreted: the entry or the return of a call, or an instant. `kind`: ENTER, LEAVE or INSTANT."""

    kind: str
    record: Record
    name: str
    text: str
    """The arguments, the result, or the text of an instant."""
    stack: tuple[Call, ...]
    """The thread's calls in progress, outermost first, including the one that is entered or left."""
    duration: int = 0
    ended: tuple[Call, ...] = ()
    """Calls that have ended before it, innermost first, and whose returns were not recorded."""


@dataclass
class Calls:
    """The calls of a trace array, thread by thread."""

    trace: Trace
    instance: Instance
    stacks: dict[int, list[Call]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._shows = {kind: Memo(partial(self._show_of, show)) for kind, show in _SHOWS.items()}

    def steps(self) -> Iterator[Step]:
        """One step for each record, in order of time. A call whose return is missing has no LEAVE; see `Step.ended`."""
        returning = self._returning()
        for record in self.trace.records(self.instance):
            event = self.trace.formats.get(record.common.type)
            values = event.values(record.data) if event is not None else {}
            name = event.name if event is not None else f"type {record.common.type}"
            stack = self.stacks.setdefault(record.common.pid, [])
            function = _entered(name, values, returning)
            if function is not None:
                yield self._enter(record, function, stack, values.get("depth", -1) if name == _GRAPH_ENTRY else -1)
            elif (function := _left(name, values)) is not None and any(call.function == function for call in stack):
                yield self._leave(record, function, stack)
            else:
                yield Step(INSTANT, record, name, self._text(record, INSTANT), tuple(stack))

    def _enter(self, record: Record, function: int, stack: list[Call], level: int) -> Step:
        ended = _popped(stack, lambda call: 0 <= level <= call.level)
        name = self.trace.symbols.name(function).partition(" ")[0]
        call = Call(record.common.pid, len(stack), function, name, record.stamp, self._text(record, ENTER), level=level)
        stack.append(call)
        return Step(ENTER, record, call.name, call.arguments, tuple(stack), ended=ended)

    def _leave(self, record: Record, function: int, stack: list[Call]) -> Step:
        ended = _popped(stack, lambda call: call.function != function)
        before = tuple(stack)
        call = stack.pop()
        taken = record.stamp - call.entered
        if stack:
            stack[-1].inner += taken
        return Step(LEAVE, record, call.name, self._text(record, LEAVE), before, taken, ended)

    def _text(self, record: Record, kind: str) -> str:
        return self._shows[kind][record.common.type](record.data)

    def _show_of(self, show: Callable[[EventFormat, Addresses], Show], number: int) -> Show:
        event = self.trace.formats.get(number)
        if event is None or event.group == "ftrace":
            return compiled([])
        return show(event, Addresses(Memo(self.trace.symbols.describe), Memo(self.trace.symbols.name)))

    def _returning(self) -> set[int]:
        """Addresses of the functions whose returns were recorded by probes."""
        kinds = {number: event for number, event in self.trace.formats.items() if _has(event, "__probe_func")}
        if not kinds:
            return set()
        records = (record for record in self.trace.records(self.instance) if record.common.type in kinds)
        return {kinds[record.common.type].address("__probe_func", record.data) for record in records}


def _popped(stack: list[Call], is_ended: Callable[[Call], bool]) -> tuple[Call, ...]:
    """Take the innermost calls of which that holds from a stack: ended by an exception or a longjmp, or records are lost."""
    found = []
    while stack and is_ended(stack[-1]):
        found.append(stack.pop())
    return tuple(found)


def _has(event: Any, name: str) -> bool:
    return any(field.name == name for field in event.fields)


def _entered(name: str, values: dict[str, Any], returning: set[int]) -> int | None:
    if name == _GRAPH_ENTRY:
        return _address(values, "func")
    ip = _address(values, "__probe_ip")
    return ip if ip in returning else None


def _left(name: str, values: dict[str, Any]) -> int | None:
    if name == _GRAPH_EXIT:
        return _address(values, "func")
    return _address(values, "__probe_func")


def _address(values: dict[str, Any], name: str) -> int | None:
    found = values.get(name)
    return found if isinstance(found, int) else None


def tree_lines(trace: Trace) -> Iterator[str]:
    """The lines of a tree of calls, like the output of uftrace and of the function_graph tracer."""
    yield HEADER
    for instance in trace.instances:
        if instance.name:
            yield f"# instance {instance.name}"
        yield from _tree_of(trace, instance)


def _tree_of(trace: Trace, instance: Instance) -> Iterator[str]:
    tree = CallTree()
    for step in Calls(trace, instance).steps():
        for call in step.ended:
            yield from tree.exit(call, "", call.name, "", NOT_SEEN)
        if step.kind == ENTER:
            yield from tree.entry(step.stack[-1], f"{step.name}({step.text})")
        elif step.kind == LEAVE:
            yield from tree.exit(step.stack[-1], duration(step.duration), step.name, step.text)
        else:
            text = f"{step.name}: {step.text}" if step.text else step.name
            yield from tree.instant(step.record.common.pid, len(step.stack), text)
    yield from tree.flush()


def folded_lines(trace: Trace) -> Iterator[str]:
    """Folded stacks: a line `comm;outer;inner VALUE` for each stack, sorted; `instance:NAME;comm` for one of an instance.

    The value is the nanoseconds that a function took, excluding its callees. If the trace has no calls, it is the number of
    times that a stack or an event was recorded.
    """
    values, _ = _stack_values(trace)
    yield from (f"{stack} {value}" for stack, value in sorted((folded_stack(each), values[each]) for each in values))


def speedscope(trace: Trace, title: str) -> str:
    """The same stacks as a file of speedscope, with a profile for each name of threads; an instance is one, too."""
    values, unit = _stack_values(trace)
    profiles: dict[str, list[tuple[Sequence[str], int]]] = {}
    for (thread, *frames), value in sorted(values.items()):
        profiles.setdefault(thread, []).append((frames, value))
    return speedscope_of(title, profiles, unit)


def _stack_values(trace: Trace) -> tuple[Counter[tuple[str, ...]], str]:
    """By stack, with the thread's name in front, the nanoseconds of its innermost call, or the number of times; and the unit."""
    times: Counter[tuple[str, ...]] = Counter()
    counts: Counter[tuple[str, ...]] = Counter()
    for instance, step in all_steps(trace):
        front = [f"instance:{instance.name}"] if instance.name else []
        front.append(trace.comm(step.record.common.pid))
        if step.kind == LEAVE:
            times[tuple(front + [call.name for call in step.stack])] += step.duration - step.stack[-1].inner
        elif step.kind == INSTANT:
            counts[tuple(front + _frames(trace, step))] += 1
    return (times, "nanoseconds") if times else (counts, "none")


def all_steps(trace: Trace) -> Iterator[tuple[Instance, Step]]:
    """The steps of each trace array, one after the other."""
    return ((instance, step) for instance in trace.instances for step in Calls(trace, instance).steps())


def _frames(trace: Trace, step: Step) -> list[str]:
    """The frames of a recorded stack, outermost first; the event's name for other records."""
    event = trace.formats.get(step.record.common.type)
    if event is None or step.name not in ("kernel_stack", "user_stack"):
        return [step.name]
    callers = [
        address
        for address in event.addresses("caller", step.record.data)
        if address not in (0, FTRACE_TRAMPOLINE_MARKER)
    ]
    return [trace.symbols.name(address).partition(" ")[0] for address in reversed(callers)]


def perfetto_trace(trace: Trace) -> bytes:
    """A trace for ui.perfetto.dev. Each trace array is a process there. Raises ModuleNotFoundError without `perfetto`."""
    made = PerfettoTrace()
    for pid, instance in enumerate(trace.instances, _PID):
        made.process(pid, instance.name or "fprobe")
        for step in Calls(trace, instance).steps():
            _add_step(made, trace, step, pid)
    return made.serialize()


def _add_step(made: PerfettoTrace, trace: Trace, step: Step, pid: int) -> None:
    tid, event = step.record.common.pid, trace.formats.get(step.record.common.type)
    made.thread(pid, tid, trace.comm(tid))
    values = event.values(step.record.data) if event is not None else {}
    for _ in step.ended:
        made.end(step.record.stamp, pid, tid, 0)
    if step.kind == ENTER:
        made.begin(step.record.stamp, pid, tid, 0, step.name, values)
    elif step.kind == LEAVE:
        made.end(step.record.stamp, pid, tid, 0, values)
    else:
        made.instant(step.record.stamp, pid, tid, step.name, values)
