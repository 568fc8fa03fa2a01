"""Trace arrays: a ring buffer with its switch, its options and its tracer. struct trace_array in kernel/trace/trace.h."""

from __future__ import annotations

import ctypes
import errno
import threading
from typing import Any

from ftrace.core.runtime import runtime
from ftrace.core.sites.locations import OpsHash, global_hash
from ftrace.core.tracer import tracer
from ftrace.core.unwind.code_map import unwind_tables
from ftrace.hit.events.builtin_records import STACKTRACE, TASKS, USERSTACKTRACE
from ftrace.ring_buffer.arena import Slots
from ftrace.ring_buffer.buffer import Buffer
from ftrace.tracing.instances.cmdlines import SavedTgids, saved_cmdlines
from ftrace.tracing.instances.error_log import ErrorLog, error_log
from ftrace.tracing.instances.options import TraceOptions
from ftrace.tracing.instances.printk import direct_printk, has_begun
from ftrace.tracing.tracers.follow_fork import fork_following
from ftrace.tracing.tracers.interfaces import Tracer, Tracing, nop
from ftrace.tracing.tracers.profile import function_profiler
from ftrace.tracing.tracers.thread_filters import DroppedSlots, PidLists
from sandbox.process import fork
from sandbox.process.once import cached_property, once

trace_types_lock = threading.RLock()
"""Held while a trace array is created or removed, or its tracer is changed."""
fork.hold(trace_types_lock, level=-2)


class PipeClaims:
    """The slots that open trace_pipe files have claimed; None means all slots. As open_pipe_on_cpu() of kernel/trace/trace.c."""

    def __init__(self) -> None:
        self._slots: set[Slots] = set()

    def __bool__(self) -> bool:
        return bool(self._slots)

    def claim(self, slot: Slots) -> bool:
        """Claim a slot, or all. Returns False if any of them is already claimed."""
        if None in self._slots or slot in self._slots or (slot is None and self._slots):
            return False
        self._slots.add(slot)
        return True

    def release(self, slot: Slots) -> None:
        """Release a claim."""
        self._slots.remove(slot)


_PRINTK = "trace_printk_dest"
_STACKS = {"stacktrace": STACKTRACE, "userstacktrace": USERSTACKTRACE}


class TraceArray:
    """A ring buffer with its options, tracer and filters. `name`: its directory under instances/; empty for the top level.

    `like`: the trace array from which options are copied.
    """

    tracer: Tracer = nop
    _tracing: Tracing | None = None
    buffer_percent = 50
    """buffer_percent: how full a slot must be before a poll of its trace_pipe or trace_pipe_raw says so."""
    max_latency_us = 0
    """tracing_max_latency: no tracer here measures latencies; kept for programs that set it."""
    emptied = 0
    """When the buffer was last emptied, by its clock; times in latency-format are relative to this."""
    snapshot_is_conditional = False
    """Whether a histogram takes the snapshots: the cond_snapshot of struct trace_array."""

    def __init__(self, name: str = "", like: TraceArray | None = None) -> None:
        self.name = name
        self.options: TraceOptions = TraceOptions(
            self._option_changed, lambda: self.tracer, like.options if like else None
        )
        self.function_hash: OpsHash = OpsHash() if like else global_hash
        """The functions that set_ftrace_filter and set_ftrace_notrace select."""
        self.dropped_slots = DroppedSlots()
        self.function_tasks = PidLists(self.dropped_slots)
        """The threads whose functions are recorded."""
        self.event_tasks = PidLists(self.dropped_slots, lambda on: self._judge(TASKS, on))
        """The threads whose events are recorded."""
        self._followed = {"event-fork": self.event_tasks, "function-fork": self.function_tasks}
        self.error_log = ErrorLog() if like else error_log
        self.pipes = PipeClaims()
        self._judging = ctypes.c_uint64()
        self.tgids = SavedTgids()
        """saved_tgids: the threads whose process is known."""
        self.is_expanded = like is not None
        """Whether anything was set up to record, or the size was set; buffer_size_kb depends on it."""

    def __repr__(self) -> str:
        return f"<TraceArray {self.name or 'top level'}>"

    @cached_property
    def buffer(self) -> Buffer:
        """The ring buffer, created on first use."""
        return Buffer(self.name, overwrite=self.options["overwrite"])

    def _option_changed(self, name: str, on: bool) -> None:
        if name == "overwrite":
            self.buffer.overwrite = on
        elif name in _STACKS:
            if on:
                unwind_tables().refresh()
            self._judge(_STACKS[name], on)
        elif name == "record-tgid":
            self.tgids.switch(self.buffer.now if on else None)
        elif name == "record-cmd":
            _follow_record_cmd()
        elif name in self._followed:
            self._follow_forks(self._followed[name], on)
        elif name == "trace_printk":
            self._follow_printk()
        elif name == _PRINTK:
            self._direct_printk(on)
        elif name not in self.options.own:  # an option of a tracer; all trace arrays share it
            function_profiler.follow_options()
            for array in trace_arrays:
                array.update_tracing()

    @staticmethod
    def _follow_forks(tasks: PidLists, on: bool) -> None:
        with tracer().reclaimer.deferred(), trace_types_lock:
            if on:
                fork_following().follow(tasks)
            else:
                fork_following().forget(tasks)

    def _direct_printk(self, on: bool) -> None:
        """Exactly one trace array has the option trace_printk_dest; by default the top level. As update_printk_trace()."""
        top = global_trace()
        if self is top and not on:
            raise OSError(errno.EINVAL, f"{_PRINTK} cannot be switched off; set it in another trace instance")
        for array in trace_arrays:
            array.options.put(_PRINTK, array is (self if on else top))
        (self if on else top).take_printk()

    def take_printk(self, *, begins: bool = False) -> None:
        """Have programs record here, as the options and switches say; nothing before the first time with `begins`."""
        if begins or has_begun():
            address, dropped = self.buffer.address, self.dropped_slots.address
            direct_printk(address, self.switch, dropped, self.options["trace_printk"])

    def _follow_printk(self) -> None:
        if self.options[_PRINTK]:
            self.take_printk()

    def clear(self) -> None:
        """Empty the buffer."""
        self.buffer.clear()
        self.emptied = self.buffer.now

    def _judge(self, what: int, on: bool) -> None:
        self._judging.value = self._judging.value & ~what | what * on

    @property
    def judging(self) -> int:
        """Address of the word that says what is done with each event besides recording it (ftrace.hit.events.builtin_records)."""
        return ctypes.addressof(self._judging)

    def check_snapshot(self) -> None:
        """Raise OSError(EBUSY) if a histogram takes the snapshots."""
        if self.snapshot_is_conditional:
            raise OSError(
                errno.EBUSY, "the action snapshot() of a hist trigger takes the snapshots; remove that trigger"
            )

    def empty(self) -> None:
        """Empty the buffer and the snapshot."""
        self.buffer.clear_snapshot()
        self.clear()

    # -- the switch -----------------------------------------------------------------------------------------------

    @cached_property
    def _switch(self) -> Any:
        return ctypes.c_uint64(1) if self.name else runtime().image.variable("tracing_on")

    @property
    def switch(self) -> int:
        """Address of a 64-bit word: 1 while recording is on, else 0."""
        return ctypes.addressof(self._switch)

    @property
    def tracing_on(self) -> bool:
        """Whether recording is on: the file tracing_on. Commands and triggers change it too."""
        return bool(self._switch.value)

    @tracing_on.setter
    def tracing_on(self, on: bool) -> None:
        self._switch.value = int(on)

    def drop_slots(self, dropped: int) -> None:
        """Do not record into these slots: tracing_cpumask. Bit i is slot i."""
        self.dropped_slots.drop(dropped)
        self.function_tasks.follow_slots()
        self.event_tasks.follow_slots()
        self._follow_printk()

    # -- the tracer -----------------------------------------------------------------------------------------------

    def use_tracer(self, chosen: Tracer) -> None:
        """Select a tracer and empty the buffer. Selecting the present one does nothing.

        Raises OSError: EBUSY while trace_pipe is open; or the tracer's error if it does not start, which leaves no tracer.
        """
        with tracer().reclaimer.deferred(), trace_types_lock:
            if self.pipes:
                raise OSError(errno.EBUSY, "trace_pipe is open; close it to change the tracer")
            if chosen is self.tracer:
                return
            self._stop()
            self.clear()
            self._tracing = chosen.start(self)
            self.tracer = chosen
            self.is_expanded = self.is_expanded or chosen is not nop
            _follow_record_cmd()

    def stop_tracing(self) -> None:
        """Remove the tracer."""
        with tracer().reclaimer.deferred(), trace_types_lock:
            self._stop()

    def _stop(self) -> None:
        running, self._tracing = self._tracing, None
        self.tracer = nop
        if running is not None:
            running.stop()
        _follow_record_cmd()

    def update_tracing(self) -> None:
        """Have the tracer follow changed settings. Raises OSError if it cannot, which leaves no tracer."""
        with tracer().reclaimer.deferred(), trace_types_lock:
            if self._tracing is not None:
                self._tracing.update()

    def close(self) -> None:
        """Stop recording and free the buffer."""
        with tracer().reclaimer.deferred(), trace_types_lock:
            trace_arrays.remove(self)
            self._stop()
            for option, tasks in self._followed.items():
                if self.options[option]:
                    fork_following().forget(tasks)
            if self.options[_PRINTK]:
                global_trace().options.put(_PRINTK, True)
                global_trace().take_printk()
        runtime().quiesce()
        self.buffer.close()


def _follow_record_cmd() -> None:
    """Save thread names while any trace array has the option record-cmd or a tracer."""
    saved_cmdlines.record(any(array.options["record-cmd"] or array.tracer is not nop for array in trace_arrays))


MAX_ARRAYS = 32
"""The maximum number of trace arrays, with the top level's; each event can record into all of them."""


def new_instance(name: str) -> TraceArray:
    """A trace array with the top level's options. Raises OSError(ENOMEM) if there are too many."""
    with trace_types_lock:
        if len(trace_arrays) >= MAX_ARRAYS:
            raise OSError(errno.ENOMEM, f"{MAX_ARRAYS - 1} instances exist; remove one first")
        made = TraceArray(name, like=global_trace())
        trace_arrays.append(made)
        return made


@once
def global_trace() -> TraceArray:
    """The top level's trace array."""
    top = TraceArray()
    trace_arrays.insert(0, top)
    return top


trace_arrays: list[TraceArray] = []
"""The trace arrays of the top level and of instances."""
