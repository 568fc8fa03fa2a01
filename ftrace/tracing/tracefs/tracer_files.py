"""Files that restrict tracers and events: by thread, slot, function, depth and duration."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable
from functools import partial

from ftrace.core.filters.set_ftrace_filter import FilterFile, read_filter
from ftrace.core.ops import ftrace_ops
from ftrace.core.sites.locations import LocationSet
from ftrace.hit.ring_buffer.layout import SLOTS
from ftrace.tracing.files.nodes import Directory, Handle, Node, TextFile, TextHandle, written_number
from ftrace.tracing.instances.trace_array import TraceArray, trace_arrays
from ftrace.tracing.output.profile import profile_text
from ftrace.tracing.output.trace import slots_in_use
from ftrace.tracing.tracers.graph_rules import FUNCTIONS, NOTRACE, edited, graph_rules
from ftrace.tracing.tracers.profile import function_profiler
from ftrace.tracing.tracers.stack import stack_trace_text, stack_tracer
from ftrace.tracing.tracers.thread_filters import NEVER, ONLY, PidLists, mask_text, written_mask

_BLANK = " \t\n\v\f\r"
_US = 1000
_UINT_MAX = (1 << 32) - 1


def tracer_files(array: TraceArray) -> dict[str, Node]:
    """The files that every trace array has, by name."""
    return {
        "set_event_notrace_pid": _event_pid_file(array, NEVER),
        "set_event_pid": _event_pid_file(array, ONLY),
        "set_ftrace_filter": _filter_of(array, notrace=False),
        "set_ftrace_notrace": _filter_of(array, notrace=True),
        "set_ftrace_notrace_pid": _function_pid_file(array, NEVER),
        "set_ftrace_pid": _function_pid_file(array, ONLY),
        "tracing_cpumask": CpumaskFile(array),
    }


def graph_files() -> dict[str, Node]:
    """The files that only the top level has, by name. They apply to the tracers of all trace arrays."""
    return {
        "function_profile_enabled": TextFile(lambda: f"{int(function_profiler.enabled)}\n", _switch_profiler),
        "max_graph_depth": TextFile(lambda: f"{ctypes.c_int32(graph_rules.max_depth).value}\n", _set_max_depth),
        "set_graph_function": GraphSelectionFile(FUNCTIONS),
        "set_graph_notrace": GraphSelectionFile(NOTRACE),
        "stack_max_size": TextFile(
            lambda: f"{stack_tracer.max_size}\n",
            lambda text: setattr(stack_tracer, "max_size", written_number(text)),
        ),
        "stack_trace": TextFile(stack_trace_text),
        "stack_trace_filter": SetFilterFile(stack_tracer.functions),
        "trace_stat": Directory(
            lambda: {f"function{slot}": TextFile(partial(profile_text, slot)) for slot in range(slots_in_use())}
        ),
        "tracing_thresh": TextFile(lambda: f"{graph_rules.threshold // _US}\n", _set_threshold),
    }


def _function_pid_file(array: TraceArray, which: str) -> TextFile:
    tasks = array.function_tasks
    return TextFile(
        lambda: _pids(tasks, which) if tasks.is_set(which) else "no pid\n",
        lambda text: tasks.add(which, text),
        lambda: tasks.clear(which),
    )


def _event_pid_file(array: TraceArray, which: str) -> TextFile:
    tasks = array.event_tasks

    def write(text: str) -> None:
        array.is_expanded = True
        tasks.add(which, text)

    return TextFile(lambda: _pids(tasks, which), write, lambda: tasks.clear(which))


def _pids(tasks: PidLists, which: str) -> str:
    return "".join(f"{pid}\n" for pid in tasks.pids(which))


class CpumaskFile(TextFile):
    """tracing_cpumask: bit i is slot i, or CPU i, which has the slots i, i + the number of CPUs and so on."""

    def __init__(self, array: TraceArray) -> None:
        cpus = os.cpu_count() or 1
        super().__init__(lambda: _traced(array, slots_in_use()), lambda text: _keep_slots(array, text))
        self.of_cpus = TextFile(lambda: _traced(array, cpus), lambda text: _keep_cpus(array, text, cpus))


def _traced(array: TraceArray, slots: int) -> str:
    return mask_text(array.dropped_slots.traced(slots), slots) + "\n"


def _keep_slots(array: TraceArray, text: str) -> None:
    slots = slots_in_use()
    array.drop_slots((1 << slots) - 1 & ~written_mask(text, slots))


def _keep_cpus(array: TraceArray, text: str, cpus: int) -> None:
    dropped = (1 << cpus) - 1 & ~written_mask(text, cpus)
    array.drop_slots(sum((dropped >> slot % cpus & 1) << slot for slot in range(SLOTS)))


def _switch_profiler(text: str) -> None:
    if written_number(text):
        function_profiler.enable()
    else:
        function_profiler.disable()


def _set_max_depth(text: str) -> None:
    graph_rules.max_depth = written_number(text) & _UINT_MAX
    _rules_changed()


def _set_threshold(text: str) -> None:
    graph_rules.threshold = written_number(text) * _US
    _rules_changed()


def _rules_changed() -> None:
    for array in trace_arrays:
        array.update_tracing()


class _FilterHandle(TextHandle):
    """set_ftrace_filter, open for writing. Each write takes one token; closing the file applies them."""

    def __init__(self, file: FilterFile, read: Callable[[], str]) -> None:
        super().__init__(read, file.write)
        self._file = file

    def close(self) -> None:
        self._file.close()


def _filter_of(array: TraceArray, notrace: bool) -> Node:
    """set_ftrace_filter or set_ftrace_notrace of a trace array."""
    if not array.name:
        return SetFilterFile(notrace=notrace)
    ops = ftrace_ops()
    ops.func_hash = array.function_hash
    return SetFilterFile(ops, notrace=notrace, instance=array)


class SetFilterFile(Node):
    """A file of a filter, as ftrace.core.filters.set_ftrace_filter.FilterFile."""

    def __init__(
        self, ops: ftrace_ops | None = None, *, notrace: bool = False, instance: TraceArray | None = None
    ) -> None:
        self._ops, self._notrace, self._instance = ops, notrace, instance

    def _read(self) -> str:
        return read_filter(self._ops, notrace=self._notrace, instance=self._instance)

    def open(self, flags: int) -> Handle:
        """Open the file. Raises OSError(ENODEV) if ftrace is dead."""
        if flags & os.O_ACCMODE == os.O_RDONLY:
            return TextHandle(self._read, None)
        append = not flags & os.O_TRUNC
        file = FilterFile(self._ops, notrace=self._notrace, append=append, instance=self._instance)
        return _FilterHandle(file, self._read)


class GraphSelectionFile(Node):
    """set_graph_function or set_graph_notrace."""

    def __init__(self, which: str) -> None:
        self._which = which

    def read(self) -> str:
        """The names of the selected functions; if there are none, a line that says so."""
        names = "".join(f"{location}\n" for location in graph_rules.selected(self._which).each())
        nothing = "all functions enabled" if self._which == FUNCTIONS else "no functions disabled"
        return names or f"#### {nothing} ####\n"

    def open(self, flags: int) -> Handle:
        """Open the file. For writing with O_TRUNC, the selection starts empty."""
        if flags & os.O_ACCMODE == os.O_RDONLY:
            return TextHandle(self.read, None)
        base = LocationSet() if flags & os.O_TRUNC else graph_rules.selected(self._which)
        return _GraphSelectionHandle(self, self._which, base)


class _GraphSelectionHandle(TextHandle):
    """GraphSelectionFile, open for writing. Each write takes one token; closing the file applies them."""

    def __init__(self, file: GraphSelectionFile, which: str, pending: LocationSet) -> None:
        super().__init__(file.read, self._take)
        self._which, self._pending = which, pending
        self._token, self._is_open = "", True

    def _take(self, text: str) -> int:
        start = 0 if self._token else len(text) - len(text.lstrip(_BLANK))
        end = next((at for at in range(start, len(text)) if text[at] in _BLANK), len(text))
        self._token += text[start:end]
        if end == len(text):
            return end
        self._process()
        return end + 1

    def _process(self) -> None:
        token, self._token = self._token, ""
        if token:
            self._pending = edited(self._pending, token)

    def close(self) -> None:
        """Take the last token, ignoring its errors, and apply the selection. Further calls do nothing."""
        was_open, self._is_open = self._is_open, False
        if not was_open:
            return
        with contextlib.suppress(OSError):
            self._process()
        graph_rules.select(self._which, self._pending)
        _rules_changed()
        graph_rules.forget_tables()
