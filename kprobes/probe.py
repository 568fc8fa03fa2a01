"""struct kprobe: the settings of its owner, its state, and its native half."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from ftrace.core.handlers.kinds import BoundHandler, HandlerRole
from ftrace.core.handlers.python_handler import HandlerErrors, python_handler
from ftrace.core.handlers.resolve import resolve
from ftrace.core.summary import Row, Summary, handler_name
from ftrace.hit.records import FOREIGN, IN_C, PYTHON
from kprobes.fast import single
from kprobes.handlers.roles import FAULT, POST, PRE, ignores_registers
from kprobes.hit.records import (
    FAULT_CALLBACK,
    FAULT_FOREIGN,
    FAULT_PYTHON,
    OFF,
    POST_CALLBACK,
    POST_FOREIGN,
    POST_PYTHON,
    PRE_CALLBACK,
    PRE_FOREIGN,
    PRE_PLAIN,
    PRE_PYTHON,
    RETURN,
    Child,
)
from kprobes.place import State
from sandbox.native import NativeFunction
from sandbox.native.native_image import c_string
from sandbox.process.fork import ProcessBound

if TYPE_CHECKING:
    from kprobes.fast.single import FastPath
    from kprobes.place import Place
    from kprobes.return_hook import ReturnHook
    from sandbox.symbols.table import Symbol

KPROBE_FLAG_GONE = 1
KPROBE_FLAG_DISABLED = 2
KPROBE_FLAG_OPTIMIZED = 4
KPROBE_FLAG_FTRACE = 8
KPROBE_FLAG_ON_FUNC_ENTRY = 16
_OFF_FLAGS = KPROBE_FLAG_GONE | KPROBE_FLAG_DISABLED

# Child.kind, by the kind of a handler's code.


def _kinds(foreign: int, python: int, callback: int) -> dict[int, int]:
    """The flags of a role, by BoundHandler.kind."""
    return {
        0: 0,
        FOREIGN: foreign,
        FOREIGN | PYTHON: foreign | python,
        FOREIGN | PYTHON | IN_C: foreign | python | callback,
    }


_PRE_KIND = _kinds(PRE_FOREIGN, PRE_PYTHON, PRE_CALLBACK)
_POST_KIND = _kinds(POST_FOREIGN, POST_PYTHON, POST_CALLBACK)
_FAULT_KIND = _kinds(FAULT_FOREIGN, FAULT_PYTHON, FAULT_CALLBACK)


class PreHandler(Protocol):
    """Called before the probed instruction. Non-zero: do not execute it; continue at regs.ip."""

    def __call__(self, p: kprobe, regs: Any, /) -> int | None: ...


class PostHandler(Protocol):
    """Called after the probed instruction."""

    def __call__(self, p: kprobe, regs: Any, flags: int, /) -> object: ...


class FaultHandler(Protocol):
    """Called when the probed instruction faults. Non-zero: the fault is handled."""

    def __call__(self, p: kprobe, regs: Any, trapnr: int, /) -> int | None: ...


class kprobe(Summary, ProcessBound):
    """A probe on an instruction.

    Its place: `symbol_name` and `offset`, or `addr` (and `offset`), in bytes. `symbol_name` is a function of a module
    ('vfs_read', 'demo:vfs_read') or of a library ('libz:deflate').

    pre_handler(p, regs) -> int runs before the instruction. If it returns non-zero, the instruction is not executed and
    the thread continues at regs.ip. post_handler(p, regs, flags) runs after the instruction. fault_handler(p, regs, trapnr)
    -> int runs when the instruction faults and, unless it is a Python callable, when another handler of this probe faults. If
    it returns non-zero, the fault is handled and the thread continues with regs. Each handler may be None, a Python
    callable, a C function pointer, or a native function.

    `flags`: 0 or KPROBE_FLAG_DISABLED. `python_unsafe`: allow Python handlers on functions of the C library, the dynamic
    loader and the interpreter, where they may deadlock.
    """

    place: Place | None = None
    """The place that it is registered at (kprobes.registration)."""
    foreign = False
    """Whether one of its handlers is not a native function."""
    calls_python = False
    """Whether a handler is a Python callable."""
    has_fault = 0
    """1: it has a fault_handler; 2: one that is not a native function."""
    codes: tuple[BoundHandler, ...] = ()
    """Its handlers' code, and the objects that keep the code alive."""
    return_hook: ReturnHook | None = None
    """For the kprobe of a kretprobe: how returns are hooked."""
    fast: FastPath | None = None
    """The single-probe fast path, if its handlers allow one; in use while no other probe is at its place."""
    action = 0
    """The address that native handlers read as `p.action`; taken over at registration."""
    is_listed = True
    """Whether kprobes_list() shows it. Probes that this package registers for itself are not shown."""

    def __init__(
        self,
        *,
        symbol_name: str | None = None,
        offset: int = 0,
        addr: int | None = None,
        pre_handler: PreHandler | NativeFunction | None = None,
        post_handler: PostHandler | NativeFunction | None = None,
        fault_handler: FaultHandler | NativeFunction | None = None,
        flags: int = 0,
        python_unsafe: bool = False,
    ) -> None:
        self.symbol_name = symbol_name
        self.offset = offset
        self.addr = addr
        self.pre_handler: Any = pre_handler
        self.post_handler: Any = post_handler
        self.fault_handler: Any = fault_handler
        self.python_unsafe = python_unsafe
        self._flags = flags
        self.errors = HandlerErrors()
        """Exceptions of Python handlers."""
        self.native: Any = Child.ctypes()
        """Its native half, which lives until the next registration."""

    @property
    def is_return_probe(self) -> bool:
        """Whether it belongs to a kretprobe."""
        return self.return_hook is not None

    def _summary_rows(self) -> list[Row]:
        handlers = [("pre", self.pre_handler), ("post", self.post_handler), ("fault", self.fault_handler)]
        named = [(role, handler_name(handler)) for role, handler in handlers if handler is not None]
        return [("at", self.where()), ("state", self.state()), *named, ("nmissed", self.nmissed)]

    def where(self) -> str:
        """`symbol+0xoffset`, or the address, as given."""
        if self.symbol_name:
            return self.symbol_name + (f"+{self.offset:#x}" if self.offset else "")
        return f"{(self.addr or 0) + (0 if self.registered else self.offset):#x}"

    def state(self) -> str:
        """`not registered`, `gone`, `disabled`; if armed, how: `stub`, `jump`, `breakpoint`; `off` while all are disarmed."""
        if not self.registered:
            return "not registered"
        if self.is_off:
            return "gone" if self._flags & KPROBE_FLAG_GONE else "disabled"
        assert self.place is not None
        state = self.place.state
        return str((State.BREAKPOINT if state is State.QUEUED else state).value)

    # -- state --------------------------------------------------------------------------------------------------

    @property
    def flags(self) -> int:
        """KPROBE_FLAG_*."""
        return self._flags

    @flags.setter
    def flags(self, value: int) -> None:
        self._flags = value
        self.native.flags = self.native.flags & ~OFF | (OFF if value & _OFF_FLAGS else 0)
        if self.place is not None:
            self.place.children.note(self)

    @property
    def is_off(self) -> bool:
        """kprobe_disabled(): whether it is disabled, or gone with its code."""
        return bool(self._flags & _OFF_FLAGS)

    @property
    def registered(self) -> bool:
        """True from register_kprobe() to unregister_kprobe(), also while it is disabled or gone."""
        return self.place is not None

    @property
    def native_address(self) -> int:
        """Address of its native half: the `p` of native and C handlers."""
        return ctypes.addressof(self.native)

    @property
    def nmissed(self) -> int:
        """Hits since the registration whose handlers were not called."""
        return int(self.native.nmissed)

    @property
    def opcode(self) -> int:
        """The first byte of the probed instruction; 0 if it is not registered."""
        place = self.place
        return place.original[0] if place else 0

    @property
    def ainsn(self) -> bytes:
        """The probed instruction, without the probe; b"" if it is not registered."""
        place = self.place
        return place.original if place else b""

    # -- its native half ----------------------------------------------------------------------------------------

    def build(self, symbol: Symbol) -> None:
        """Make a native half for `addr`, in the function `symbol`. Raises TypeError for an object that cannot be a handler."""
        child = self.native = Child.ctypes()
        child.address, child.flags = self.addr, OFF if self.is_off else 0
        child.action = self.action
        child.start, child.symbol = symbol.address, c_string(symbol.name)
        child.owner = c_string(f" [{symbol.module}]") if symbol.module else 0
        hook = self.return_hook
        if hook is not None:
            child.kind, child.rp = RETURN, hook.address
            self.foreign, self.calls_python = hook.foreign, hook.calls_python
        else:
            self._bind_handlers()

    def _bind_handlers(self) -> None:
        self.errors = HandlerErrors()
        child, this = self.native, self.native_address
        pre = bind(self.pre_handler, PRE, self, _pre_of)
        post = bind(self.post_handler, POST, self, _post_of)
        fault = bind(self.fault_handler, FAULT, self, _fault_of)
        child.pre, child.pre_cookie, child.pre_text = pre.address, pre.cookie or this, _text(pre, PRE)
        child.post, child.post_cookie, child.post_text = post.address, post.cookie or this, _text(post, POST)
        child.fault, child.fault_cookie, child.fault_text = fault.address, fault.cookie or this, _text(fault, FAULT)
        child.kind = _PRE_KIND[pre.kind] | _POST_KIND[post.kind] | _FAULT_KIND[fault.kind]
        child.kind |= PRE_PLAIN * (pre.plain and ignores_registers(self.pre_handler))
        kinds = pre.kind | post.kind
        self.foreign, self.calls_python = bool(kinds & FOREIGN), bool(kinds & PYTHON)
        self.has_fault = 2 if fault.kind else int(fault.address != 0)
        self.codes = (pre, post, fault)

    # -- from registration to unregistration --------------------------------------------------------------------

    def choose_path(self, place: Place) -> None:
        """Choose how hits will reach it at `place`, before it is added there. Within `patching()`."""
        if self.return_hook is not None:
            self.return_hook.set_up(place, self.native)
            self.fast = self.return_hook.fast
        elif place.on_ftrace and self.codes[0].plain and self.post_handler is None and self.fault_handler is None:
            self.fast = single.ops_of_kprobe(self.pre_handler, self.native_address, (self.native, self.codes))

    def stop(self) -> None:
        """Call no handler any more, because the probe is being unregistered."""
        owner = self.return_hook or self.fast
        if owner is not None:
            owner.stop()

    def release(self) -> None:
        """Called when the probe has been removed from its place. Calls of a kretprobe's function may still be in progress."""
        if self.return_hook is not None:
            self.return_hook.retire()
        elif self.fast is not None:
            self.fast.free()
        self.fast = None

    def cancel(self) -> None:
        """Its registration failed after `choose_path`."""
        owner = self.return_hook or self.fast
        if owner is not None:
            owner.free()
        self.fast = None


def bind(handler: Any, role: HandlerRole, this: Any, adapt: Callable[[Any], Any]) -> BoundHandler:
    """The code of a handler of `this`, a kprobe or kretprobe.

    A Python handler is called as adapt(handler)(this, ip, ret_ip, regs, data).

    Raises TypeError, which names the object, for one that cannot be a handler or has the wrong parameters.
    """
    errors = this.errors

    def of_python(handler: Callable[..., Any], role: HandlerRole) -> BoundHandler:
        def report(_adapted: Any, error: BaseException, traceback: Any) -> None:
            errors.report(handler, error, traceback)

        def address(_ip: int) -> int:
            return getattr(this, "kp", this).addr or 0

        adapted = functools.update_wrapper(adapt(handler), handler)
        code = python_handler(adapted, this, report, 0, role.is_exit, address)
        name = getattr(handler, "__name__", type(handler).__name__)
        return BoundHandler(code.address, FOREIGN | PYTHON, cookie=code.cookie, keep=code.keep, name=name)

    return resolve(handler, role, of_python)


def _text(code: BoundHandler, role: HandlerRole) -> int:
    """The address of a text that names the handler, for the report of a fault in it; 0 if there is none."""
    return c_string(f"{role.name} {code.name}") if code.address else 0


def _pre_of(handler: Callable[..., Any]) -> Callable[..., Any]:
    def pre(p: Any, _ip: int, _ret_ip: int, regs: Any, _data: None) -> Any:
        return handler(p, regs)

    return pre


def _post_of(handler: Callable[..., Any]) -> Callable[..., Any]:
    def post(p: Any, _ip: int, _ret_ip: int, regs: Any, _data: None) -> Any:
        return handler(p, regs, 0)

    return post


def _fault_of(handler: Callable[..., Any]) -> Callable[..., Any]:
    def fault(p: Any, trapnr: int, _ret_ip: int, regs: Any, _data: None) -> Any:
        return handler(p, regs, trapnr)

    return fault
