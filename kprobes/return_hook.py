"""How the returns of a function are hooked for a kretprobe, and the memory that its calls in progress refer to.

A `ReturnHook` is made at each registration. `set_up` chooses, once, how calls reach the kretprobe:

    place              multi-probe                                  single-probe, with native handlers and little data
    ftrace location    the stub hooks the return; the callback of   an ftrace_ops of its own, on the fast trampolines
                       kprobes' ftrace_ops takes its node           (SingleOps)
    elsewhere          the place gets a return stub: after a jump   a jump's detour leads into a stub like ftrace's, whose
                       calls continue in it; at a breakpoint its    list holds this kretprobe only (FastReturn)
                       address replaces the one in the return slot

The right column applies while no other probe is at the place. A place may change column while calls are in progress: each
call returns as it was hooked, and all of them count towards `maxactive`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import weakref
from typing import TYPE_CHECKING, Any

from ftrace.core.tracer import tracer
from ftrace.hit.records import IN_C
from kprobes.breakpoint.patching import kprobe_mutex
from kprobes.fast import single
from kprobes.fast.return_stubs import give_return_stub
from kprobes.handlers.native_decorator import EventFunction
from kprobes.handlers.roles import ENTRY, RETURN
from kprobes.hit.records import (
    PRE_CALLBACK,
    PRE_FOREIGN,
    PRE_PYTHON,
    RETURN_CALLBACK,
    RETURN_FOREIGN,
    RETURN_PYTHON,
    STOPPED,
    Instance,
    Kretprobe,
)
from kprobes.hit.runtime import kprobe_runtime
from sandbox.native.native_image import c_string
from sandbox.process import fork
from sandbox.process.once import once

if TYPE_CHECKING:
    from ftrace.core.handlers.kinds import BoundHandler
    from kprobes.fast.single import FastPath
    from kprobes.place import Place

_INDEX = 0xFFFF_FFFF


class ReturnHook:
    """The native half of a kretprobe, its instances, and its fast path.

    `handlers`: entry_handler and handler. `codes`: their code. `data_size`: bytes of data in an instance. `action`: as
    `kretprobe.action`.
    """

    def __init__(
        self,
        handlers: tuple[Any, Any],
        codes: tuple[BoundHandler, BoundHandler],
        maxactive: int,
        data_size: int,
        action: int,
    ) -> None:
        self._handlers = handlers
        self._entry, self._return = self._codes = codes
        self.maxactive = maxactive
        self.native: Any = Kretprobe.ctypes(data_size=data_size, action=action)
        self.address = ctypes.addressof(self.native)
        self.fast: FastPath | None = None
        self._allocate_instances()
        self._use_handlers()
        _hooks.add(self)

    def _allocate_instances(self) -> None:
        native = self.native
        native.stride = Instance.offset("data") + (native.data_size + 63 & -64)
        native.count = self.maxactive
        self._memory = ctypes.create_string_buffer(native.stride * self.maxactive + 64)
        native.instances = ctypes.addressof(self._memory) + 63 & -64
        for index in range(self.maxactive):
            self._instance(index).rp = self.address

    def _instance(self, index: int) -> Any:
        return Instance.ctypes.from_address(self.native.instances + index * self.native.stride)

    def _use_handlers(self) -> None:
        native, entry, at_return = self.native, self._entry, self._return
        native.entry, native.entry_cookie = entry.address, entry.cookie
        native.handler, native.cookie = at_return.address, at_return.cookie
        native.kind = PRE_FOREIGN * entry.is_foreign | PRE_PYTHON * entry.is_python
        native.kind |= RETURN_FOREIGN * at_return.is_foreign | RETURN_PYTHON * at_return.is_python
        native.kind |= PRE_CALLBACK * bool(entry.kind & IN_C) | RETURN_CALLBACK * bool(at_return.kind & IN_C)
        native.entry_text = c_string(f"{ENTRY.name} {entry.name}") if entry.address else 0
        native.handler_text = c_string(f"{RETURN.name} {at_return.name}") if at_return.address else 0

    @property
    def foreign(self) -> bool:
        """Whether entries must be handled outside of the trap's frame. For a Python return handler they must be, too: whether
        Python can be entered is decided there.
        """
        return self._entry.is_foreign or self._return.is_python

    @property
    def calls_python(self) -> bool:
        """Whether a handler is a Python callable."""
        return self._entry.is_python or self._return.is_python

    # -- from registration to the last return -------------------------------------------------------------------

    def set_up(self, place: Place, child: Any) -> None:
        """Choose how calls at `place` are hooked. `child`: the native half of the kprobe there. Within `patching()`."""
        self._child = child
        self.native.child = ctypes.addressof(child)
        size = self.native.data_size
        values = single.kretprobe_values(*self._handlers, size, self.maxactive, place.on_ftrace)
        if values and isinstance(self._handlers[1], EventFunction):
            values["early"] = self.native.action
        if place.on_ftrace:
            keep = (self.native, self._codes, child)
            self.fast = single.ops_of_kretprobe(values, place.address, self.address, keep) if values else None
        else:
            give_return_stub(place)
            self.fast = single.fast_return(self.native, values) if values else None
        self.native.pool = self.fast.probe.address if self.fast else 0

    def stop(self) -> None:
        """Call no handler from now on, not even at the return of calls in progress: the kretprobe is being unregistered."""
        self.native.flags |= STOPPED
        if self.fast is not None:
            self.fast.stop()

    def retire(self) -> None:
        """Keep the hook until its last call has returned: the kretprobe has been unregistered."""
        _retired.append(self)

    def is_idle(self) -> bool:
        """Whether every instance is free. Called once no instance can be taken any more."""
        in_use = any(self._instance(index).task for index in range(self.maxactive))
        return not in_use and (self.fast is None or self.fast.is_idle())

    def free(self) -> None:
        """Free the fast path; no call refers to it."""
        if self.fast is not None:
            self.fast.free()
            self.fast = None

    def after_fork(self, before: int, now: int) -> None:
        """In the child of a fork: free the instances of other threads. Arguments: native ids of the forking thread."""
        in_use = kprobe_runtime().image.call("kretprobe_after_fork", self.address, before, now)
        if self.fast is not None:
            self.fast.probe.take_away(in_use)


_retired: list[ReturnHook] = []


def free_idle() -> None:
    """Free what no call in progress refers to any more. Waits for hits in progress; the caller holds no locks."""
    with kprobe_mutex:
        retired = list(_retired)
    if not retired or not tracer().runtime.quiesce():
        return  # a hit that began before the unregistration may still take an instance
    with kprobe_mutex:
        idle = [hook for hook in retired if hook in _retired and hook.is_idle()]
    # A call that has just freed its instance may be about to update the pool.
    if any(hook.fast for hook in idle) and not tracer().runtime.quiesce():
        return
    with kprobe_mutex:
        for hook in idle:
            with contextlib.suppress(ValueError):  # another thread has freed it
                _retired.remove(hook)
                hook.free()


_hooks: weakref.WeakSet[ReturnHook] = weakref.WeakSet()


@once
def watch_forks() -> None:
    """Before the first registration: handle forks."""
    fork.in_child(fork.Phase.PROBES, _after_fork)


def _after_fork() -> None:
    # The list holds references: the collector must not free a hook whose address is still in use.
    hooks = list(_hooks)
    for hook in hooks:
        hook.after_fork(tracer().runtime.forked_from, os.getpid())  # that of the forking thread
