"""What may be a handler of a kprobe or kretprobe: a Python callable, a C function pointer, or a native function."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ftrace.handlers import native_link
from ftrace.handlers.kinds import foreign_address
from ftrace.handlers.parameters import check_parameters
from ftrace.handlers.python_handler import python_handler
from kprobes.instance_data import DataUse, data_use
from sandbox.native import NativeFunction, i32, void
from sandbox.native.handler import Fields, HandlerFunction
from sandbox.native.types import Int, Pointer, Type

if TYPE_CHECKING:
    from kprobes.probe import kprobe
    from kprobes.returns import kretprobe_instance


class PreHandler(Protocol):
    """What is called before the probed instruction. Non-zero: go on at regs.ip instead of executing it."""

    def __call__(self, p: kprobe, regs: Any, /) -> int | None: ...


class PostHandler(Protocol):
    """What is called after it."""

    def __call__(self, p: kprobe, regs: Any, flags: int, /) -> object: ...


class FaultHandler(Protocol):
    """What is called when it faults. Non-zero: handled."""

    def __call__(self, p: kprobe, regs: Any, trapnr: int, /) -> int | None: ...


class ReturnEntryHandler(Protocol):
    """What is called when a function is entered whose returns are probed. Non-zero: not at the return of this call."""

    def __call__(self, ri: kretprobe_instance, regs: Any, /) -> int | None: ...


class ReturnHandler(Protocol):
    """What is called when a function returns."""

    def __call__(self, ri: kretprobe_instance, regs: Any, /) -> object: ...


REGS = 1
"""Which parameter the registers are."""


class Role(NamedTuple):
    """A kind of handler: its parameters' names, its result, and what a Python one is called with."""

    name: str
    parameters: tuple[str, ...]
    result: Type
    is_exit: bool


PRE = Role("pre_handler", ("p", "regs"), i32, False)
POST = Role("post_handler", ("p", "regs", "flags"), void, True)
FAULT = Role("fault_handler", ("p", "regs", "trapnr"), i32, False)
ENTRY = Role("entry_handler", ("ri", "regs"), i32, False)
RETURN = Role("handler", ("ri", "regs"), void, True)


class Code(NamedTuple):
    """A handler's code. `cookie`: what it gets as its first argument, if not the native half of its probe."""

    address: int = 0
    foreign: bool = False
    python: bool = False
    cookie: int = 0
    keep: Any = None
    registers: Fields | None = Fields()
    """The fields of its `regs` that a native one uses; None: perhaps all."""
    name: str = ""
    """For reports of crashes."""
    data: DataUse = DataUse()
    """Of a kretprobe's instance, by a native one."""


_codes: native_link.Once[Code] = native_link.Once()
_ignoring: native_link.Once[bool] = native_link.Once()
"""Whether a native handler does not look at the registers that it is given."""


def resolve(handler: Any, role: Role, this: Any, report: Callable[..., Any], adapt: Callable[[Any], Any]) -> Code:
    """The code of `handler`. A Python callable is called as adapt(handler)(this, ip, ret_ip, regs, data).

    Raises TypeError naming what cannot be a handler, or has the wrong number of parameters.
    """
    if handler is None:
        return Code()
    if isinstance(handler, NativeFunction):
        return _code(handler, role)
    address = foreign_address(handler)
    if address is not None:
        return Code(address, True, keep=handler, name=f"in C at {address:#x}")
    if callable(handler):
        check_parameters(handler, role.name, role.parameters)
        adapted = functools.update_wrapper(adapt(handler), handler)
        made = python_handler(adapted, this, _reporting(report, handler), 0, role.is_exit, lambda _ip: _place(this))
        name = getattr(handler, "__name__", type(handler).__name__)
        return Code(made.address, True, True, made.cookie, made.keep, name=name)
    raise TypeError(f"not a {role.name}: {handler!r}; give a callable, a C function pointer or a native function")


def _place(this: Any) -> int:
    """The address of a kprobe or kretprobe."""
    return getattr(this, "kp", this).addr or 0


def keeps_registers(handler: Any) -> bool:
    """Whether it is a native handler that keeps every register but rax and r11."""
    return isinstance(handler, HandlerFunction) and handler.options.cc == "preserve_most"


def registers(handler: NativeFunction | None, role: Role) -> Fields | None:
    """The fields of its `regs` that a native handler uses; None: perhaps all."""
    return _code(handler, role).registers if handler is not None else Fields()


def is_plain(handler: Any) -> bool:
    """Whether a pre_handler keeps every register but rax and r11, and does not look at those of the hit."""
    return keeps_registers(handler) and _ignoring.get(handler, PRE.name, lambda: not handler.uses(1))


def _reporting(report: Callable[..., Any], handler: Any) -> Callable[..., Any]:
    def told(_adapted: Any, error: BaseException, traceback: Any) -> None:
        report(handler, error, traceback)

    return told


def _code(handler: NativeFunction, role: Role) -> Code:
    """The code of a native handler: the same handler in the same role is compiled once."""
    return _codes.get(handler, role.name, lambda: _compiled(handler, role))


def _compiled(handler: NativeFunction, role: Role) -> Code:
    """A native handler, compiled, verified and linked."""
    if isinstance(handler, HandlerFunction):
        handler = handler.returning(role.result)
    _check(handler, role)
    code = native_link.HandlerCode(handler, role.name)
    image = native_link.link(f"{role.name}:{handler.name}", code.verified_object())
    return Code(
        image.address(handler.name),
        keep=image,
        registers=code.registers(REGS),
        name=handler.name,
        data=DataUse(*json.loads(code.kept("instance data", lambda: json.dumps(data_use(handler)).encode()))),
    )


def _check(handler: NativeFunction, role: Role) -> None:
    signature = handler.signature
    if len(signature.parameters) != len(role.parameters):
        given = ", ".join(map(str, signature.parameters))
        raise TypeError(f"{handler.name} takes ({given}); a {role.name} takes ({', '.join(role.parameters)})")
    for meaning, type_ in zip(role.parameters, signature.parameters, strict=True):
        if not (isinstance(type_, Int) and type_.bits == 64) and not (
            isinstance(type_, Pointer) and meaning != "flags"
        ):
            raise TypeError(f"{handler.name} takes its {meaning} as {type_}; it is u64 or a pointer")
    if signature.result != role.result:
        raise TypeError(f"{handler.name} returns {signature.result}; a {role.name} returns {role.result}")
