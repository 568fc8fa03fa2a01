"""Handlers of all kinds of probes: their roles, with checks of parameters and results, and their code."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

from ftrace.hit.records import ENTRY_ARGUMENTS, ENTRY_REGS, ENTRY_SP, EXIT_REGS, EXIT_RESULTS, FOREIGN, PYTHON
from ftrace.hit.x86_64.images import ARGUMENTS, ARGUMENTS_SP, RESULTS
from sandbox.native.handler import Fields
from sandbox.native.types import Int, Pointer, Type

if TYPE_CHECKING:
    from ftrace.core.handlers.native_link import HandlerCode
    from sandbox.native import NativeFunction


class BoundHandler(NamedTuple):
    """A handler's code.

    `kind`: FOREIGN and PYTHON (ftrace.hit.records). `plain`: native code that keeps its registers. `registers`: the fields
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


_CFunction: Any = ctypes.CFUNCTYPE(None).__base__
"""The class of every ctypes function pointer."""

NO_HANDLER = BoundHandler(0, registers=Fields())


def entry_kind(used: Fields | None) -> int:
    """ENTRY_* (ftrace.hit.records) for a native entry handler that uses these registers."""
    return _kind(used, ENTRY_REGS, (ARGUMENTS, ENTRY_ARGUMENTS), (ARGUMENTS_SP, ENTRY_SP))


def exit_kind(used: Fields | None) -> int:
    """EXIT_* for a native exit handler."""
    return _kind(used, EXIT_REGS, (RESULTS, EXIT_RESULTS))


def _kind(used: Fields | None, any_: int, *images: tuple[Fields, int]) -> int:
    """The flag of the first image that has all used registers; `any_` if none has."""
    if used is None:
        return any_
    enough = (
        kind for held, kind in ((Fields(), 0), *images) if used.read <= held.read and used.written <= held.written
    )
    return next(enough, any_)


def _pointer(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def foreign_address(handler: Any) -> int | None:
    """The address of C code, or None: ctypes, cffi, a Numba cfunc, a function of a loaded module."""
    if isinstance(handler, _CFunction):
        return _pointer(handler)
    if type(handler).__module__ == "_cffi_backend":
        return _cffi_address(handler)
    address = getattr(handler, "address", None)
    return address if isinstance(address, int) and not isinstance(handler, FunctionType) else None


def _cffi_address(handler: Any) -> int:
    import cffi

    return int(cffi.FFI().cast("uintptr_t", handler))


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


def check_callable(handler: Callable[..., Any], role: HandlerRole) -> None:
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
        wanted = f"called with {len(role.parameters)} arguments, ({', '.join(role.parameters)})"
        raise TypeError(f"{name}{signature} cannot be {role}, which is {wanted}") from None


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
