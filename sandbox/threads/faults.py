"""Faults of programs: the call that entered the program raises SandboxFault.

Nothing guards calls until a guard is installed (`ftrace` does, when its runtime starts): without one, a fault ends the
process as usual.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from sandbox.symbols.source_lines import SourceLine


class Guard(NamedTuple):
    """Guards calls: `entry(address)` is the address to call instead of a function's; `check()` raises after a fault."""

    entry: Callable[[int], int]
    check: Callable[[], None]


installed: Guard | None = None
"""The guard that calls use."""


class SandboxFault(RuntimeError):
    """A program caused a fault. The interpreter continues; the call is lost.

    `signal`: its number; `address`: the accessed address, or 0; `ip`: the program's position, `location` the same as text;
    `registers`: name -> value; `shadow_stack`: the hooked calls that had not returned, innermost first, as text;
    `probe`: whether it was in a probe's handler and not in the program itself; `source`: the line of the source that
    the program was in, None if nothing is known of it; `handler`: which handler of which kprobe it was in, as text, or "".
    """

    def __init__(
        self,
        number: int,
        address: int,
        ip: int,
        location: str,
        registers: dict[str, int],
        shadow_stack: list[str],
        probe: bool,
        source: SourceLine | None = None,
        handler: str = "",
    ) -> None:
        self.signal = number
        self.address = address
        self.ip = ip
        self.location = location
        self.registers = registers
        self.shadow_stack = shadow_stack
        self.probe = probe
        self.source = source
        self.handler = handler
        super().__init__(self._sentence())

    def _sentence(self) -> str:
        import signal

        from sandbox.process.signal_names import signal_name

        who = f"the {self.handler}, at " if self.handler else "a probe handler at " if self.probe else ""
        place = f"{who}{self.location}"
        accessed = f" accessing {self.address:#x}" if self.signal in (signal.SIGSEGV, signal.SIGBUS) else ""
        inside = f", inside {' < '.join(self.shadow_stack)}" if self.shadow_stack else ""
        source = f" ({self.source})" if self.source else ""
        return f"{signal_name(self.signal)} in {place}{source}{accessed}{inside}"
