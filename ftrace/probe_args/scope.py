"""The names that a probe's arguments can refer to: registers, parameters, the return value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sandbox.abi.btf import Prototype


@dataclass
class Scope:
    """Where a probe is, as its arguments see it.

    `at_entry`: at a function's entry; `at_return`: a return probe. `has_registers`: `%REG` is available.
    `find_prototype` gives the probed function's, None if it is not known.
    """

    at_entry: bool = False
    at_return: bool = False
    has_registers: bool = True
    find_prototype: Callable[[], Prototype | None] = lambda: None
    saved: list[int] = field(default_factory=list)
    """The parameters that a return probe has to save at entry, in the order of their slots."""

    @property
    def prototype(self) -> Prototype | None:
        """The prototype, if it names parameters or a return value that an argument can use."""
        return self.find_prototype()

    @property
    def has_parameters(self) -> bool:
        """Whether the function's arguments are available: at its entry, or, saved there, at its return."""
        return self.at_entry or self.at_return

    def slot_of(self, parameter: int) -> int:
        """The slot in which parameter number `parameter` (from 0) is saved at entry."""
        if parameter not in self.saved:
            self.saved.append(parameter)
        return self.saved.index(parameter)
