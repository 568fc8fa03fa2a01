"""The hooks by which a floor calls floors above it, which it does not know: all of them, in one place.

Modules that come and go are announced as in the kernel, by register_module_notifier(); `ftrace.core.entries.neighbours` is the
interface of one kind of probe to another. Below each hook stand the module that
calls it and those that add to it; a test compares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, ParamSpec

P = ParamSpec("P")


class Hook(Generic[P]):
    """Functions that are called at one moment, in the order in which they were added. None is added twice."""

    def __init__(self) -> None:
        self._calls: tuple[Callable[P, Any], ...] = ()

    def add(self, call: Callable[P, Any]) -> None:
        if call not in self._calls:
            self._calls += (call,)

    def remove(self, call: Callable[P, Any]) -> None:
        """Do not call it any more. Does nothing if it is not there."""
        self._calls = tuple(each for each in self._calls if each != call)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for call in self._calls:
            call(*args, **kwargs)

    def __iter__(self) -> Iterator[Callable[P, Any]]:
        """The functions, for a caller that needs what they return."""
        return iter(self._calls)


around_closing: Hook[[]] = Hook()
"""Context managers around the calls that make JIT code go: LLVM tells of it with its locks held, so ours are taken before.

Called by sandbox.images.jit_loading; added to by kprobes.jit_unloading.
"""
before_patching: Hook[[]] = Hook()
"""Before code of a JIT compiler is made patchable: whoever must notice when it is freed begins to watch.

Called by sandbox.images.jit_image; added to by fprobe.registration, kprobes.jit_unloading.
"""
own_code: Hook[[int]] = Hook()
"""Is the address in code of ours, which stack traces leave out?

Called by ftrace.core.unwind.stacktrace; added to by ftrace.core.runtime, ftrace.core.sites.detoured,
ftrace.core.sites.signal_masks, ftrace.core.sites.spare_stubs, kprobes.fast.return_stubs, kprobes.hit.runtime.
"""
overlays: Hook[[int, bytearray]] = Hook()
"""Undo, in bytes that were read at an address, what other kinds of probes have written.

Called by ftrace.core.sites.locations; added to by kprobes.place.
"""
when_coming: Hook[[Any]] = Hook()
"""A block of sites is there, and the registered ops are on it.

Called by ftrace.core.tracer; added to by ftrace.core.filters.set_ftrace_filter, ftrace.tracing.tracers.graph_rules.
"""
when_killed: Hook[[]] = Hook()
"""ftrace is dead, for good.

Called by ftrace.core.tracer; added to by kprobes.fast.ftrace_site.
"""
before_detaching: Hook[[]] = Hook()
"""All ops are about to be unregistered: what uses ops of its own disables its users.

Called by ftrace.core.tracer; added to by ftrace.tracing.events.probe_event, kprobes.registration.
"""
before_batch: Hook[[]] = Hook()
"""A batch of kprobes' changes of text begins, and code of a JIT compiler is patched: some of it may be gone.

Called by kprobes.breakpoint.patching; added to by kprobes.registration.
"""
