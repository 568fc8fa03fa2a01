"""The commands of set_ftrace_filter that act on the trace buffer or on events when a function is entered.

    glob:stacktrace[:N]  glob:snapshot[:N]  glob:dump  glob:cpudump
    glob:enable_event:GROUP:EVENT[:N]  glob:disable_event:GROUP:EVENT[:N]

As kernel/trace/trace.c, trace_functions.c and trace_events.c register them. For dump and cpudump, a hit stops recording and
writes a request into a pipe; a thread formats the records and writes them to standard error.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Callable
from functools import partial

from ftrace.core.filters.function_probes import FunctionProbeOps, Subject, apply
from ftrace.core.filters.set_ftrace_filter import FilterFile, check_takes_probes, register_ftrace_command
from ftrace.core.runtime import runtime
from ftrace.hit.events.dump_request import ALL, DumpTarget
from ftrace.tracing.events.registry import event_registry, trace_actions
from ftrace.tracing.events.triggers.interfaces import NativeCall
from ftrace.tracing.instances.trace_array import TraceArray, global_trace, trace_arrays
from ftrace.tracing.output.trace import record_format
from sandbox.process import fork
from sandbox.process.once import once
from sandbox.threads.own_thread import OwnThread

_RULE = "---------------------------------\n"


def dump_text(array: TraceArray, slot: int | None = None) -> str:
    """The text of a dump: the records of all slots, or of one."""
    shown = record_format(array, {})
    lines = "".join(shown.lines(list(array.buffer.records(slot))))
    return (
        f"Dumping ftrace buffer:\n{_RULE}{lines}{_RULE}"
        if lines
        else "Dumping ftrace buffer:\n   (ftrace buffer empty)\n"
    )


class Dumper:
    """The pipe of a trace array, and the thread that reads from it. The child of a fork gets its own."""

    def __init__(self, array: TraceArray) -> None:
        self._array = array
        self.descriptor = ctypes.c_uint64()
        self._start()
        fork.in_child(fork.Phase.THREADS, self._start)

    def _start(self) -> None:
        reading, writing = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(writing, False)
        self.descriptor.value = writing
        OwnThread(partial(self._serve, reading))

    def _serve(self, reading: int) -> None:
        while request := os.read(reading, 8):
            slot = int.from_bytes(request, "little")
            sys.stderr.write(dump_text(self._array, None if slot == ALL else slot))
            sys.stderr.flush()


@once
def _dumpers() -> dict[TraceArray, Dumper]:
    return {}


def dump_call(array: TraceArray, own_slot: bool) -> NativeCall:
    """The call with which a hit dumps the records of a trace array or, with `own_slot`, of the hit's slot."""
    dumper = _dumpers().get(array) or _dumpers().setdefault(array, Dumper(array))
    target = DumpTarget.ctypes(array.switch, ctypes.addressof(dumper.descriptor), int(own_slot))
    return NativeCall(runtime().image.address("event_request_dump"), ctypes.addressof(target), (target, dumper))


_ACT, _ACT_WHEN_ON = "function_act", "function_act_when_on"
_ON, _OFF = "function_switch_on", "function_switch_off"
_ONCE = "1"


def _subject(call: NativeCall) -> Subject:
    return Subject(act=call.address, argument=call.argument, keep=call)


def _array(file: FilterFile) -> TraceArray:
    """The trace array on which the commands of a file act."""
    return next((array for array in trace_arrays if array is file.instance), global_trace())


def _stacktrace(array: TraceArray) -> Subject:
    return _subject(trace_actions(array).stacktrace)._replace(switch=global_trace().switch)


def _snapshot(array: TraceArray) -> Subject:
    trace_actions(array).arm_snapshot()
    return _subject(trace_actions(array).snapshot)


def _act(
    subject: Callable[[TraceArray], Subject], name: str, file: FilterFile, func: str, command: str, count: str | None
) -> None:
    check_takes_probes(file, command)
    made = partial(subject, _array(file))
    apply(func, FunctionProbeOps(command, name, count is not None, made, file.instance), count)


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
        return Subject(recorded.recording, keep=event, release=recorded.release)

    switch = _ON if command == "enable_event" else _OFF
    kind = FunctionProbeOps(f"{command}:{group}:{name}", switch, bool(counted), subject, file.instance)
    apply(func, kind, count or None)


@once
def register_function_commands() -> None:
    """Register the commands with set_ftrace_filter."""
    register_ftrace_command("stacktrace", partial(_act, _stacktrace, _ACT_WHEN_ON))
    register_ftrace_command("snapshot", partial(_act, _snapshot, _ACT))
    register_ftrace_command("dump", _dump)
    register_ftrace_command("cpudump", _cpudump)
    for command in ("enable_event", "disable_event"):
        register_ftrace_command(command, _enable)
