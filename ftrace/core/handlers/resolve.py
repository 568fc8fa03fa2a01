"""Resolving a handler to its code: a Python callable, a C function pointer, or a native function; and what it must be."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

from ftrace.core.handlers.kinds import NO_HANDLER, BoundHandler, HandlerRole
from ftrace.core.handlers.python_handler import may_enter_python
from ftrace.hit.records import ENTRY_ARGUMENTS, ENTRY_REGS, ENTRY_SP, EXIT_REGS, EXIT_RESULTS, FOREIGN, IN_C, PYTHON
from ftrace.hit.x86_64.images import ARGUMENTS, ARGUMENTS_SP, RESULTS
from ftrace.hit.x86_64.pt_regs import pt_regs
from sandbox.native import NativeFunction
from sandbox.native.handler import Fields
from sandbox.process.near import did_you_mean

_CFunction: Any = ctypes.CFUNCTYPE(None).__base__
"""The class of every ctypes function pointer."""


def resolve(
    handler: Any, role: HandlerRole, of_python: Callable[[Callable[..., Any], HandlerRole], BoundHandler]
) -> BoundHandler:
    """The code of `handler`: None, code already resolved, or one of the three kinds; `of_python` makes a callable's.

    Raises TypeError naming what cannot be a handler, or has the wrong parameters.
    """
    if handler is None:
        return NO_HANDLER
    if isinstance(handler, BoundHandler):
        return handler
    if isinstance(handler, NativeFunction):
        return native(handler, role)
    address = foreign_address(handler)
    if address is not None:
        kind = FOREIGN | PYTHON | IN_C if _enters_python(handler) else FOREIGN
        return BoundHandler(address, kind, keep=handler, name=f"in C at {address:#x}")
    if callable(handler):
        check_callable(handler, role)
        check_names(handler, role.regs)
        return of_python(handler, role)
    raise TypeError(f"not {role}: {handler!r}; give a callable, a C function pointer or a native function")


def native(handler: NativeFunction, role: HandlerRole) -> BoundHandler:
    """The code of a native handler, which is compiled once in each role."""
    from ftrace.core.handlers.native_handler import linked  # it brings the compiler's front, which few programs need

    return linked(handler, role)


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


def _enters_python(handler: Any) -> bool:
    """Whether the C code is that of a ctypes or cffi callback, which is not called where a Python handler is not."""
    if isinstance(handler, _CFunction):
        kept = (handler._objects or {}).values()
        is_callback = any(type(each).__name__ == "CThunkObject" for each in kept)
    else:
        is_callback = type(handler).__module__ == "_cffi_backend" and " calling " in repr(handler)
    return is_callback and may_enter_python()


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


# -- names in Python handlers that cannot work, found before the handlers are called ----------------------------------

_FIELDS = tuple(name for name, _ in pt_regs.ctypes._fields_)
_OTHER_NAMES = {"pc": "ip", "eflags": "flags", "rflags": "flags", "orig_rax": "orig_ax"}
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR")


def register_meant(name: str) -> str:
    """The kernel's name of a register, such as `di` for `rdi` and `edi`; '' if that is none."""
    candidates = (name, _OTHER_NAMES.get(name, ""), name[1:] if name[:1] in ("r", "e") else "", name.rstrip("dwb"))
    return next((each for each in candidates if each in _FIELDS), "")


def no_register(name: str) -> str:
    """The sentence for a field that a pt_regs does not have."""
    meant = register_meant(name)
    advice = f"; give {meant}" if meant else did_you_mean(name, _FIELDS)
    return f"pt_regs has no field {name!r}{advice}: fields have the kernel's names, {', '.join(_FIELDS)}"


def _missing(regs: Any, name: str) -> Any:
    raise AttributeError(no_register(name), name=name, obj=regs)


def _set(regs: Any, name: str, value: Any) -> None:
    if name not in _FIELDS and not name.startswith("__"):
        raise AttributeError(no_register(name), name=name, obj=regs)
    object.__setattr__(regs, name, value)


pt_regs.ctypes.__getattr__ = _missing
pt_regs.ctypes.__setattr__ = _set


def check_names(handler: Callable[..., Any], parameter: int) -> None:
    """Raise TypeError for a function that uses an unknown register, or an operation of a map that only native functions have.

    `parameter`: the index of the one that the registers are. Names in other functions that it calls are not seen.
    """
    import inspect  # only where a handler is Python

    from sandbox.native.containers import only_native

    function = inspect.unwrap(handler)
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if code is None:
        return
    bound = inspect.ismethod(inspect.unwrap(handler))
    names = code.co_varnames[: code.co_argcount][bound:]
    registers = names[parameter] if parameter < len(names) else None
    for kind, name, attribute, line in _attributes(code):
        if kind == "FAST" and name == registers:
            wrong = no_register(attribute) if not hasattr(pt_regs.ctypes, attribute) else ""
        else:
            wrong = only_native(_value(function, kind, name), attribute)
        if wrong:
            raise TypeError(f"{getattr(function, '__qualname__', function)}, line {line}: {wrong}")


def _attributes(code: Any) -> Iterator[tuple[str, str, str, int]]:
    """Each attribute of a variable: the variable's kind (FAST, GLOBAL, DEREF) and name, the attribute's name, and the line."""
    import dis

    instructions = [each for each in dis.get_instructions(code) if each.opname not in ("CACHE", "EXTENDED_ARG")]
    lines = [(at, line) for at, line in dis.findlinestarts(code)]
    rebound = {each.argval for each in instructions if each.opname.startswith("STORE_FAST")}
    for first, second in itertools.pairwise(instructions):
        if second.opname not in _ATTRIBUTES or not first.opname.startswith(("LOAD_FAST", "LOAD_GLOBAL", "LOAD_DEREF")):
            continue
        name = first.argval[-1] if isinstance(first.argval, tuple) else first.argval
        if name not in rebound:
            line = [code.co_firstlineno, *(line for at, line in lines if at <= first.offset and line)][-1]
            yield first.opname.split("_")[1], name, second.argval, line


def _value(function: Any, kind: str, name: str) -> Any:
    """The present value of a global variable, or of one of an enclosing function; None if it has none."""
    if kind == "GLOBAL":
        return function.__globals__.get(name)
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))
    try:
        return cells[name].cell_contents if kind == "DEREF" and name in cells else None
    except ValueError:  # it is not set yet
        return None
