"""The LLVM module that functions are lowered into: types, symbols, declarations, metadata."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from sandbox.native.front.declarations import Extern, GlobalVariable
from sandbox.native.front.errors import At
from sandbox.native.front.structs import Struct
from sandbox.native.types import Array, Bool, Function, Int, Type, void

if TYPE_CHECKING:
    from sandbox.native.tree import TypedFunction


TRIPLE = "x86_64-unknown-linux-gnu"
DATA_LAYOUT = "e-m:e-p270:32:32-p271:32:32-p272:64:64-i64:64-i128:128-f80:128-n8:16:32:64-S128"
_GIVEN = re.compile(r'^(?:(?:define|declare)\b[^@\n]*)?@([-\w$.]+|"[^"\n]*")', re.MULTILINE)
_DEFINED = re.compile(r'^define\b[^@\n]*@([-\w$.]+|"[^"\n]*")', re.MULTILINE)
CONVENTIONS = {"c": "", "preserve_most": "preserve_mostcc ", "preserve_all": "preserve_allcc "}
"""How LLVM writes the calling conventions of `declarations.CONVENTIONS`."""
GENERAL_REGISTERS_ONLY = "-x87,-mmx,-sse,-sse2,-sse3,-ssse3,-sse4.1,-sse4.2,-avx,-avx2,-avx512f"
_PLAIN_NAME = re.compile(r"[A-Za-z_.$][A-Za-z0-9_.$]*")


class ModuleText:
    """Collects what lowered functions refer to. Symbols are given by `symbols`: object -> name."""

    def __init__(self, metadata: Metadata, symbols: dict[Any, str], checked: bool = False) -> None:
        self.metadata = metadata
        self._symbols = symbols
        self._defined = frozenset(symbols.values())
        self.checked = checked
        self._structs: dict[Struct, str] = {}
        self._definitions: dict[str, str] = {}
        self._declarations: dict[str, str] = {}
        self._globals: dict[str, str] = {}

    def symbol(self, target: Any) -> str:
        """The `@name` of a function or variable; an external one gets its declaration."""
        if isinstance(target, Extern):
            return self._extern(target)
        return f"@{identifier(self._symbols[target])}"

    def global_variable(self, variable: GlobalVariable | Extern) -> str:
        """The `@name` of a variable."""
        if isinstance(variable, Extern):
            return self._extern(variable)
        symbol = identifier(self._symbols[variable])
        if symbol not in self._globals:
            type_ = variable.type
            value = self._initial(type_, variable.initial)
            self._globals[symbol] = f"@{symbol} = dso_local global {self.memory(type_)} {value}, align {_align(type_)}"
        return f"@{symbol}"

    def count(self, event: str) -> str:
        """The instruction that counts *event* in the unit's counter `native.<event>`."""
        symbol = f"native.{event}"
        self._globals[symbol] = f"@{symbol} = dso_local global i64 0, align 8"
        return f"atomicrmw add ptr @{symbol}, i64 1 monotonic, align 8"

    def declare(self, name: str, declaration: str) -> None:
        """Declares an LLVM intrinsic once."""
        self._declarations[name] = declaration

    def memory(self, type_: Type) -> str:
        """The text of *type_* as stored in memory."""
        if isinstance(type_, Bool):
            return "i8"
        if isinstance(type_, Array):
            return f"[{type_.count} x {self.memory(type_.element)}]"
        if isinstance(type_, Struct):
            return self._struct(type_)
        return register(type_)

    def text(self, name: str, assembly: str, functions: list[str], llvm: str = "") -> str:
        """The whole module; `llvm` is text that belongs to it, and whose names are not declared here."""
        given = defined_in(llvm)
        declarations = [text for symbol, text in self._declarations.items() if symbol not in given]
        head = [f"; unit {name}", f"source_filename = {quoted(name)}"]
        head += [f'target datalayout = "{DATA_LAYOUT}"', f'target triple = "{TRIPLE}"']
        head += [f"module asm {quoted(line)}" for line in assembly.splitlines()]
        parts = [*head, *self._definitions.values(), *self._globals.values(), *declarations]
        return "\n".join([*parts, *functions, llvm, self.metadata.text(), ""])

    def _extern(self, target: Extern) -> str:
        name = f"@{identifier(target.symbol)}"
        if target.symbol not in self._defined:
            self._declarations[target.symbol] = _declaration(name, target, self)
        return name

    def _struct(self, struct: Struct) -> str:
        if struct not in self._structs:
            taken = self._structs.values()
            name = f"%{identifier(struct.name)}"
            self._structs[struct] = (
                name if name not in taken else f"%{identifier(f'{struct.name}.{len(self._structs)}')}"
            )
            fields = ", ".join(map(self.memory, struct.fields.values()))
            self._definitions[struct.name + str(id(struct))] = f"{self._structs[struct]} = type {{ {fields} }}"
        return self._structs[struct]

    def _initial(self, type_: Type, initial: int | tuple[int, ...]) -> str:
        if initial in (0, ()):
            return "zeroinitializer" if not isinstance(type_, (Int, Bool)) else "0"
        if isinstance(initial, int):
            return str(int(initial))
        assert isinstance(type_, Array)
        values = [*initial, *[0] * (type_.count - len(initial))]
        return "[" + ", ".join(f"{self.memory(type_.element)} {value}" for value in values) + "]"


def defined_in(llvm: str) -> frozenset[str]:
    """The functions and variables that LLVM IR text defines or declares."""
    return frozenset(name.strip('"') for name in _GIVEN.findall(llvm))


def functions_in(llvm: str) -> list[str]:
    """The functions that LLVM IR text defines, in its order."""
    return [name.strip('"') for name in _DEFINED.findall(llvm)]


def _declaration(name: str, target: Extern, module: ModuleText) -> str:
    type_ = target.type
    if not isinstance(type_, Function):
        return f"{name} = external global {module.memory(type_)}"
    parameters = ", ".join(map(passed, type_.parameters))
    return f"declare {CONVENTIONS[target.cc]}{returned(type_.result)} {name}({parameters}) nounwind"


def _align(type_: Type) -> int:
    return 16 if type_.size >= 16 else max(type_.align, 1)


def register(type_: Type) -> str:
    """How a value of *type_* is written where it is in a register."""
    if isinstance(type_, Int):
        return f"i{type_.bits}"
    if isinstance(type_, Bool):
        return "i1"
    return "void" if type_ == void else "ptr"


def passed(type_: Type) -> str:
    """A parameter of *type_* with the extension that C callers expect."""
    return f"{register(type_)} {extension(type_)}".strip()


def returned(type_: Type) -> str:
    """A result of *type_* with the extension that C callers expect."""
    return f"{extension(type_)} {register(type_)}".strip()


def extension(type_: Type) -> str:
    """`signext` or `zeroext` for a type narrower than 32 bits, else nothing."""
    if isinstance(type_, Bool):
        return "zeroext"
    if isinstance(type_, Int) and type_.bits < 32:
        return "signext" if type_.signed else "zeroext"
    return ""


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
        """Branch weights: the first target is hardly ever taken."""
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
    return name if _PLAIN_NAME.fullmatch(name) else quoted(name)


def quoted(text: str) -> str:
    """*text* as a quoted LLVM string."""
    safe = (
        chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:02X}" for b in text.encode("utf-8", "surrogateescape")
    )
    return '"' + "".join(safe) + '"'
