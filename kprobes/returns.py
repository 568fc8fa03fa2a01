"""The kretprobe API of include/linux/kprobes.h. Failures raise OSError with the kernel's errno."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kprobes import registration as probes
from kprobes.breakpoint.patching import patching
from kprobes.place import blacklist, placing
from kprobes.place.aggregate import settle
from kprobes.return_hook import free_idle, watch_forks
from sandbox.process.cpus import num_possible_cpus
from sandbox.process.integers import INT_MAX, integer

if TYPE_CHECKING:
    from kprobes.place.placing import Place
    from kprobes.return_probe import kretprobe

KRETPROBE_MAX_DATA_SIZE = 4096


def register_kretprobe(rp: kretprobe) -> None:
    """Probe the returns of a function. Handlers of `rp.kp` are removed.

    Raises OSError as `register_kprobe` does, and: EINVAL (not a function's entry; a function that switches stacks, moves its
    return address or returns twice), E2BIG (data_size over 4096), ENOMEM (maxactive too large). As register_kretprobe() in
    kernel/kprobes.c.
    """
    make_ready()
    with patching():
        put_on(rp)


def make_ready() -> None:
    """To be called before the locks of a registration are taken."""
    free_idle()
    watch_forks()
    probes.make_ready()


def put_on(rp: kretprobe) -> None:
    """`register_kretprobe`, within `patching()`; `make_ready` comes before that."""
    place = placing.locate(rp.kp.addr, rp.kp.symbol_name, rp.kp.offset)
    _check(rp, place)
    if rp.maxactive <= 0:
        rp.maxactive = max(10, 2 * num_possible_cpus())
    rp.build()
    probes.put_at(place, rp.kp)


def _check(rp: kretprobe, place: Place) -> None:
    """Raises OSError if `rp` cannot be registered at `place`; changes nothing."""
    if not place.is_entry:
        raise OSError(errno.EINVAL, f"{place} is not the entry of a function")
    if rp.kp.addr and rp.registered:
        raise OSError(errno.EINVAL, f"this kretprobe is already registered, at {place.address:#x}; unregister it first")
    reason = blacklist.kretprobe_blacklist(place.symbol)
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
    except OSError:
        if done:
            unregister_kretprobes(done)
        raise


def unregister_kretprobe(rp: kretprobe) -> None:
    """Unregister `rp`. Calls in progress return without calling its handler."""
    unregister_kretprobes([rp])


def unregister_kretprobes(rps: Sequence[kretprobe], num: int | None = None) -> None:
    """Unregister the first `num`, or all. Of one that is not registered, only `kp.addr` is cleared."""
    chosen = rps[: len(rps) if num is None else max(num, 0)]
    with patching():
        left = probes.take_off(rp.kp for rp in chosen)
    if left:
        settle()
    free_idle()


def disable_kretprobe(rp: kretprobe) -> None:
    """disable_kprobe(&rp->kp). The handler still runs when calls in progress return."""
    probes.disable_kprobe(rp.kp)


def enable_kretprobe(rp: kretprobe) -> None:
    """enable_kprobe(&rp->kp)."""
    probes.enable_kprobe(rp.kp)
