"""The commands of set_ftrace_filter that act on the trace buffer or on events when a function is entered.

    glob:stacktrace[:N]  glob:snapshot[:N]  glob:dump  glob:cpudump
    glob:enable_event:GROUP:EVENT[:N]  glob:disable_event:GROUP:EVENT[:N]

As kernel/trace/trace.c, trace_functions.c and trace_events.c register them.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import cache, partial

from ftrace.events.registry import event_registry, trace_actions
from ftrace.events.trace_array import TraceArray, global_trace, trace_arrays
from ftrace.events.triggers.event_file import NativeCall
from ftrace.filters.commands import apply
from ftrace.filters.filter_file import FilterFile, check_takes_probes, register_ftrace_command
from ftrace.filters.function_probes import FunctionProbeOps, Subject
from ftrace.output.dump import dump_call

_ACT, _ON, _OFF = "function_act", "function_switch_on", "function_switch_off"
_ONCE = "1"


def _subject(call: NativeCall) -> Subject:
    return Subject(act=call.address, argument=call.argument, keep=call)


def _array(file: FilterFile) -> TraceArray:
    """The trace array on which the commands of a file act."""
    return next((array for array in trace_arrays if array is file.instance), global_trace())


def _stacktrace(array: TraceArray) -> Subject:
    return _subject(trace_actions(array).stacktrace)


def _snapshot(array: TraceArray) -> Subject:
    trace_actions(array).arm_snapshot()
    return _subject(trace_actions(array).snapshot)


def _act(
    subject: Callable[[TraceArray], Subject], file: FilterFile, func: str, command: str, count: str | None
) -> None:
    check_takes_probes(file, command)
    made = partial(subject, _array(file))
    apply(func, FunctionProbeOps(command, _ACT, count is not None, made, file.instance), count)


def _dumped(one_slot: bool) -> Subject:
    """Dump the top level's buffer, even if the command was written in an instance."""
    return _subject(dump_call(global_trace(), one_slot))


def _dump(file: FilterFile, func: str, command: str, _count: str | None) -> None:
    """dump: once for each function; a count is ignored."""
    check_takes_probes(file, command)
    apply(func, FunctionProbeOps(command, _ACT, True, partial(_dumped, False), file.instance), _ONCE)


def _cpudump(file: FilterFile, func: str, command: str, _count: str | None) -> None:
    """cpudump: at each hit; a count is ignored."""
    check_takes_probes(file, command)
    apply(func, FunctionProbeOps(command, _ACT, False, partial(_dumped, True), file.instance), None)


def _enable(file: FilterFile, func: str, command: str, parameter: str | None) -> None:
    check_takes_probes(file, command)
    group, colon, rest = (parameter or "").partition(":")
    name, counted, count = rest.partition(":")
    event = event_registry.find(group, name)
    if not colon or event is None:
        raise OSError(errno.EINVAL, f"there is no event for {command}:{parameter or ''}; name one as GROUP:EVENT")
    if counted and not count and not func.startswith("!"):
        raise OSError(
            errno.EINVAL, f"{command}:{parameter} has no count after the last colon; add one or remove the colon"
        )

    recorded = event.file_in(_array(file))

    def subject() -> Subject:
        recorded.hold()
        return Subject(recorded.recording, keep=event, give_up=recorded.release)

    switch = _ON if command == "enable_event" else _OFF
    kind = FunctionProbeOps(f"{command}:{group}:{name}", switch, bool(counted), subject, file.instance)
    apply(func, kind, count or None)


@cache
def register_function_commands() -> None:
    """Register the commands with set_ftrace_filter."""
    register_ftrace_command("stacktrace", partial(_act, _stacktrace))
    register_ftrace_command("snapshot", partial(_act, _snapshot))
    register_ftrace_command("dump", _dump)
    register_ftrace_command("cpudump", _cpudump)
    for command in ("enable_event", "disable_event"):
        register_ftrace_command(command, _enable)
