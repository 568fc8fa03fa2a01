"""The signatures of handlers, for type checkers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from fprobe.registration import fprobe


class EntryHandler(Protocol):
    """Called when a function is entered. `regs`: a pt_regs; `entry_data`: a memoryview, or None.

    Non-zero: do not call the exit handler for this call.
    """

    def __call__(self, fp: fprobe, entry_ip: int, ret_ip: int, regs: Any, entry_data: Any, /) -> int | None: ...


class ExitHandler(Protocol):
    """Called when a function returns. `regs`: a pt_regs; `entry_data`: a memoryview, or None."""

    def __call__(self, fp: fprobe, entry_ip: int, ret_ip: int, regs: Any, entry_data: Any, /) -> object: ...
