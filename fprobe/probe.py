"""struct fprobe: the settings of its owner, its state and its counts."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Protocol

from ftrace.core import ops as ftrace
from ftrace.core.handlers.kinds import BoundHandler
from ftrace.core.handlers.python_handler import HandlerErrors
from ftrace.core.ops import ftrace_ops
from ftrace.core.probe import Counts
from ftrace.core.sites.locations import Resolution
from ftrace.core.summary import Row, Summary, handler_name
from ftrace.core.tracer import tracer
from ftrace.hit.records import DISABLED, EXHAUSTED
from sandbox.native import NativeFunction
from sandbox.process import fork
from sandbox.process.fork import ProcessBound
from sandbox.process.integers import U32_MAX, integer
from sandbox.threads.tasks import DATA_STACK, STRIDE

FPROBE_FL_DISABLED = 1
FPROBE_FL_KPROBE_SHARED = 2

ENTRY_DATA_MAX = STRIDE - DATA_STACK
"""The maximum entry_data_size in bytes: all the entry data that a thread has."""


class EntryHandler(Protocol):
    """Called when a function is entered. `regs`: a pt_regs; `entry_data`: a memoryview, or None.

    Non-zero: do not call the exit handler for this call.
    """

    def __call__(self, fp: fprobe, entry_ip: int, ret_ip: int, regs: Any, entry_data: Any, /) -> int | None: ...


class ExitHandler(Protocol):
    """Called when a function returns. `regs`: a pt_regs; `entry_data`: a memoryview, or None."""

    def __call__(self, fp: fprobe, entry_ip: int, ret_ip: int, regs: Any, entry_data: Any, /) -> object: ...


flags_lock = fork.renew(threading.RLock())
"""Keeps the flags of an fprobe and those of its native half consistent. Taken before any lock of ftrace."""


class fprobe(Summary, ProcessBound):
    """A function probe.

    entry_handler(fp, entry_ip, ret_ip, regs, entry_data) -> int runs when a function is entered. If it returns non-zero, the
    exit handler is not called for that call. exit_handler(fp, entry_ip, ret_ip, regs, entry_data) runs when the function
    returns. Either may be None, a Python callable, a C function pointer (ctypes, cffi, a Numba cfunc, a function of a loaded
    module), a native function, or a built-in action's handler (`fprobe.actions`).

    `flags`: FPROBE_FL_*. `entry_data_size`: bytes that the entry and exit handlers of one call share; at most 262144.
    `nr_maxactive`: how many calls may be in progress at once, over all functions; the exit handlers of further ones are
    missed. 0: functions x CPUs x 2. `thread`: handle only hits of the thread with this native id; 0: of all threads.
    `max_hits`: disable the probe after so many hits; 0: never. `python_unsafe`: allow Python handlers on functions of the C
    library, the dynamic loader and the interpreter, where they may deadlock.
    """

    action = 0
    """Address of a built-in action's state."""
    early = 0
    """Address of a filter or histogram that may handle entries before the handler does (ftrace.hit.records.Early), or 0."""
    prepare: Callable[[int], None] | None = None
    """Called with the number of functions at registration, before the handlers are resolved."""
    resolution: Resolution | None = None
    """The functions that were chosen at the last registration, and those that were skipped."""
    pattern: tuple[str, str | None] | None = None
    """The patterns of the last registration: of functions, and of excluded ones; None if it was by addresses or names."""
    _handlers: tuple[BoundHandler, ...] = ()
    _claimed = 0
    """The process in which a thread is registering or unregistering it; a fork ends the claim of other threads."""

    def __init__(
        self,
        entry_handler: EntryHandler | NativeFunction | BoundHandler | None = None,
        exit_handler: ExitHandler | NativeFunction | BoundHandler | None = None,
        *,
        flags: int = 0,
        entry_data_size: int = 0,
        nr_maxactive: int = 0,
        thread: int = 0,
        max_hits: int = 0,
        python_unsafe: bool = False,
    ) -> None:
        self.entry_handler: Any = entry_handler
        self.exit_handler: Any = exit_handler
        self.entry_data_size = entry_data_size
        self.nr_maxactive = nr_maxactive
        self.thread = thread
        self.max_hits = max_hits
        self.python_unsafe = python_unsafe
        self._flags = flags
        self.ops = ftrace_ops()
        self.errors = HandlerErrors()
        """Exceptions of Python handlers."""
        self._final: Counts | None = Counts()
        """The counts at its unregistration; None while it is registered."""

    def _summary_rows(self) -> list[Row]:
        state = "not registered" if not self.registered else "disabled" if self.is_disabled else "registered"
        handlers = [("entry", self.entry_handler), ("exit", self.exit_handler)]
        names = {role: "built-in" if isinstance(it, BoundHandler) else handler_name(it) for role, it in handlers}
        named = [(role, name) for role, name in names.items() if name]
        functions = [("functions", self.ops.selection().count())] if self.registered else []
        return [("state", state), *named, *functions, ("hits", self.hits), ("missed", self.nmissed)]

    # -- state --------------------------------------------------------------------------------------------------

    @property
    def flags(self) -> int:
        """FPROBE_FL_*. DISABLED can be set and cleared at any time; it is also set when max_hits is reached."""
        if self.registered and self.ops.probe.native.flags & (DISABLED | EXHAUSTED):
            return self._flags | FPROBE_FL_DISABLED
        return self._flags

    @flags.setter
    def flags(self, value: int) -> None:
        with flags_lock:
            self._flags = integer("flags", value, 0, U32_MAX)
            if self.registered:
                copy_disabled(self)

    @property
    def registered(self) -> bool:
        """True from register_fprobe() to unregister_fprobe(), also while it is disabled."""
        return self.ops.enabled

    @property
    def is_disabled(self) -> bool:
        """Whether FPROBE_FL_DISABLED is among its flags."""
        return bool(self.flags & FPROBE_FL_DISABLED)

    @property
    def is_claimed(self) -> bool:
        """Whether a thread is registering or unregistering it now."""
        return self._claimed == os.getpid()

    @property
    def counts(self) -> Counts:
        """Hits, and misses by cause, since the last registration. They are kept after unregistering."""
        if self._final is not None:
            return self._final
        with tracer().table.lock:  # nothing of it is freed within the block
            return self.ops.probe.counts() if self._final is None else self._final

    @property
    def nmissed(self) -> int:
        """The number of missed handler calls, of all causes."""
        return self.counts.missed

    @property
    def hits(self) -> int:
        """Hits while it was not disabled, without those in recursion or in a thread without a task."""
        return self.counts.hits


def copy_disabled(fp: fprobe) -> None:
    """Copy its DISABLED flag to its native half. With `flags_lock`."""
    wanted = DISABLED if fp._flags & FPROBE_FL_DISABLED else 0
    if fp.ops.probe.native.flags & DISABLED != wanted:
        ftrace.change_flags(fp.ops, on=wanted, off=DISABLED ^ wanted)
