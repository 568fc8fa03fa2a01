"""The kretprobe API of include/linux/kprobes.h. Failures raise OSError with the kernel's errno."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ftrace.cpus import num_possible_cpus
from kprobes import registration as probes
from kprobes.breakpoint.patching import patching
from kprobes.place import blacklist, placing
from kprobes.place.aggregate import settle
from kprobes.return_hook import free_idle, watch_forks
from sandbox.process.integers import INT_MAX, integer

if TYPE_CHECKING:
    from kprobes.place.placing import Place
    from kprobes.return_probe import kretprobe

KRETPROBE_MAX_DATA_SIZE = 4096


def register_kretprobe(rp: kretprobe) -> None:
    """Probe the returns of a function. Handlers of `rp.kp` are removed.

    Raises OSError: EINVAL (not a function's entry; a function that switches stacks, moves its return address or returns twice,
    by its name or its code), E2BIG for more than
    4096 bytes of data, ENOMEM; and what `register_kprobe` raises.
    """
    make_ready()
    with patching():
        put_on(rp)


def make_ready() -> None:
    """What comes before the locks of a registration are taken."""
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
    """What is asked of a kretprobe before any of it is touched."""
    if not place.is_entry:
        raise OSError(errno.EINVAL, f"{place} is not the entry of a function")
    if rp.kp.addr and rp.registered:
        raise OSError(errno.EINVAL, f"this kretprobe is registered already, at {place.address:#x}")
    reason = blacklist.kretprobe_blacklist(place.symbol)
    if reason:
        raise OSError(errno.EINVAL, f"the returns of {place} cannot be probed: {reason}")
    integer("data_size", rp.data_size, 0, KRETPROBE_MAX_DATA_SIZE, errno.E2BIG)
    integer("maxactive", rp.maxactive)
    if rp.registered:
        raise OSError(errno.EINVAL, f"this kretprobe is registered already, at {place.address:#x}")


def register_kretprobes(rps: Sequence[kretprobe], num: int | None = None) -> None:
    """Register the first `num`, or all; on the first error those before it are unregistered, and it is raised."""
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
    """Unregister `rp`. Calls in progress return without its handler."""
    unregister_kretprobes([rp])


def unregister_kretprobes(rps: Sequence[kretprobe], num: int | None = None) -> None:
    """Take the first `num` off, or all. One that is not registered only gets its addr cleared."""
    chosen = rps[: len(rps) if num is None else max(num, 0)]
    with patching():
        left = probes.take_off(rp.kp for rp in chosen)
    if left:
        settle()
    free_idle()


def disable_kretprobe(rp: kretprobe) -> None:
    """disable_kprobe(&rp->kp): calls in progress still get its handler."""
    probes.disable_kprobe(rp.kp)


def enable_kretprobe(rp: kretprobe) -> None:
    """enable_kprobe(&rp->kp)."""
    probes.enable_kprobe(rp.kp)
