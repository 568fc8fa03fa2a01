"""Metadata of a unit as LLVM IR text: line tables for DWARF, branch weights."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING

from sandbox.native.front.errors import At

if TYPE_CHECKING:
    from sandbox.native.tree import TypedFunction

PLAIN = re.compile(r"[A-Za-z_.$][A-Za-z0-9_.$]*")


class Metadata:
    """Numbers the metadata nodes of one module and keeps each node once."""

    def __init__(self, unit_name: str, first_file: str) -> None:
        self._nodes: dict[str, int] = {}
        file = self.file(first_file)
        self._types = self._add("!DISubroutineType(types: !{})")
        self._unit = self._add(
            f"distinct !DICompileUnit(language: DW_LANG_C99, file: !{file}, producer: {quoted('fprobe ' + unit_name)}, "
            "isOptimized: true, runtimeVersion: 0, emissionKind: FullDebug)"
        )
        self._flags = [
            self._add('!{i32 2, !"Debug Info Version", i32 3}'),
            self._add('!{i32 7, !"Dwarf Version", i32 4}'),
        ]

    def file(self, filename: str) -> int:
        """The node of a source file."""
        path = PurePath(filename)
        name, directory = quoted(path.name), quoted(str(path.parent))
        return self._add(f"!DIFile(filename: {name}, directory: {directory})")

    def subprogram(self, function: TypedFunction, symbol: str) -> int:
        """The node of a function; attach it to the definition with `!dbg`."""
        file = self.file(function.filename)
        return self._add(
            f"distinct !DISubprogram(name: {quoted(function.name)}, linkageName: {quoted(symbol)}, scope: !{file}, "
            f"file: !{file}, line: {function.at.line}, type: !{self._types}, scopeLine: {function.at.line}, "
            f"spFlags: DISPFlagDefinition | DISPFlagOptimized, unit: !{self._unit})"
        )

    def location(self, at: At, subprogram: int) -> int:
        """The node of a position inside *subprogram*."""
        return self._add(f"!DILocation(line: {at.line}, column: {at.column}, scope: !{subprogram})")

    def unlikely(self) -> int:
        """Branch weights that say: hardly ever the first way."""
        return self._add('!{!"branch_weights", i32 1, i32 2000}')

    def text(self) -> str:
        """All nodes and the module's flags."""
        flags = ", ".join(f"!{flag}" for flag in self._flags)
        nodes = [f"!{number} = {node}" for node, number in self._nodes.items()]
        return "\n".join([f"!llvm.dbg.cu = !{{!{self._unit}}}", f"!llvm.module.flags = !{{{flags}}}", *nodes])

    def _add(self, node: str) -> int:
        return self._nodes.setdefault(node, len(self._nodes))


def identifier(name: str) -> str:
    """*name* as LLVM writes it after `@` or `%`: quoted when it is not plain ASCII."""
    return name if PLAIN.fullmatch(name) else quoted(name)


def quoted(text: str) -> str:
    """*text* as a quoted LLVM string."""
    safe = (chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:02X}" for b in text.encode())
    return '"' + "".join(safe) + '"'
