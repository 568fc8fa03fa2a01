"""Names in Python handlers that cannot work, found before the handlers are called: registers, and operations of maps."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from ftrace.hit.x86_64.pt_regs import pt_regs
from sandbox.process.near import did_you_mean

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
