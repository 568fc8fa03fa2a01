"""The instructions of one function as text: fresh names, blocks, and the source position of each instruction.

Names made by the compiler contain a dot, which names of the source cannot.
"""

from __future__ import annotations

from sandbox.native.back.module import ModuleText, identifier
from sandbox.native.front.errors import At

ENTRY = "entry.0"


class Emitter:
    """Appends instructions to the current block of a function."""

    def __init__(self, module: ModuleText, subprogram: int) -> None:
        self.module = module
        self._subprogram = subprogram
        self._lines: list[str] = []
        self._allocas: list[str] = []
        self._values = 0
        self._blocks = 0
        self._location = ""
        self.terminated = False
        self.current = ENTRY

    def position(self, at: At) -> None:
        """Attribute the following code to the source position *at*."""
        self._location = f", !dbg !{self.module.metadata.location(at, self._subprogram)}"

    def value(self, instruction: str) -> str:
        """Emits an instruction with a result; returns the result's name."""
        self._values += 1
        name = f"%t.{self._values}"
        self.emit(f"{name} = {instruction}")
        return name

    def emit(self, instruction: str) -> None:
        self._lines.append(f"  {instruction}{self._location}")

    def alloca(self, name: str, memory: str, align: int) -> str:
        """Space on the stack, allocated once at the function's entry."""
        slot = f"%{identifier(name + '.slot')}"
        self._allocas.append(f"  {slot} = alloca {memory}, align {align}")
        return slot

    def label(self, hint: str) -> str:
        """A fresh name for a block."""
        self._blocks += 1
        return f"{hint}.{self._blocks}"

    def begin(self, label: str) -> None:
        """The block *label* starts here; what came before flows into it unless it has ended."""
        if not self.terminated:
            self.jump(label)
        self._lines.append(f"{label}:")
        self.terminated, self.current = False, label

    def jump(self, label: str) -> None:
        """Ends the block with a jump."""
        self.terminate(f"br label %{label}")

    def branch(self, condition: str, then: str, otherwise: str) -> None:
        """Ends the block with a conditional jump."""
        self.terminate(f"br i1 {condition}, label %{then}, label %{otherwise}")

    def rarely(self, condition: str, event: str, otherwise: str) -> str:
        """Ends the block with a jump to *otherwise*, or when *condition* holds to a new block, which it returns.

        The new block is begun and counts *event*; it is placed away from the hot code.
        """
        rare = self.label(event)
        weights = f", !prof !{self.module.metadata.unlikely()}"
        self.terminate(f"br i1 {condition}, label %{rare}, label %{otherwise}{weights}")
        self.begin(rare)
        self.value(self.module.count(event))
        return rare

    def terminate(self, instruction: str) -> None:
        """Ends the block."""
        self.emit(instruction)
        self.terminated = True

    def body(self) -> str:
        """The text between the braces."""
        return "\n".join([f"{ENTRY}:", *self._allocas, *self._lines])
