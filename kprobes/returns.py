"""The kretprobe API: KP-74..86, with the kernel's names. Failures raise OSError with the kernel's errno."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from ftrace.cpus import num_possible_cpus
from ftrace.handlers.kinds import Resolved
from ftrace.handlers.lending import kept_too_long
from ftrace.handlers.python_handler import HandlerErrors
from ftrace.shown import handler_name, table
from ftrace.tracer import tracer
from kprobes import crash_words, handlers
from kprobes import registration as probes
from kprobes.breakpoint.patching import kprobe_mutex, patching
from kprobes.fast import lone
from kprobes.fast.lone import FastReturn
from kprobes.handlers import ENTRY, RETURN
from kprobes.hit.records import (
    PRE_FOREIGN,
    PRE_PYTHON,
    RETURN_FOREIGN,
    RETURN_PYTHON,
    STOPPED,
    Instance,
    Kretprobe,
)
from kprobes.hit.runtime import kprobe_runtime
from kprobes.place import blacklist, placing
from kprobes.place.aggregate import settle
from kprobes.probe import kprobe
from sandbox.process import fork
from sandbox.process.integers import INT_MAX, integer
from sandbox.process.once import once
from sandbox.process.process_bound import ProcessBound

KRETPROBE_MAX_DATA_SIZE = 4096
_INDEX = 0xFFFF_FFFF
_MOST = 1 << 20
_OFFSETS = {field: Instance.offset(field) for field in ("ret_addr", "frame", "task", "data")}


class kretprobe_instance:
    """A call that a kretprobe waits for, while a handler looks at it.

    `rp`: the kretprobe. Everything else raises ValueError once the handler has returned.
    """

    __slots__ = ("_address", "_copy", "_handler", "_memory", "_view", "rp")

    def __init__(self, rp: kretprobe, address: int, handler: Any) -> None:
        self.rp = rp
        self._address = address
        self._handler = handler
        self._view: memoryview | None = None

    @property
    def data(self) -> memoryview | None:
        """A writable view of the `data_size` bytes that entry and return of the call share; None if that is 0."""
        address = self._field("data")
        if self._view is None and self.rp._data is not None:
            self._memory = self.rp._data.from_address(address)
            self._copy = bytearray(self._memory)
            self._view = memoryview(self._copy)
        return self._view

    @property
    def ret_addr(self) -> int:
        """Where the call returns to; for all but the oldest hook of a frame the trampoline's address (KP-82)."""
        return self._word("ret_addr")

    @property
    def task(self) -> int:
        """Native id of the thread that makes the call."""
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
        """The handler has returned: its changes of the data are the call's, and the instance is out of its reach."""
        if self._view is not None:
            if len(self._copy) == len(self._memory):
                self._memory.raw = self._copy
            del self._memory
            with contextlib.suppress(BufferError):  # an array has been made of it
                self._view.release()
        self._address = 0
        self._view = None


def get_kretprobe(ri: kretprobe_instance) -> kretprobe:
    """The kretprobe of an instance."""
    return ri.rp


def get_kretprobe_retaddr(ri: kretprobe_instance) -> int:
    """What the return slot held (KP-82)."""
    return ri.ret_addr


class kretprobe(ProcessBound):
    """A probe on the returns of a function (KP-74).

    Where: as for `kprobe`, at a function's entry. entry_handler(ri, regs) -> int runs when it is entered; non-zero: no
    `handler` for this call. handler(ri, regs) runs when it returns. Either may be None, a Python callable, a C function
    pointer, or a native function. `maxactive`: calls that can be waited for at the same time, 0 for max(10, 2 x CPUs).
    `data_size`: bytes that entry and return of one call share. `python_unsafe`: see kprobe.
    """

    def __init__(
        self,
        *,
        symbol_name: str | None = None,
        offset: int = 0,
        addr: int | None = None,
        handler: Any = None,
        entry_handler: Any = None,
        maxactive: int = 0,
        data_size: int = 0,
        flags: int = 0,
        python_unsafe: bool = False,
    ) -> None:
        self.kp = kprobe(symbol_name=symbol_name, offset=offset, addr=addr, flags=flags, python_unsafe=python_unsafe)
        self.handler = handler
        self.entry_handler = entry_handler
        self.maxactive = maxactive
        self.data_size = data_size
        self.action = 0
        """Address of what its native handlers find as `ri.rp.action`; looked at when it is registered."""
        self.errors = HandlerErrors()
        """What Python handlers have raised."""
        self._native: Any = Kretprobe.ctypes()
        self._instances: Any = None
        self._data: Any = None
        """The ctypes type of an instance's data; None if it has none."""
        self._codes: tuple[Resolved, ...] = ()

    def __repr__(self) -> str:
        return f"<kretprobe: {', '.join(' '.join(map(str, row)) for row in self._shown())}>"

    def _repr_html_(self) -> str:
        return table(self._shown(), "kretprobe")

    def _shown(self) -> list[tuple[str, Any]]:
        handlers = [("entry", self.entry_handler), ("handler", self.handler)]
        named = [(role, handler_name(handler)) for role, handler in handlers if handler is not None]
        return [("at", self.kp.where()), ("state", self.kp.state()), *named, ("nmissed", self.nmissed)]

    @property
    def nmissed(self) -> int:
        """How often no instance was free (KP-81, KP-83)."""
        return int(self._native.nmissed)

    @property
    def registered(self) -> bool:
        """Whether it is on a function."""
        return self.kp.registered

    # -- its native half ----------------------------------------------------------------------------------------

    def _allocate(self) -> None:
        """Instances and handlers. Raises OSError(ENOMEM) for more instances than can be."""
        integer("maxactive", self.maxactive, 1, _MOST, errno.ENOMEM)
        self.errors = HandlerErrors()
        report = self.errors.report
        entry = handlers.resolve_for(self.entry_handler, ENTRY, self, report, _with_instance)
        leave = handlers.resolve_for(self.handler, RETURN, self, report, _with_instance)
        native = self._native = Kretprobe.ctypes()
        native.data_size = self._room(entry, leave)
        native.action = self.action
        self._data = ctypes.c_char * self.data_size if self.data_size else None
        native.stride = Instance.offset("data") + (native.data_size + 63 & -64)
        buffer = ctypes.create_string_buffer(native.stride * self.maxactive + 64)
        native.instances = ctypes.addressof(buffer) + 63 & -64
        for index in range(self.maxactive):
            instance = Instance.ctypes.from_address(native.instances + index * native.stride)
            instance.rp, instance.next_free = ctypes.addressof(native), index
        native.free = self.maxactive
        self._instances = buffer
        self._use(entry, leave)

    def _use(self, entry: Resolved, leave: Resolved) -> None:
        native = self._native
        native.entry, native.handler, native.entry_cookie, native.cookie = (
            entry.address, leave.address, entry.cookie, leave.cookie,
        )  # fmt: skip
        native.kind = PRE_FOREIGN * entry.is_foreign | PRE_PYTHON * entry.is_python
        native.kind |= RETURN_FOREIGN * leave.is_foreign | RETURN_PYTHON * leave.is_python
        self._codes = (entry, leave)
        native.entry_text = crash_words.of_handler(entry, ENTRY.name)
        native.handler_text = crash_words.of_handler(leave, RETURN.name)
        # Whether the interpreter may be entered for the return is asked at the entry, off the trap's frame.
        foreign = entry.is_foreign or leave.is_python
        self.kp.make_return_probe(ctypes.addressof(native), foreign, entry.is_python or leave.is_python)
        self.kp.prepare_fast = self._prepare_fast

    def _room(self, *codes: Resolved) -> int:
        """Bytes of data that an instance has. What native handlers read beyond `data_size` is 0."""
        uses = [(code.name, handlers.instance_data(code)) for code in codes]
        for name, use in uses:
            if use.changed > self.data_size:
                why = f"{name} writes {use.changed} bytes of ri.data, and data_size is {self.data_size}"
                raise OSError(errno.EINVAL, f"{why}; give a data_size of at least {use.changed}")
        return max(self.data_size, *(use.used for _, use in uses))

    def _prepare_fast(self, on_ftrace: bool) -> None:
        """What lets its calls go the fast way, if its handlers are fit for that."""
        kp, native = self.kp, self._native
        assert kp.addr
        kp.lone = kp.fast_return = None
        values = lone.kretprobe_values(self.entry_handler, self.handler, native.data_size, self.maxactive, on_ftrace)
        if values is not None and on_ftrace:
            keep = (native, self._codes, kp.native)
            kp.lone = lone.ops_of_kretprobe(values, kp.addr, ctypes.addressof(native), keep)
        elif values is not None:
            with contextlib.suppress(OSError):  # there are too many
                kp.fast_return = FastReturn(native, values)
        made = kp.lone or kp.fast_return
        native.pool = made.probe.address if made else 0


def _with_instance(handler: Callable[..., Any]) -> Callable[..., Any]:
    def called(rp: kretprobe, address: int, _ret_ip: int, regs: Any, _data: None) -> Any:
        ri = kretprobe_instance(rp, address, handler)
        try:
            return handler(ri, regs)
        finally:
            ri._expire()

    return called


# -- registration -------------------------------------------------------------------------------------------------


def register_kretprobe(rp: kretprobe) -> None:
    """Probe the returns of a function (KP-75). Handlers of `rp.kp` are taken off.

    Raises OSError: EINVAL (not a function's entry; a function that switches stacks, moves its return address or returns twice,
    by its name or its code), E2BIG for more than
    4096 bytes of data, ENOMEM; and what `register_kprobe` raises.
    """
    make_ready()
    with patching():
        put_on(rp)


def make_ready() -> None:
    """What comes before the locks of a registration are taken."""
    _free_idle()
    tracer()  # its pools are put in order first after a fork
    _watch_forks()
    probes.watch_modules()


def put_on(rp: kretprobe) -> None:
    """`register_kretprobe`, within `patching()`; `make_ready` comes before that."""
    _check(rp)
    if rp.maxactive <= 0:
        rp.maxactive = max(10, 2 * num_possible_cpus())
    rp.kp.pre_handler = rp.kp.post_handler = None
    rp._allocate()
    _allocated.add(rp)
    probes.put_on(rp.kp)


def _check(rp: kretprobe) -> None:
    """What is asked of a kretprobe before any of it is touched."""
    place = placing.locate(rp.kp.addr, rp.kp.symbol_name, rp.kp.offset)
    if not place.is_entry:
        raise OSError(errno.EINVAL, f"{place} is not the entry of a function")
    if rp.kp.addr and rp.kp.registered:
        raise OSError(errno.EINVAL, f"this kretprobe is registered already, at {place.address:#x}")
    reason = blacklist.kretprobe_blacklist(place.symbol)
    if reason:
        raise OSError(errno.EINVAL, f"the returns of {place} cannot be probed: {reason}")
    integer("data_size", rp.data_size, 0, KRETPROBE_MAX_DATA_SIZE, errno.E2BIG)
    integer("maxactive", rp.maxactive)
    if rp.registered:
        raise OSError(errno.EINVAL, f"this kretprobe is registered already, at {place.address:#x}")


def register_kretprobes(rps: Sequence[kretprobe], num: int | None = None) -> None:
    """Register the first `num`, or all; on the first error those before it are unregistered, and it is raised (KP-58)."""
    count = integer("num", len(rps) if num is None else num, 1, INT_MAX)
    done: list[kretprobe] = []
    try:
        for rp in rps[:count]:
            register_kretprobe(rp)
            done.append(rp)
    except OSError:
        if done:
            unregister_kretprobes(done)
        raise


def unregister_kretprobe(rp: kretprobe) -> None:
    """Take `rp` off. Calls that it waits for return without its handler (KP-84)."""
    unregister_kretprobes([rp])


def unregister_kretprobes(rps: Sequence[kretprobe], num: int | None = None) -> None:
    """Take the first `num` off, or all. One that is not registered only gets its addr cleared."""
    chosen = rps[: len(rps) if num is None else max(num, 0)]
    with patching():
        leaving = list(dict.fromkeys(rp for rp in chosen if rp.registered))
        for rp in leaving:
            rp._native.flags |= STOPPED
            if (fast := rp.kp.lone or rp.kp.fast_return) is not None:
                fast.stop()
        left = probes.take_off(rp.kp for rp in chosen)
        _leaving.extend(map(_Leaving, leaving))
    if left:
        settle()
    _free_idle()


class _Leaving:
    """What calls that have not returned yet may still refer to: the native half of an unregistered kretprobe."""

    def __init__(self, rp: kretprobe) -> None:
        self.native = rp._native
        self.keep = (rp._instances, rp._codes, rp.kp.native)
        self.count = rp.maxactive
        self.lone, self.fast = rp.kp.lone, rp.kp.fast_return
        rp.kp.lone = rp.kp.fast_return = None

    def is_idle(self) -> bool:
        """Whether every instance is free. None can be taken any more."""
        free, index = 0, self.native.free & _INDEX
        while index:
            free += 1
            index = Instance.ctypes.from_address(self.native.instances + (index - 1) * self.native.stride).next_free
        return free == self.count and (self.fast is None or self.fast.is_idle())


_leaving: list[_Leaving] = []


def _free_idle() -> None:
    with kprobe_mutex:
        gone = list(_leaving)
    if not gone or not tracer().runtime.quiesce():
        return  # a hit that found one before it left may still take an instance
    with kprobe_mutex:
        idle = [one for one in gone if one in _leaving and one.is_idle()]
    # A call that has just given its instance back may be about to tell the pool.
    if any(one.lone or one.fast for one in idle) and not tracer().runtime.quiesce():
        return
    with kprobe_mutex:
        for one in idle:
            if one in _leaving:
                _leaving.remove(one)
                if one.fast is not None:
                    one.fast.free()
                if one.lone is not None:
                    one.lone.probe.let_go()


# -- forks --------------------------------------------------------------------------------------------------------

_allocated: weakref.WeakSet[kretprobe] = weakref.WeakSet()
"""Those that have instances."""


@once
def _watch_forks() -> None:
    fork.in_child(fork.Phase.PROBES, _after_fork)


def _after_fork() -> None:
    """In the child: what calls of other threads have taken is free again, on either way."""
    # Held, or the collector takes what only it knows of, and leaves addresses behind.
    leaving, allocated = list(_leaving), list(_allocated)
    halves = {ctypes.addressof(one.native): (one.count, one.lone or one.fast) for one in leaving}
    for rp in allocated:
        if rp._instances is not None:
            halves.setdefault(ctypes.addressof(rp._native), (rp.maxactive, rp.kp.lone or rp.kp.fast_return))
    call, before, now = kprobe_runtime().image.call, tracer().runtime.forked_from, threading.get_native_id()
    for native, (count, fast) in halves.items():
        kept = call("kretprobe_after_fork", native, count, before, now)
        if fast is not None:
            fast.probe.take_away(kept)


def disable_kretprobe(rp: kretprobe) -> None:
    """disable_kprobe(&rp->kp): calls that it waits for still get its handler (KP-80, KP-86)."""
    probes.disable_kprobe(rp.kp)


def enable_kretprobe(rp: kretprobe) -> None:
    """enable_kprobe(&rp->kp) (KP-86)."""
    probes.enable_kprobe(rp.kp)
