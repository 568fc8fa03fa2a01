"""Writing the body of one function: instructions, blocks, and the values that are in scope."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from random import Random


class Body:
    """The instructions of a function while they are being written.

    Values are known by type. Only values that dominate the current place are in scope, so that whatever is chosen at
    random is well-formed.
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        self.block = "entry"
        """The label of the block being written."""
        self._lines: list[str] = []
        self._allocas: list[str] = []
        self._scopes: list[list[tuple[str, str]]] = [[]]
        self._count = 0

    def fresh(self, stem: str = "v") -> str:
        """A name, without its `%`, that is not used yet."""
        self._count += 1
        return f"{stem}{self._count}"

    def line(self, text: str) -> None:
        """Add an instruction without a result."""
        self._lines.append(f"  {text}")

    def emit(self, text: str) -> str:
        """Add an instruction with a result; the operand that names it. It is not offered for later use."""
        name = f"%{self.fresh()}"
        self._lines.append(f"  {name} = {text}")
        return name

    def keep(self, kind: str, operand: str) -> str:
        """Offer a value for later use in this scope."""
        self._scopes[-1].append((kind, operand))
        return operand

    def new(self, kind: str, text: str) -> str:
        """Add an instruction and offer its result."""
        return self.keep(kind, self.emit(text))

    def allocate(self, kind: str) -> str:
        """Room for a value of that type in the frame, uninitialised."""
        name = f"%{self.fresh('room')}"
        self._allocas.append(f"  {name} = alloca {kind}, align 16")
        return name

    def start(self, label: str) -> None:
        """Begin the block `label`. The one before must have been ended by a branch or a return."""
        self._lines.append(f"{label}:")
        self.block = label

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Values that are kept inside are out of scope afterwards."""
        self._scopes.append([])
        yield
        self._scopes.pop()

    @property
    def depth(self) -> int:
        """How many scopes are open."""
        return len(self._scopes) - 1

    def in_scope(self, kind: str) -> list[str]:
        """The operands of that type that may be used here."""
        return [operand for scope in self._scopes for known, operand in scope if known == kind]

    def recent(self, count: int) -> list[tuple[str, str]]:
        """The last values of the innermost scope, as (type, operand)."""
        return self._scopes[-1][-count:]

    def text(self) -> str:
        """The body, from the entry block on."""
        return "\n".join(["entry:", *self._allocas, *self._lines])
