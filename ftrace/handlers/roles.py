"""The roles of handlers, and checks of parameters and results."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from sandbox.native.types import Int, Pointer, Type

if TYPE_CHECKING:
    from sandbox.native import NativeFunction


class Role(NamedTuple):
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


def check_callable(handler: Callable[..., Any], role: Role) -> None:
    """Raise TypeError for a Python callable that cannot be called with the role's arguments.

    A callable without a known signature, such as some functions written in C, passes.
    """
    import inspect

    try:
        signature = inspect.signature(handler)
    except ValueError:
        return
    try:
        signature.bind(*role.parameters)
    except TypeError:
        name = getattr(handler, "__qualname__", repr(handler))
        wanted = f"{role} is called with {len(role.parameters)} arguments, ({', '.join(role.parameters)})"
        raise TypeError(f"{name}{signature} cannot be a handler here: {wanted}") from None


def check_native(handler: NativeFunction, role: Role) -> None:
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
