"""The kprobe API of include/linux/kprobes.h. Failures raise OSError with the kernel's errno."""

from __future__ import annotations

import atexit
import contextlib
import errno
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from ftrace.tracer import before_detaching
from kprobes.breakpoint.patching import kprobe_mutex, patching
from kprobes.fast import fast_returns
from kprobes.jump.optimize import jump_optimizer
from kprobes.place import placing, python_unsafe, switch
from kprobes.place.aggregate import Aggregate, aggregates, settle
from kprobes.place.beside_ftrace import join_ftrace
from kprobes.place.modules import module_event
from kprobes.probe import (
    KPROBE_FLAG_DISABLED,
    KPROBE_FLAG_FTRACE,
    KPROBE_FLAG_GONE,
    KPROBE_FLAG_ON_FUNC_ENTRY,
    kprobe,
)
from sandbox.loading.module import register_module_notifier
from sandbox.process.integers import INT_MAX, U32_MAX, integer

if TYPE_CHECKING:
    from kprobes.place.placing import Place

_registered: dict[kprobe, None] = {}
"""The registered probes, in the order of their registration."""


def registered_probes() -> list[kprobe]:
    """Every registered probe, in the order of registration."""
    with kprobe_mutex:
        return list(_registered)


# -- registration -------------------------------------------------------------------------------------------------


def register_kprobe(p: kprobe) -> None:
    """Probe an instruction.

    `p.addr` is set to where the probe is, and stays set. Raises OSError: EINVAL (both or neither of addr and symbol_name;
    registered already; no code, or code that may not be probed), ENOENT (no such symbol, address in no symbol, module on its
    way out), EILSEQ (not an instruction's first byte), EOPNOTSUPP (an instruction that cannot be probed), ENOSPC, ENOMEM,
    EBUSY (on a function whose ip another ftrace_ops modifies).
    """
    make_ready()
    with patching():
        put_on(p)


def put_on(p: kprobe) -> None:
    """`register_kprobe`, within `patching()`; `make_ready` comes before that."""
    put_at(placing.locate(p.addr, p.symbol_name, p.offset), p)


def put_at(place: Place, p: kprobe) -> None:
    """`put_on`, at the place that `p` names."""
    integer("flags", p.flags, 0, U32_MAX)
    p.addr = place.address
    if p.registered:
        raise OSError(errno.EINVAL, f"this kprobe is registered already, at {place.address:#x}")
    p.flags = p.flags & KPROBE_FLAG_DISABLED
    ground = placing.check(place)
    p.flags |= KPROBE_FLAG_FTRACE * ground.on_ftrace | KPROBE_FLAG_ON_FUNC_ENTRY * place.is_entry
    p.build(place.symbol)
    python_unsafe.check(place, p.calls_python, p.python_unsafe)
    found = aggregates.get(place.address) or placing.prepare(place, ground)
    p.flags |= KPROBE_FLAG_FTRACE * found.on_ftrace
    if found.on_ftrace and p.post_handler is not None and ground.module is None:
        raise OSError(
            errno.EBUSY, f"{place} is an ftrace location since an fprobe was there; it takes no post_handler any more"
        )
    p.join(found)
    try:
        _join(p, found)
    except OSError:
        p.give_up()
        raise


@cache
def make_ready() -> None:
    """From the first registration on the probes' modules are watched, and so is the end of the interpreter."""
    join_ftrace()
    register_module_notifier(module_event)
    atexit.register(switch.disarm_for_good)


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
    p.aggregate = place
    _registered[p] = None


def register_kprobes(ps: Sequence[kprobe], num: int | None = None) -> None:
    """Register the first `num`, or all: on the first error those before it are unregistered, and it is raised."""
    count = integer("num", len(ps) if num is None else num, 1, INT_MAX)
    make_ready()
    done: list[kprobe] = []
    try:
        with patching():
            for p in ps[:count]:
                put_on(p)
                done.append(p)
    except OSError:
        if done:
            unregister_kprobes(done)
        raise


# -- the way out --------------------------------------------------------------------------------------------------


def unregister_kprobe(p: kprobe) -> None:
    """Unregister `p`. Afterwards none of its handlers runs in any thread but the calling one."""
    unregister_kprobes([p])


def unregister_kprobes(ps: Sequence[kprobe], num: int | None = None) -> None:
    """Unregister the first `num`, or all. A probe that is not registered only gets its addr cleared."""
    with patching():
        left = take_off(ps[: len(ps) if num is None else max(num, 0)])
    if left:
        settle()


def take_off(ps: Iterable[kprobe]) -> bool:
    """`unregister_kprobes`, within `patching()`. Whether one was registered: `settle` has to follow, without locks."""
    left = []
    for p in ps:
        place = p.aggregate
        if place is None:
            p.addr = None
        else:
            _leave(p, place)
            left.append(place)
    jump_optimizer.take_back(left)
    return bool(left)


def _leave(p: kprobe, place: Aggregate) -> None:
    if not p.is_off:
        p.flags |= KPROBE_FLAG_DISABLED
    p.aggregate = None
    del _registered[p]
    p.stop()
    place.children.remove(p)
    switch.children_changed(place)
    p.leave()


# -- disable and enable -------------------------------------------------------------------------------------------


def disable_kprobe(p: kprobe) -> None:
    """Do not call the handlers of `p` until it is enabled. Raises OSError(EINVAL) if it is not registered."""
    with patching():
        place = _place(p)
        if p.is_off:
            return
        p.flags |= KPROBE_FLAG_DISABLED
        switch.children_changed(place)


def enable_kprobe(p: kprobe) -> None:
    """Call them again. Raises OSError: EINVAL if it is not registered or its code is gone; what arming raises."""
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


def _disable_on_ftrace() -> None:
    """Those that are on ftrace locations: their ops are about to be unregistered."""
    for p in registered_probes():
        if p.flags & KPROBE_FLAG_FTRACE:
            with contextlib.suppress(OSError):  # it has been unregistered meanwhile
                disable_kprobe(p)


before_detaching.append(_disable_on_ftrace)


def _place(p: kprobe) -> Aggregate:
    if p.aggregate is None:
        raise OSError(errno.EINVAL, "this kprobe is not registered")
    return p.aggregate
