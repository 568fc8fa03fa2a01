"""The kprobe API: KP-1..21 and KP-55..58, with the kernel's names. Failures raise OSError with the kernel's errno."""

from __future__ import annotations

import ctypes
import errno
import importlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from ftrace.python_handler import HandlerErrors
from ftrace.tracer import tracer
from kprobes import crash_words, fast_returns, handlers, lone, placing, python_unsafe, switch
from kprobes.aggregate import Aggregate, aggregates, between, retired
from kprobes.fast_returns import FastReturn
from kprobes.handlers import FAULT, POST, PRE, Code
from kprobes.hit.records import (
    FAULT_FOREIGN,
    FAULT_PYTHON,
    OFF,
    POST_FOREIGN,
    POST_PYTHON,
    PRE_FOREIGN,
    PRE_PLAIN,
    PRE_PYTHON,
    RETURN,
    Child,
    Kretprobe,
)
from kprobes.lone import LoneOps
from kprobes.patching import kprobe_mutex, patching
from kprobes.return_stubs import give_return_stub
from sandbox.module import register_module_notifier

KPROBE_FLAG_GONE = 1
KPROBE_FLAG_DISABLED = 2
KPROBE_FLAG_OPTIMIZED = 4
KPROBE_FLAG_FTRACE = 8
KPROBE_FLAG_ON_FUNC_ENTRY = 16
_OFF_FLAGS = KPROBE_FLAG_GONE | KPROBE_FLAG_DISABLED


class kprobe:
    """A probe on an instruction (KP-1).

    Where: `symbol_name` and `offset`, or `addr` (and `offset`), in bytes. `symbol_name` is a function of a module
    ('vfs_read', 'demo:vfs_read') or of a library ('libz:deflate'). pre_handler(p, regs) -> int runs before the
    instruction; non-zero: it is not executed, and the thread goes on at regs.ip. post_handler(p, regs, flags) runs after
    it. fault_handler(p, regs, trapnr) -> int runs when the instruction faults, and, if it is not Python, when a handler of
    this probe does; non-zero: handled, the thread goes on with regs (KP-90). Each may be None, a Python callable, a C
    function pointer, or a native function. `flags`: KPROBE_FLAG_DISABLED.
    `python_unsafe`: a Python handler may be in the C library, the dynamic loader or the interpreter, and may hang there.
    """

    def __init__(
        self,
        *,
        symbol_name: str | None = None,
        offset: int = 0,
        addr: int | None = None,
        pre_handler: Any = None,
        post_handler: Any = None,
        fault_handler: Any = None,
        flags: int = 0,
        python_unsafe: bool = False,
    ) -> None:
        self.symbol_name = symbol_name
        self.offset = offset
        self.addr = addr
        self.pre_handler = pre_handler
        self.post_handler = post_handler
        self.fault_handler = fault_handler
        self.errors = HandlerErrors()
        """What Python handlers have raised."""
        self.native: Any = Child.ctypes()
        """Its native half, which stays until the next registration."""
        self.foreign = False
        """Whether a handler is no native function."""
        self.asks_of_faults = 0
        """1: it has a fault_handler; 2: one that is no native function."""
        self._flags = flags
        self.codes: tuple[Code, ...] = ()
        """Its handlers' code, and what keeps it alive."""
        self._return_probe = 0
        self.prepare_fast: Callable[[bool], None] | None = None
        """What a kretprobe's has in place of `_prepare_fast`."""
        self.fast_return: FastReturn | None = None
        """Of a kretprobe whose handlers allow it."""
        self.lone: LoneOps | None = None
        """What arms it while it is alone on an ftrace location, if its handlers are of that kind."""
        self.python_unsafe = python_unsafe
        self.calls_python = False
        """Whether a handler is a Python callable."""

    def _prepare_fast(self, on_ftrace: bool) -> None:
        """Before it is put on its place: what lets its hits go the fast way there."""
        self.lone = lone.ops_of_kprobe(self) if on_ftrace else None

    def make_return_probe(self, native: int, foreign: bool, calls_python: bool) -> None:
        """Let it be the probe of a kretprobe, whose native half is at `native`, and whose handlers are such."""
        self._return_probe, self.foreign, self.calls_python = native, foreign, calls_python

    @property
    def is_return_probe(self) -> bool:
        """Whether it belongs to a kretprobe."""
        return bool(self._return_probe)

    # -- state --------------------------------------------------------------------------------------------------

    @property
    def flags(self) -> int:
        """KPROBE_FLAG_*."""
        return self._flags

    @flags.setter
    def flags(self, value: int) -> None:
        self._flags = value
        self.native.flags = self.native.flags & ~OFF | (OFF if value & _OFF_FLAGS else 0)

    @property
    def is_off(self) -> bool:
        """kprobe_disabled(): disabled, or gone with its code (KP-2)."""
        return bool(self._flags & _OFF_FLAGS)

    @property
    def registered(self) -> bool:
        """Whether it is on a place."""
        return _place_of(self) is not None

    @property
    def native_address(self) -> int:
        """Where its native half is: the `p` of native and C handlers."""
        return ctypes.addressof(self.native)

    @property
    def nmissed(self) -> int:
        """How often a hit has called nobody since the registration (KP-45)."""
        return int(self.native.nmissed)

    @property
    def aggregate(self) -> Aggregate | None:
        """The place that it is on."""
        return _place_of(self)

    @property
    def opcode(self) -> int:
        """The first byte of the instruction that it is on."""
        place = _place_of(self)
        return place.original[0] if place else 0

    @property
    def ainsn(self) -> bytes:
        """The instruction that it is on, as it was."""
        place = _place_of(self)
        return place.original if place else b""


_places: dict[kprobe, Aggregate] = {}
"""The registered probes, in the order of their registration, and where they are."""


def _place_of(p: kprobe) -> Aggregate | None:
    return _places.get(p)


def registered_probes() -> list[kprobe]:
    """Every registered probe, in the order of registration."""
    with kprobe_mutex:
        return list(_places)


# -- registration -------------------------------------------------------------------------------------------------


def register_kprobe(p: kprobe) -> None:
    """Probe an instruction (KP-5..21).

    `p.addr` is set to where the probe is, and stays set. Raises OSError: EINVAL (both or neither of addr and symbol_name;
    registered already; no code, or code that may not be probed), ENOENT (no such symbol, address in no symbol, module on its
    way out), EILSEQ (not an instruction's first byte), EOPNOTSUPP (an instruction that cannot be probed), ENOSPC, ENOMEM,
    EBUSY (on a function whose ip another ftrace_ops modifies).
    """
    watch_modules()
    with patching():
        _register(p)


def _register(p: kprobe) -> None:
    place = placing.locate(p.addr, p.symbol_name, p.offset)
    p.addr = place.address
    if p in _places:
        raise OSError(errno.EINVAL, f"this kprobe is registered already, at {place.address:#x}")
    p.flags = p.flags & KPROBE_FLAG_DISABLED
    p.native = Child.ctypes()
    on_ftrace = placing.check(place)
    p.flags |= (KPROBE_FLAG_FTRACE if on_ftrace else 0) | (KPROBE_FLAG_ON_FUNC_ENTRY if place.is_entry else 0)
    crash_words.of_place(p.native, place.symbol)
    _build(p)
    python_unsafe.check(place, p.calls_python, p.python_unsafe)
    found = aggregates.get(place.address) or placing.prepare(place, on_ftrace)
    if p._return_probe and not on_ftrace:
        give_return_stub(found)
    (p.prepare_fast or p._prepare_fast)(on_ftrace)
    try:
        _join(p, found)
    except OSError:
        _let_go(p)
        raise


def _let_go(p: kprobe) -> None:
    if p.lone is not None:
        p.lone.probe.let_go()
    if p.fast_return is not None:
        p.fast_return.free()
    p.lone = p.fast_return = None


@cache
def watch_modules() -> None:
    """From the first registration on the probes' modules are watched, and probes become jumps."""
    importlib.import_module("kprobes.jump.optimize")
    from kprobes.modules import module_event

    register_module_notifier(module_event)


def _build(p: kprobe) -> None:
    """The native half of `p` as it stands."""
    child = p.native
    child.address, child.flags = p.addr, OFF if p.is_off else 0
    if p._return_probe:
        child.kind, child.rp = RETURN, p._return_probe
        Kretprobe.ctypes.from_address(p._return_probe).child = p.native_address
        return
    p.errors = HandlerErrors()
    report = p.errors.report
    pre = handlers.resolve(p.pre_handler, PRE, p, report, _pre_of)
    post = handlers.resolve(p.post_handler, POST, p, report, _post_of)
    child.pre, child.post = pre.address, post.address
    child.pre_cookie, child.post_cookie = pre.cookie or p.native_address, post.cookie or p.native_address
    child.kind = (
        PRE_FOREIGN * pre.foreign | PRE_PYTHON * pre.python | POST_FOREIGN * post.foreign | POST_PYTHON * post.python
    )
    child.kind |= PRE_PLAIN * handlers.is_plain(p.pre_handler)
    p.foreign, p.calls_python = pre.foreign or post.foreign, pre.python or post.python
    fault = handlers.resolve(p.fault_handler, FAULT, p, report, _fault_of)
    child.fault, child.fault_cookie = fault.address, fault.cookie or p.native_address
    child.kind |= FAULT_FOREIGN * fault.foreign | FAULT_PYTHON * fault.python
    p.asks_of_faults = 2 if fault.foreign else int(bool(fault.address))
    p.codes = (pre, post, fault)
    child.pre_text, child.post_text = crash_words.of_handler(pre, PRE.name), crash_words.of_handler(post, POST.name)
    child.fault_text = crash_words.of_handler(fault, FAULT.name)


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


def _join(p: kprobe, place: Aggregate) -> None:
    """Put `p` on a place, and arm that unless nothing is to be noticed there. Raises OSError, having undone it."""
    place.children.insert(0, p)
    try:
        switch.children_changed(place)
    except OSError:
        place.children.remove(p)
        place.publish()
        fast_returns.update(place)
        raise
    _places[p] = place


def register_kprobes(ps: Sequence[kprobe], num: int | None = None) -> None:
    """Register the first `num`, or all: on the first error those before it are unregistered, and it is raised (KP-58)."""
    count = len(ps) if num is None else num
    if count <= 0:
        raise OSError(errno.EINVAL, f"{count} kprobes cannot be registered")
    watch_modules()
    done: list[kprobe] = []
    try:
        with patching():
            for p in ps[:count]:
                _register(p)
                done.append(p)
    except OSError:
        if done:
            unregister_kprobes(done)
        raise


# -- the way out --------------------------------------------------------------------------------------------------


def unregister_kprobe(p: kprobe) -> None:
    """Take `p` off. When this returns no handler of it runs any more, in any thread but the calling one (KP-57)."""
    unregister_kprobes([p])


def unregister_kprobes(ps: Sequence[kprobe], num: int | None = None) -> None:
    """Take the first `num` off, or all. One that is not registered only gets its addr cleared (KP-57)."""
    left = []
    with patching():
        for p in ps[: len(ps) if num is None else max(num, 0)]:
            place = _places.get(p)
            if place is None:
                p.addr = None
            else:
                _leave(p, place)
                left.append(p)
    if left:
        settle()


def _leave(p: kprobe, place: Aggregate) -> None:
    if not p.is_off:
        p.flags |= KPROBE_FLAG_DISABLED
    del _places[p]
    if p.lone is not None:
        p.lone.stop()
    place.children.remove(p)
    switch.children_changed(place)
    if not p.is_return_probe:
        _let_go(p)


def settle() -> None:
    """Wait until no other thread is in a handler that has gone, then free what hits may have been reading."""
    with kprobe_mutex:
        replaced = list(retired)
        retired.clear()
    if not tracer().runtime.quiesce():
        with kprobe_mutex:
            retired.extend(replaced)


# -- disable and enable -------------------------------------------------------------------------------------------


def disable_kprobe(p: kprobe) -> None:
    """Do not call the handlers of `p` until it is enabled (KP-55). Raises OSError(EINVAL) if it is not registered."""
    with patching():
        place = _place(p)
        if p.is_off:
            return
        p.flags |= KPROBE_FLAG_DISABLED
        switch.children_changed(place)


def enable_kprobe(p: kprobe) -> None:
    """Call them again (KP-55). Raises OSError: EINVAL if it is not registered or its code is gone; what arming raises."""
    with patching():
        place = _place(p)
        if p.flags & KPROBE_FLAG_GONE:
            raise OSError(errno.EINVAL, f"the code at {p.addr:#x} is gone")
        kept = p.flags
        p.flags &= ~KPROBE_FLAG_DISABLED
        try:
            switch.children_changed(place)
        except OSError:
            p.flags = kept
            place.publish()
            raise


def _place(p: kprobe) -> Aggregate:
    place = _places.get(p)
    if place is None:
        raise OSError(errno.EINVAL, "this kprobe is not registered")
    return place


def places_in(start: int, end: int) -> list[Aggregate]:
    """Every place in [start, end) that has a probe, ascending."""
    return [place for place in between(start, end) if place.children]


def kill_probes(place: Aggregate) -> None:
    """The code is going away: its probes are GONE, and only their owners can take them off (KP-95, KP-96)."""
    for p in place.children:
        p.flags |= KPROBE_FLAG_GONE
    if place.armed:
        switch.disarm(place, immediate=True)
    if switch.optimizer is not None and not place.on_ftrace:
        switch.optimizer.forget(place)
    place.optimized = False
    place.publish()
    fast_returns.update(place)
    fast_returns.forget(place)
    place.forget()
