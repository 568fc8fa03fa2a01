"""The kprobe and kretprobe API of include/linux/kprobes.h. Failures raise OSError with the kernel's errno."""

from __future__ import annotations

import atexit
import contextlib
import errno
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from ftrace.core.tracer import tracer
from kprobes import checks, states
from kprobes.breakpoint.patching import kprobe_mutex, patching
from kprobes.fast import return_stubs
from kprobes.freed_text import kill_unmapped, module_event
from kprobes.joining import join_ftrace
from kprobes.place import Place, places, settle
from kprobes.probe import (
    KPROBE_FLAG_DISABLED,
    KPROBE_FLAG_FTRACE,
    KPROBE_FLAG_GONE,
    KPROBE_FLAG_ON_FUNC_ENTRY,
    kprobe,
)
from kprobes.return_hook import free_idle, watch_forks
from sandbox.loading.module import register_module_notifier
from sandbox.process import hooks
from sandbox.process.cpus import num_possible_cpus
from sandbox.process.integers import INT_MAX, U32_MAX, integer

if TYPE_CHECKING:
    from kprobes.return_probe import kretprobe


_registered: dict[kprobe, None] = {}
"""The registered probes, in the order of registration."""


def registered_probes() -> list[kprobe]:
    """Every registered probe, in the order of registration."""
    with kprobe_mutex:
        return list(_registered)


# -- registration -------------------------------------------------------------------------------------------------


def register_kprobe(p: kprobe) -> None:
    """Probe an instruction.

    Sets `p.addr` to the probe's address. Raises OSError: EINVAL (both or neither of addr and symbol_name given; registered
    already; not code, or code that must not be probed), ENOENT (no such symbol; an address in no symbol; a module that is
    being unloaded), EILSEQ (not the first byte of an instruction), EOPNOTSUPP (an instruction that cannot be probed), ENOSPC,
    ENOMEM, EBUSY (a function whose ip another ftrace_ops modifies). As register_kprobe() in kernel/kprobes.c.
    """
    init_kprobes()
    with patching():
        register_kprobe_locked(p)


def register_kprobe_locked(p: kprobe) -> None:
    """`register_kprobe`, within `patching()`; `init_kprobes` comes before that."""
    _register(p, checks.locate(p.addr, p.symbol_name, p.offset))


def _register(p: kprobe, place: Place) -> None:
    """The steps of a registration, in order. On an error, everything is undone but `p.addr` and `p.flags`."""
    flags = integer("flags", p.flags, 0, U32_MAX) & KPROBE_FLAG_DISABLED if p.flags != 0 else 0
    p.addr = place.address
    if p.registered:
        raise OSError(errno.EINVAL, f"this kprobe is already registered, at {place.address:#x}; unregister it first")
    p.flags = flags
    checks.check(place)
    p.build(place.symbol)
    checks.check_python(place, p.calls_python, p.python_unsafe)
    place = places.get(place.address, place)  # compiling its handlers may have let another probe be registered here
    if place.address not in places:
        checks.prepare(place)
    p.flags = flags | KPROBE_FLAG_FTRACE * place.on_ftrace | KPROBE_FLAG_ON_FUNC_ENTRY * place.is_entry
    checks.check_post(place, p.post_handler)
    p.choose_path(place)
    place.join(p)
    try:
        states.children_changed(place)
    except BaseException:
        _take_back(p, place)
        raise
    p.place = place
    _registered[p] = None


def _take_back(p: kprobe, place: Place) -> None:
    """The place could not be armed with `p`: it is as before."""
    place.leave(p)
    place.publish()
    if place.jump is not None:
        return_stubs.update_fast_returns(place)
    p.cancel()


@cache  # not @once: a module notifier may call it, and it takes the notifiers' lock
def init_kprobes() -> None:
    """Before the first registration: watch the unloading of modules, and the exit of the interpreter.

    Threads may call it at the same time: each step has an effect once.
    """
    tracer()  # which may fail for want of a resource: nothing has been done by then
    join_ftrace()
    hooks.before_batch.add(kill_unmapped)
    register_module_notifier(module_event)
    atexit.unregister(states.disarm_for_good)
    atexit.register(states.disarm_for_good)


def register_kprobes(ps: Sequence[kprobe], num: int | None = None) -> None:
    """Register the first `num`, or all. On the first error, those registered before it are unregistered; it is raised."""
    count = integer("num", len(ps) if num is None else num, 1, INT_MAX)
    init_kprobes()
    done: list[kprobe] = []
    try:
        with patching():
            for p in ps[:count]:
                register_kprobe_locked(p)
                done.append(p)
    except BaseException:
        if done:
            unregister_kprobes(done)
        raise


# -- unregistration -----------------------------------------------------------------------------------------------


def unregister_kprobe(p: kprobe) -> None:
    """Unregister `p`. Afterwards none of its handlers runs in any thread but the calling one."""
    unregister_kprobes([p])


def unregister_kprobes(ps: Sequence[kprobe], num: int | None = None) -> None:
    """Unregister the first `num`, or all. Of a probe that is not registered, only `addr` is cleared."""
    with patching():
        was_registered = unregister_locked(ps[: len(ps) if num is None else max(num, 0)])
    if was_registered:
        settle()


def unregister_locked(ps: Iterable[kprobe]) -> bool:
    """`unregister_kprobes`, within `patching()`.

    Returns whether one was registered. If so, the caller has to call `settle` after it has released its locks.
    """
    their_places = []
    for p in ps:
        place = p.place
        if place is None:
            p.addr = None
        else:
            _unregister(p, place)
            their_places.append(place)
    states.restore_disarmed(their_places)
    return bool(their_places)


def _unregister(p: kprobe, place: Place) -> None:
    if not p.is_off:
        p.flags |= KPROBE_FLAG_DISABLED
    p.place = None
    del _registered[p]
    p.stop()
    place.leave(p)
    states.children_changed(place)
    p.release()


# -- disable and enable -------------------------------------------------------------------------------------------


def disable_kprobe(p: kprobe) -> None:
    """Stop calling the handlers of `p` until it is enabled. Raises OSError(EINVAL) if it is not registered."""
    with patching():
        place = _place(p)
        if p.is_off:
            return
        p.flags |= KPROBE_FLAG_DISABLED
        states.children_changed(place)


def enable_kprobe(p: kprobe) -> None:
    """Call the handlers of `p` again. Raises OSError: EINVAL if it is not registered or its code is gone; errors of arming."""
    with patching():
        place = _place(p)
        if p.flags & KPROBE_FLAG_GONE:
            raise OSError(errno.EINVAL, f"the code at {p.addr:#x} has been unloaded; unregister the probe")
        flags = p.flags
        p.flags &= ~KPROBE_FLAG_DISABLED
        try:
            states.children_changed(place)
        except OSError:
            p.flags = flags
            raise


def _disable_on_ftrace() -> None:
    """Disable the kprobes on ftrace locations: their ops are about to be unregistered."""
    for p in registered_probes():
        if p.flags & KPROBE_FLAG_FTRACE:
            with contextlib.suppress(OSError):  # another thread has unregistered it
                disable_kprobe(p)


hooks.before_detaching.add(_disable_on_ftrace)


def _place(p: kprobe) -> Place:
    if p.place is None:
        raise OSError(errno.EINVAL, "this kprobe is not registered; register it first")
    return p.place


# -- kretprobes ---------------------------------------------------------------------------------------------------

KRETPROBE_MAX_DATA_SIZE = 4096


def register_kretprobe(rp: kretprobe) -> None:
    """Probe the returns of a function. Handlers of `rp.kp` are removed.

    Raises OSError as `register_kprobe` does, and: EINVAL (not a function's entry; a function that switches stacks, moves its
    return address or returns twice), E2BIG (data_size over 4096), ENOMEM (maxactive too large). As register_kretprobe() in
    kernel/kprobes.c.
    """
    init_kretprobes()
    with patching():
        register_kretprobe_locked(rp)


def init_kretprobes() -> None:
    """To be called before the locks of a registration are taken."""
    free_idle()
    watch_forks()
    init_kprobes()


def register_kretprobe_locked(rp: kretprobe) -> None:
    """`register_kretprobe`, within `patching()`; `init_kretprobes` comes before that."""
    place = checks.locate(rp.kp.addr, rp.kp.symbol_name, rp.kp.offset)
    _check_kretprobe(rp, place)
    if rp.maxactive <= 0:
        rp.maxactive = max(10, 2 * num_possible_cpus())
    rp.build()
    _register(rp.kp, place)


def _check_kretprobe(rp: kretprobe, place: Place) -> None:
    """Raises OSError if `rp` cannot be registered at `place`; changes nothing."""
    if not place.is_entry:
        raise OSError(errno.EINVAL, f"{place} is not the entry of a function; a kretprobe must be at one")
    if rp.kp.addr and rp.registered:
        raise OSError(errno.EINVAL, f"this kretprobe is already registered, at {place.address:#x}; unregister it first")
    reason = checks.kretprobe_blacklist(place.symbol)
    if reason:
        raise OSError(errno.EINVAL, f"the returns of {place} cannot be probed: {reason}")
    integer("data_size", rp.data_size, 0, KRETPROBE_MAX_DATA_SIZE, errno.E2BIG)
    integer("maxactive", rp.maxactive)
    if rp.registered:
        raise OSError(errno.EINVAL, f"this kretprobe is already registered, at {place.address:#x}; unregister it first")


def register_kretprobes(rps: Sequence[kretprobe], num: int | None = None) -> None:
    """Register the first `num`, or all. On the first error, those registered before it are unregistered; it is raised."""
    count = integer("num", len(rps) if num is None else num, 1, INT_MAX)
    done: list[kretprobe] = []
    try:
        for rp in rps[:count]:
            register_kretprobe(rp)
            done.append(rp)
    except BaseException:
        if done:
            unregister_kretprobes(done)
        raise


def unregister_kretprobe(rp: kretprobe) -> None:
    """Unregister `rp`. Calls in progress return without calling its handler."""
    unregister_kretprobes([rp])


def unregister_kretprobes(rps: Sequence[kretprobe], num: int | None = None) -> None:
    """Unregister the first `num`, or all. Of one that is not registered, only `kp.addr` is cleared."""
    leaving = rps[: len(rps) if num is None else max(num, 0)]
    with patching():
        was_registered = unregister_locked(rp.kp for rp in leaving)
    if was_registered:
        settle()
    free_idle()


def disable_kretprobe(rp: kretprobe) -> None:
    """disable_kprobe(&rp->kp). The handler still runs when calls in progress return."""
    disable_kprobe(rp.kp)


def enable_kretprobe(rp: kretprobe) -> None:
    """enable_kprobe(&rp->kp)."""
    enable_kprobe(rp.kp)
