"""The signatures of handlers, for type checkers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from kprobes.probe import kprobe
    from kprobes.return_probe import kretprobe_instance


class PreHandler(Protocol):
    """Called before the probed instruction. Non-zero: do not execute it; continue at regs.ip."""

    def __call__(self, p: kprobe, regs: Any, /) -> int | None: ...


class PostHandler(Protocol):
    """Called after the probed instruction."""

    def __call__(self, p: kprobe, regs: Any, flags: int, /) -> object: ...


class FaultHandler(Protocol):
    """Called when the probed instruction faults. Non-zero: the fault is handled."""

    def __call__(self, p: kprobe, regs: Any, trapnr: int, /) -> int | None: ...


class ReturnEntryHandler(Protocol):
    """Called when a function is entered whose returns are probed. Non-zero: do not call the return handler for this call."""

    def __call__(self, ri: kretprobe_instance, regs: Any, /) -> int | None: ...


class ReturnHandler(Protocol):
    """Called when a function returns whose returns are probed."""

    def __call__(self, ri: kretprobe_instance, regs: Any, /) -> object: ...
