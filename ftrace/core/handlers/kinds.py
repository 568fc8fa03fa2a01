"""Handlers of all kinds of probes: their roles, and their code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ftrace.hit.records import FOREIGN, PYTHON
from sandbox.native import NativeFunction
from sandbox.native.handler import Fields
from sandbox.native.types import Int, Pointer, Type

if TYPE_CHECKING:
    from ftrace.core.handlers.native_link import HandlerCode


class BoundHandler(NamedTuple):
    """A handler's code.

    `kind`: FOREIGN, PYTHON and IN_C (ftrace.hit.records). `plain`: native code that keeps its registers. `registers`: the fields
    of its `regs` that it uses; None: perhaps all. `cookie`: its first argument, if not the address of the probe's native
    half. `keep`: what keeps it alive. `name`: for reports. `code`: of a native handler.
    """

    address: int
    kind: int = 0
    plain: bool = False
    registers: Fields | None = None
    cookie: int = 0
    keep: Any = None
    name: str = ""
    code: HandlerCode | None = None

    @property
    def is_foreign(self) -> bool:
        """Whether it was not compiled as a native handler: it may change any register that the ABI lets it change."""
        return bool(self.kind & FOREIGN)

    @property
    def is_python(self) -> bool:
        """Whether it enters the interpreter."""
        return bool(self.kind & PYTHON)


NO_HANDLER = BoundHandler(0, registers=Fields())


class HandlerRole(NamedTuple):
    """One of the handlers of a kind of probe.

    `parameters`: their names, of which `numbers` cannot be pointers. `result`: what a native handler returns.
    `regs`: which parameter the registers are.
    """

    name: str
    parameters: tuple[str, ...]
    numbers: frozenset[str]
    result: Type
    is_exit: bool
    regs: int

    def __str__(self) -> str:
        return f"{'an' if self.name[0] in 'aeiou' else 'a'} {self.name}"


def check_native(handler: NativeFunction, role: HandlerRole) -> None:
    """Raise TypeError for a native function whose signature is not the role's."""
    types, names = handler.signature.parameters, role.parameters
    if len(types) != len(names):
        given = ", ".join(map(str, types))
        raise TypeError(f"{handler.name} takes {len(types)} parameters ({given}); {role} takes ({', '.join(names)})")
    for name, type_ in zip(names, types, strict=True):
        if not _fits(type_, name in role.numbers):
            wanted = "u64" if name in role.numbers else "u64 or a pointer"
            raise TypeError(f"{handler.name} takes its {name} as {type_}; it is {wanted}")
    if handler.signature.result != role.result:
        raise TypeError(f"{handler.name} returns {handler.signature.result}; {role} returns {role.result}")


def _fits(type_: Type, is_number: bool) -> bool:
    return (isinstance(type_, Int) and type_.bits == 64) or (isinstance(type_, Pointer) and not is_number)
