"""The signatures of handlers, for type checkers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from kprobes.probe import kprobe
    from kprobes.return_probe import kretprobe_instance


class PreHandler(Protocol):
    """What is called before the probed instruction. Non-zero: go on at regs.ip instead of executing it."""

    def __call__(self, p: kprobe, regs: Any, /) -> int | None: ...


class PostHandler(Protocol):
    """What is called after it."""

    def __call__(self, p: kprobe, regs: Any, flags: int, /) -> object: ...


class FaultHandler(Protocol):
    """What is called when it faults. Non-zero: handled."""

    def __call__(self, p: kprobe, regs: Any, trapnr: int, /) -> int | None: ...


class ReturnEntryHandler(Protocol):
    """What is called when a function is entered whose returns are probed. Non-zero: not at the return of this call."""

    def __call__(self, ri: kretprobe_instance, regs: Any, /) -> int | None: ...


class ReturnHandler(Protocol):
    """What is called when a function returns."""

    def __call__(self, ri: kretprobe_instance, regs: Any, /) -> object: ...
