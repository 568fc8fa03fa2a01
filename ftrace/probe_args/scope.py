"""The names that a probe's arguments can refer to: registers, parameters, the return value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sandbox.abi.btf import Prototype


@dataclass
class Scope:
    """The context of a probe: what its arguments can refer to.

    `at_entry`: at a function's entry; `at_return`: a return probe. `has_registers`: `%REG` is available.
    `find_prototype` returns the probed function's prototype, None if it is not known.
    """

    at_entry: bool = False
    at_return: bool = False
    has_registers: bool = True
    find_prototype: Callable[[], Prototype | None] = lambda: None
    saved: list[int] = field(default_factory=list)
    """The parameters that a return probe saves at entry, in the order of their slots."""
    has_read_prototype: bool = False
    """Whether a prototype has been found for an earlier word: only the first look at it reports that it has no parameters."""

    @property
    def prototype(self) -> Prototype | None:
        """The prototype, if it names parameters or a return value that an argument can use."""
        return self.find_prototype()

    @property
    def has_parameters(self) -> bool:
        """Whether the function's parameters are available: at its entry, or at its return (saved at entry)."""
        return self.at_entry or self.at_return

    def slot_of(self, parameter: int) -> int:
        """The slot in which parameter number `parameter` (from 0) is saved at entry."""
        if parameter not in self.saved:
            self.saved.append(parameter)
        return self.saved.index(parameter)
