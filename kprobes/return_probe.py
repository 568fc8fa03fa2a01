"""struct kretprobe, and struct kretprobe_instance: one call as its handlers see it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from ftrace.core.handlers.python_handler import HandlerErrors, kept_too_long
from ftrace.core.summary import Row, Summary, handler_name
from kprobes.handlers.roles import ENTRY, RETURN, instance_data
from kprobes.hit.records import Instance
from kprobes.probe import bind, kprobe
from kprobes.return_hook import ReturnHook
from sandbox.native import NativeFunction
from sandbox.process.fork import ProcessBound
from sandbox.process.integers import integer

if TYPE_CHECKING:
    from ftrace.core.handlers.kinds import BoundHandler

_MOST = 1 << 20
_OFFSETS = {field: Instance.offset(field) for field in ("ret_addr", "frame", "task", "data")}


class kretprobe_instance:
    """One call of a function whose returns are probed; valid while a handler runs.

    `rp`: the kretprobe. All other attributes raise ValueError once the handler has returned.
    """

    __slots__ = ("_address", "_copy", "_handler", "_memory", "_view", "rp")

    def __init__(self, rp: kretprobe, address: int, handler: Any) -> None:
        self.rp = rp
        self._address = address
        self._handler = handler
        self._view: memoryview | None = None

    def __repr__(self) -> str:
        state = f"task {self.task}, ret_addr {self.ret_addr:#x}" if self._address else "whose handler has returned"
        return f"<kretprobe_instance of {self.rp.kp.where()}, {state}>"

    @property
    def data(self) -> memoryview | None:
        """A writable view of the `data_size` bytes that the call's entry and return share; None if `data_size` is 0."""
        address = self._field("data")
        if self._view is None and self.rp.data_type is not None:
            self._memory = self.rp.data_type.from_address(address)
            self._copy = bytearray(self._memory)
            self._view = memoryview(self._copy)
        return self._view

    @property
    def ret_addr(self) -> int:
        """The call's return address. For every hook of a frame but the oldest, this is the trampoline's address."""
        return self._word("ret_addr")

    @property
    def task(self) -> int:
        """Native id of the calling thread."""
        return self._word("task")

    @property
    def frame(self) -> int:
        """Address of the return slot."""
        return self._word("frame")

    def _word(self, field: str) -> int:
        return ctypes.c_uint64.from_address(self._field(field)).value

    def _field(self, field: str) -> int:
        if not self._address:
            handler, probe = (
                getattr(self._handler, "__qualname__", repr(self._handler)),
                f"kretprobe at {self.rp.kp.addr:#x}",
            )
            raise kept_too_long("ri", handler, probe, f"{field} = ri.{field}")
        return self._address + _OFFSETS[field]

    def _expire(self) -> None:
        """The handler has returned: store its changes of the data, and invalidate the instance."""
        if self._view is not None:
            if len(self._copy) == len(self._memory):
                self._memory.raw = self._copy
            del self._memory
            with contextlib.suppress(BufferError):  # another object, such as an array, uses its buffer
                self._view.release()
        self._address = 0
        self._view = None


class ReturnEntryHandler(Protocol):
    """Called when a function is entered whose returns are probed. Non-zero: do not call the return handler for this call."""

    def __call__(self, ri: kretprobe_instance, regs: Any, /) -> int | None: ...


class ReturnHandler(Protocol):
    """Called when a function returns whose returns are probed."""

    def __call__(self, ri: kretprobe_instance, regs: Any, /) -> object: ...


def get_kretprobe(ri: kretprobe_instance) -> kretprobe:
    """get_kretprobe(): the kretprobe of an instance."""
    return ri.rp


def get_kretprobe_retaddr(ri: kretprobe_instance) -> int:
    """get_kretprobe_retaddr(): the return address that was in the return slot."""
    return ri.ret_addr


def _with_instance(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Adapts a handler that takes an instance to the arguments of the hit path."""

    def called(rp: kretprobe, address: int, _ret_ip: int, regs: Any, _data: None) -> Any:
        ri = kretprobe_instance(rp, address, handler)
        try:
            return handler(ri, regs)
        finally:
            ri._expire()

    return called


class kretprobe(Summary, ProcessBound):
    """A probe on the returns of a function.

    Its place: as for `kprobe`, but it must be a function's entry. entry_handler(ri, regs) -> int runs when the function is
    entered; if it returns non-zero, `handler` is not called for that call. handler(ri, regs) runs when the function returns.
    Either may be None, a Python callable, a C function pointer, or a native function.

    `maxactive`: how many calls may be in progress at once; further ones are missed. 0: max(10, 2 x CPUs). `data_size`: bytes
    that the entry and the return of one call share; at most 4096. `python_unsafe`: as for `kprobe`.
    """

    def __init__(
        self,
        *,
        symbol_name: str | None = None,
        offset: int = 0,
        addr: int | None = None,
        handler: ReturnHandler | NativeFunction | None = None,
        entry_handler: ReturnEntryHandler | NativeFunction | None = None,
        maxactive: int = 0,
        data_size: int = 0,
        flags: int = 0,
        python_unsafe: bool = False,
    ) -> None:
        self.kp = kprobe(symbol_name=symbol_name, offset=offset, addr=addr, flags=flags, python_unsafe=python_unsafe)
        self.handler: Any = handler
        self.entry_handler: Any = entry_handler
        self.maxactive = maxactive
        self.data_size = data_size
        self.action = 0
        """The address that native handlers read as `ri.rp.action`; taken over at registration."""
        self.errors = HandlerErrors()
        """Exceptions of Python handlers."""
        self.data_type: Any = None
        """The ctypes type of an instance's data, as of the last registration; None if there is none."""
        self._hook: ReturnHook | None = None
        """The hook that the last registration has made."""

    def _summary_rows(self) -> list[Row]:
        handlers = [("entry", self.entry_handler), ("handler", self.handler)]
        named = [(role, handler_name(handler)) for role, handler in handlers if handler is not None]
        return [("at", self.kp.where()), ("state", self.kp.state()), *named, ("nmissed", self.nmissed)]

    @property
    def nmissed(self) -> int:
        """Calls that were missed because no instance was free."""
        return int(self._hook.native.nmissed) if self._hook else 0

    @property
    def registered(self) -> bool:
        """True from register_kretprobe() to unregister_kretprobe(), also while it is disabled or gone."""
        return self.kp.registered

    # -- its native half ----------------------------------------------------------------------------------------

    def build(self) -> None:
        """Make its instances, and resolve its handlers.

        Raises OSError: ENOMEM if maxactive is too large; EINVAL if a native handler writes beyond `data_size`.
        """
        integer("maxactive", self.maxactive, 1, _MOST, errno.ENOMEM)
        self.errors = HandlerErrors()
        codes = (
            bind(self.entry_handler, ENTRY, self, _with_instance),
            bind(self.handler, RETURN, self, _with_instance),
        )
        size = max(map(self._data_used, codes))
        self._hook = ReturnHook((self.entry_handler, self.handler), codes, self.maxactive, size, self.action)
        self.data_type = ctypes.c_char * self.data_size if self.data_size else None
        self.kp.pre_handler = self.kp.post_handler = None
        self.kp.return_hook = self._hook

    def _data_used(self, code: BoundHandler) -> int:
        """Bytes of data that an instance needs for a handler. Bytes that native handlers read beyond `data_size` are 0."""
        use = instance_data(code)
        if use.changed > self.data_size:
            why = f"data_size is {self.data_size}, but {code.name} writes {use.changed} bytes of ri.data"
            raise OSError(errno.EINVAL, f"{why}; give a data_size of at least {use.changed}")
        return max(self.data_size, use.used)
