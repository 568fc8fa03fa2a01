"""A key for the compiled form of a unit, found without parsing or compiling anything.

Everything that could change the object changes the key: the text of the functions' files, the values that those files see
(constants, structs, externs), the unit's options, this compiler, and LLVM's version. The key is conservative: any edit of such a
file changes it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from sandbox.native.containers import Container
from sandbox.native.front.declarations import Const, Extern, GlobalVariable
from sandbox.native.front.structs import Struct
from sandbox.native.front.text import traits
from sandbox.native.function import NativeFunction
from sandbox.native.types import Array, Function, Pointer, Type
from sandbox.native.unit import Unit
from sandbox.process.digests import sha256
from sandbox.process.packages import package_file

_WORD = re.compile(r"[^\W\d]\w*")


def fingerprint(unit: Unit, form: int | str = 2) -> str:
    """The key of what `compile_unit(unit, form)` makes, or another form of the unit: 64 hexadecimal digits."""
    names = [function.name for function in unit.functions]
    whole = (_compiler(), unit.options, unit.assembly_text, unit.llvm, form, names)
    digest = sha256(repr(whole).encode())
    for line in _Reader().read(unit.functions):
        digest.update(line.encode("utf-8", "surrogateescape"))
        digest.update(b"\0")
    return digest.hexdigest()


_NATIVE = Path(__file__).parent.parent
_VERIFYING = (_NATIVE.parent / "elf" / "tables.py", _NATIVE.parent / "x86_64" / "decoding.py")
"""What the result of `sandbox.native.back.verify` depends on; it is cached with the object."""


@cache
def _compiler() -> str:
    """The text of the whole compiler, from syntax to verification, and the version of llvmlite, which is not imported for it."""
    digest = sha256(repr(sys.version_info[:2]).encode())
    llvmlite = package_file("llvmlite")
    version = [llvmlite.with_name("_version.py")] if llvmlite else []
    for file in [*version, *_VERIFYING, *sorted(_NATIVE.rglob("*.py"))]:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _words(function: NativeFunction, lines: tuple[str, ...]) -> list[str]:
    """The identifiers in the source of *function*, in order, as far as its code reaches."""
    code = function.__wrapped__.__code__
    last = max(line for *_, line in code.co_lines() if line is not None)
    return list(dict.fromkeys(_WORD.findall("".join(lines[code.co_firstlineno - 1 : last]))))


class _Reader:
    """Reads all that functions depend on, each thing once."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._waiting: list[NativeFunction] = []

    def read(self, functions: list[NativeFunction]) -> Iterator[str]:
        self._waiting += reversed(functions)
        while self._waiting:
            function = self._waiting.pop()
            if self._is_new(function):
                yield f"{function.name} {function.options} {function.filename}"
                yield repr(traits(function.__wrapped__.__code__))
                yield from self._module(function)
                yield from self._names(function.namespace.locals)
                for type_ in function.implied:
                    yield from self._type(type_)

    def _module(self, function: NativeFunction) -> Iterator[str]:
        names = function.__wrapped__.__globals__
        lines = function.text.lines
        if self._is_new(lines):
            yield "".join(lines)
        yield from self._names({word: names[word] for word in _words(function, lines) if word in names})

    def _names(self, names: Mapping[str, Any]) -> Iterator[str]:
        for name, value in list(names.items()):
            if not name.startswith("__"):
                yield from (f"{name}={part}" for part in self._value(value))

    def _value(self, value: Any) -> Iterator[str]:
        if isinstance(value, NativeFunction):
            self._waiting.append(value)
            yield value.name
        elif isinstance(value, Container):
            yield from self._container(value)
        elif isinstance(value, (int, Const)):
            yield repr(value)
        elif isinstance(value, Type):
            yield from self._type(value)
        elif isinstance(value, (Extern, GlobalVariable)):
            yield f"{type(value).__name__} {value.symbol} {getattr(value, 'initial', '')} {getattr(value, 'cc', '')}"
            yield from self._type(value.annotation)
        elif isinstance(value, (ModuleType, type)) and self._is_new(value):
            yield from self._constants(value)

    def _constants(self, owner: ModuleType | type) -> Iterator[str]:
        """The integers that can be reached as `owner.NAME`."""
        for name, value in list(vars(owner).items()):
            if isinstance(value, (int, Const)) and not name.startswith("_"):
                yield f"{name}={value!r}"
            elif isinstance(value, (NativeFunction, Container)):
                yield from self._value(value)

    def _container(self, container: Container) -> Iterator[str]:
        yield f"{container.name} {container.is_shared}"
        for name, operation in container.operations.items():
            self._waiting.append(operation.function)
            yield f"{name} {operation.function.name}"
            for type_ in (*operation.parameters, operation.result, operation.place):
                yield from self._type(type_)

    def _type(self, type_: Any) -> Iterator[str]:
        yield str(type_)
        if isinstance(type_, Pointer):
            yield from self._type(type_.target)
        elif isinstance(type_, Array):
            yield from self._type(type_.element)
        elif isinstance(type_, Function):
            for part in (type_.result, *type_.parameters):
                yield from self._type(part)
        elif isinstance(type_, Struct) and self._is_new(type_):
            for name, field in type_.fields.items():
                yield name
                yield from self._type(field)

    def _is_new(self, thing: Any) -> bool:
        """Objects that are kept while the key is computed, so that their ids stay unique."""
        new = id(thing) not in self._seen
        self._seen.add(id(thing))
        return new
