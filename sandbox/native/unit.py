"""Units: functions that are compiled together, with all functions that they reach."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sandbox.native.function import NativeFunction
from sandbox.process.once import cached_property


class Assembly(NamedTuple):
    """Assembly that is made on demand by `make(*inputs)`, and depends on nothing but the inputs and this package's files."""

    make: Callable[..., str]
    inputs: tuple[Any, ...]

    def __repr__(self) -> str:
        return f"{self.make.__module__}.{self.make.__qualname__}{self.inputs}"


class Unit:
    """Functions that become one LLVM module.

    *functions* are its entry points: visible under their own names. Functions that they reach are included as internal ones.
    *assembly* is text for LLVM's assembler in the same module; LLVM ends the process at an invalid line.
    *features*: `no_sse` (nothing but general registers).
    *bounded* is False for a unit whose loops are trusted to terminate.
    *checked* compares every index into an array of known length with that length; one outside becomes 0.
    *llvm* is LLVM IR text, without a target, for code that the language cannot express: its functions and variables are
    reached by `extern`, and it may refer to the unit's functions, variables and structs.
    *red_zone* allows code to use the 128 bytes under the stack pointer. *functions* may be extended until it is compiled.
    """

    def __init__(
        self,
        name: str,
        functions: Sequence[Callable[..., Any]] = (),
        *,
        features: str = "no_sse",
        bounded: bool = True,
        checked: bool = False,
        assembly: str | Assembly = "",
        red_zone: bool = True,
        llvm: str = "",
    ) -> None:
        if features != "no_sse":
            raise ValueError(f"features must be 'no_sse', not {features!r}: native code uses general registers only")
        self.name = name
        self.functions: list[NativeFunction] = []
        self.add(*functions)
        self.assembly = assembly
        self.bounded = bounded
        self.checked = checked
        self.red_zone = red_zone
        self.llvm = llvm

    @property
    def options(self) -> tuple[str, bool, bool, bool]:
        """The options that, besides the functions and texts, determine the object."""
        return self.name, self.bounded, self.checked, self.red_zone

    @cached_property
    def assembly_text(self) -> str:
        """The assembly, made if it was not given as text."""
        return self.assembly.make(*self.assembly.inputs) if isinstance(self.assembly, Assembly) else self.assembly

    def add(self, *functions: Callable[..., Any]) -> None:
        """Adds entry points. Raises TypeError for an object that is not a native function."""
        for function in functions:
            if not isinstance(function, NativeFunction):
                raise TypeError(f"a unit takes @native functions, not {function!r}")
            self.functions.append(function)
