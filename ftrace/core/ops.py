"""ftrace_ops: a callback, the functions it is for, and its registration."""

from __future__ import annotations

import contextlib
import errno
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ftrace.core.dyn_ftrace.record import Operation
from ftrace.core.glob import parse
from ftrace.core.handlers.python_handler import HandlerErrors, python_handler
from ftrace.core.ops_flags import (
    FTRACE_OPS_FL_DELETED,
    FTRACE_OPS_FL_DIRECT,
    FTRACE_OPS_FL_ENABLED,
    FTRACE_OPS_FL_INITIALIZED,
    FTRACE_OPS_FL_IPMODIFY,
    FTRACE_OPS_FL_PERMANENT,
    FTRACE_OPS_FL_RCU,
    FTRACE_OPS_FL_RECURSION,
    FTRACE_OPS_FL_SAVE_REGS,
    FTRACE_OPS_FL_STUB,
)
from ftrace.core.probe import NativeProbe
from ftrace.core.sites.block import SiteBlock
from ftrace.core.sites.locations import FILTER, NOTRACE, Location, LocationSet, OpsHash, clean, global_hash
from ftrace.core.tracer import Tracer, tracer
from ftrace.hit.records import ASSIST, CALLBACK, COMPLETE, DISABLED, FOREIGN, HAS_ENTRY, PYTHON, WANTS_REGS
from sandbox.images.near_misses import near_misses
from sandbox.memory.mappings import code_address
from sandbox.process.fork import ProcessBound
from sandbox.process.integers import U64_MAX, integer

_EXCLUSIVE = FTRACE_OPS_FL_IPMODIFY | FTRACE_OPS_FL_DIRECT


class ftrace_ops(ProcessBound):
    """A callback and the functions that it is called for (struct ftrace_ops).

    `filter_hash` and `notrace_hash`: an empty filter means all functions, an empty notrace excludes none. They
    are its own (`local_hash`) or shared (`ftrace_ops_set_global_filter`). `detach_all` calls `detach` instead of a plain
    unregister. The flags are read when the ops is registered.
    """

    def __init__(self, func: Any = None, flags: int = 0) -> None:
        self.func = func
        """func(ip, parent_ip, ops, fregs): a Python callable, or the address of a native function."""
        self.flags = flags
        self.errors = HandlerErrors()
        """Exceptions of a Python callback."""
        self.private: Any = None
        """The owner's."""
        self.direct_call = 0
        """The address of its direct function, and below what its callback reads (ftrace.core.direct)."""
        self.private_direct: Any = None
        self.local_hash = OpsHash()
        self.func_hash = self.local_hash
        self.detach: Callable[[], Any] = lambda: unregister_ftrace_function(self)
        self.hooks_return = False
        """Whether its probe has something to do when a function returns."""
        self.ever_listed = False
        """Whether it has ever been registered, as saved_func shows in the kernel."""
        self._probe: NativeProbe | None = None

    @property
    def filter_hash(self) -> LocationSet:
        """The functions that it is for; empty: all."""
        return self.func_hash.filter_hash

    @property
    def notrace_hash(self) -> LocationSet:
        """The functions that it is not for."""
        return self.func_hash.notrace_hash

    @property
    def enabled(self) -> bool:
        """Whether it is registered."""
        return bool(self.flags & FTRACE_OPS_FL_ENABLED)

    @property
    def permanent(self) -> bool:
        """Whether ftrace must not be disabled while it is registered."""
        return bool(self.flags & FTRACE_OPS_FL_PERMANENT)

    @property
    def moves_ip(self) -> bool:
        """Whether it may send a call elsewhere: IPMODIFY, or a direct function."""
        return bool(self.flags & _EXCLUSIVE)

    @property
    def probe(self) -> NativeProbe:
        """The native half. Raises ValueError before the first registration."""
        if self._probe is None:
            raise ValueError("this ftrace_ops has never been registered; register it first")
        return self._probe

    def selection(self) -> LocationSet:
        """The locations it is for, by its hashes as they are now."""
        return clean({block: mask & ~self._refused(block) for block, mask in self._wanted().items()})

    def skipped(self) -> list[tuple[Location, str]]:
        """The locations that the hashes select but that cannot be probed so, each with the reason."""
        refused = LocationSet({block: mask & self._refused(block) for block, mask in self._wanted().items()})
        return [(location, _reason(location)) for location in refused.each()]

    def _refused(self, block: SiteBlock) -> int:
        """The sites of a block that cannot be patched, or, for ops that hook returns, whose return cannot be hooked."""
        return block.unpatchable | block.unhookable if self.hooks_return else block.unpatchable

    def _wanted(self) -> Mapping[SiteBlock, int]:
        """The locations that the hashes select; the returns of their functions have been examined if they are hooked."""
        wanted = self.func_hash.select(tracer().table)
        self._examine(wanted)
        return wanted

    def _examine(self, locations: Mapping[SiteBlock, int]) -> None:
        if self.hooks_return:
            for block, mask in locations.items():
                block.examine_returns(mask)

    def can_be_at(self, locations: LocationSet) -> bool:
        """Whether it can be at any of these locations."""
        self._examine(locations)
        return any(mask & ~self._refused(block) for block, mask in locations.items())


def _reason(location: Location) -> str:
    return location.block.reason(location.position)


def register_ftrace_function(ops: ftrace_ops) -> None:
    """Call `ops.func` at the entry of every function that its hashes select.

    Raises OSError: ENODEV if ftrace is dead; EINVAL for an ops that is deleted, has no func, or has IPMODIFY and no filter;
    EBUSY if it is registered, is PERMANENT while ftrace is disabled, or modifies ip where another ops does.
    """
    tracing = tracer()
    with tracing.reclaimer.deferred(), tracing.table.lock:
        tracing.check_alive()
        _check_func(ops.func)
        integer("flags", ops.flags, 0, U64_MAX)
        register_ops(ops, _native_half(ops))


def _check_func(func: Any) -> None:
    if func is None or func == 0:
        raise OSError(errno.EINVAL, f"this ftrace_ops has no func ({func!r}); give a callable or a function's address")
    if not isinstance(func, int) and not callable(func):
        raise TypeError(f"func is {func!r}; it must be a callable or a function's address")


def _native_half(ops: ftrace_ops) -> NativeProbe:
    kind = CALLBACK | HAS_ENTRY | (ASSIST if ops.flags & (FTRACE_OPS_FL_RECURSION | FTRACE_OPS_FL_RCU) else 0)
    if isinstance(ops.func, int):
        entry, cookie, keep, kind = code_address("func", ops.func), 0, ops.func, kind | FOREIGN
    else:
        entry, cookie, keep = python_handler(_in_order(ops.func), ops, ops.errors.report)
        kind |= FOREIGN | PYTHON
    kind |= WANTS_REGS if ops.flags & FTRACE_OPS_FL_SAVE_REGS else 0
    flags = COMPLETE | (DISABLED if ops.flags & FTRACE_OPS_FL_STUB else 0)
    return NativeProbe(tracer().table.lines, keep, kind=kind, flags=flags, entry=entry, entry_cookie=cookie)


def _in_order(func: Callable[..., Any]) -> Callable[..., None]:
    """Adapt a callback to the parameters of a handler."""

    @functools.wraps(func)
    def callback(ops: ftrace_ops, ip: int, parent_ip: int, fregs: Any, _data: None) -> None:
        func(ip, parent_ip, ops, fregs)

    return callback


def ftrace_get_regs(fregs: Any) -> Any:
    """All registers, or None unless an ops on the same function requires them. fregs has the arguments."""
    return fregs if fregs.cs else None


def register_ops(ops: ftrace_ops, probe: NativeProbe) -> None:
    """Register `ops` with its native half, which is its own from then on. Raises OSError as register_ftrace_function()."""
    tracing = tracer()
    try:
        _enable(tracing, ops, probe)
    except BaseException:
        if ops._probe is probe:
            tracing.reclaimer.settle()
        else:
            probe.free()
        raise


def _enable(tracing: Tracer, ops: ftrace_ops, probe: NativeProbe) -> None:
    with tracing.table.lock:
        tracing.check_alive()
        if ops.flags & FTRACE_OPS_FL_DELETED:
            raise OSError(errno.EINVAL, "this ftrace_ops is marked as deleted; use a new one")
        if ops.enabled:
            raise OSError(errno.EBUSY, "this ftrace_ops is already registered; unregister it first")
        if ops.permanent and not tracing.switched_on:
            raise OSError(
                errno.EBUSY, "a PERMANENT ftrace_ops cannot be registered while ftrace is disabled; enable it first"
            )
        ops.ever_listed = True
        ops.flags |= FTRACE_OPS_FL_INITIALIZED
        _check_exclusive(tracing, ops)
        ops._probe = probe
        tracing.enable(ops)
        ops.flags |= FTRACE_OPS_FL_ENABLED


def _check_exclusive(tracing: Tracer, ops: Operation) -> None:
    """At most one ops may modify ip on a function, and not on all of them; nor one there where another has a direct
    function, of which there is also one at most.
    """
    if not ops.moves_ip:
        return
    if ops.func_hash.for_everything:
        raise OSError(errno.EINVAL, "an ftrace_ops with IPMODIFY needs a filter; set one before registering it")
    wanted = ops.selection()
    for other in tracing.enabled:
        if other is not ops and other.moves_ip:
            both = wanted & other.selection()
            if both:
                does = "modifies ip" if other.flags & FTRACE_OPS_FL_IPMODIFY else "has a direct function"
                raise OSError(errno.EBUSY, f"another ftrace_ops {does} at {next(both.each())}")


def change_flags(ops: ftrace_ops, on: int = 0, off: int = 0) -> None:
    """Set and clear flags of the native half (ftrace.hit.records), at once and without waiting."""
    tracing = tracer()
    with tracing.table.lock:
        ops.probe.change_flags(on, off)
        tracing.table.lists.flags_changed(ops.probe)


def unregister_ftrace_function(ops: ftrace_ops, before_free: Callable[[], None] | None = None) -> None:
    """Take `ops` off all functions; returns when no other thread is in its callback.

    `before_free` is called at that point, while the native half can still be read. Raises OSError: ENODEV if ftrace
    is dead, EBUSY if it is not registered.
    """
    tracing = tracer()
    with tracing.table.lock:
        tracing.check_alive()
        if not ops.enabled:
            raise OSError(errno.EBUSY, "this ftrace_ops is not registered")
        tracing.disable(ops)
        ops.flags &= ~FTRACE_OPS_FL_ENABLED
        probe = ops.probe
    tracing.reclaimer.settle(probe, before_free)


def ftrace_set_filter(ops: ftrace_ops, pattern: str | None, reset: bool = False) -> None:
    """Add the functions that match to the filter; `!pattern` removes them; `reset` starts from an empty one.

    Raises OSError(EINVAL), with the filter unchanged, if nothing matches.
    """
    _set_hash(ops, FILTER, pattern, reset)


def ftrace_set_notrace(ops: ftrace_ops, pattern: str | None, reset: bool = False) -> None:
    """The same for the functions that are excluded. Raises OSError(EINVAL) also for an IPMODIFY ops."""
    _set_hash(ops, NOTRACE, pattern, reset)


def ftrace_set_filter_ips(ops: ftrace_ops, ips: Iterable[int], remove: bool = False, reset: bool = False) -> None:
    """Add (or remove) the locations of these addresses, all or none.

    Raises OSError: EINVAL for an address without a location, ENOENT for removing one that is not there.
    """
    tracing = tracer()
    with tracing.table.lock:
        tracing.check_alive()
        base = LocationSet() if reset else ops.filter_hash
        chosen = [_location(tracing, ip) for ip in ips]
        changed = _without(base, chosen) if remove else base | LocationSet.of(chosen)
        live = install_hash(tracing, ops, FILTER, changed, awaits_modules=False if reset else None)
    if live:
        tracing.reclaimer.settle()


def _location(tracing: Tracer, ip: int) -> Location:
    ip = integer("ip", ip, 0, U64_MAX)
    location = tracing.table.location(ip)
    if location is None:
        raise OSError(errno.EINVAL, f"{ip:#x} is not the entry of a function that can be traced")
    return location


def set_filter_selection(ops: ftrace_ops, chosen: LocationSet, excluded: LocationSet | None = None) -> None:
    """Let the filter be these locations, and notrace, if given, those. Raises OSError, with nothing changed, if a registered
    ops cannot be there, or if notrace would not be empty for one with IPMODIFY.
    """
    tracing = tracer()
    with tracing.table.lock:
        tracing.check_alive()
        if excluded or (excluded is not None and ops.notrace_hash):
            install_hash(tracing, ops, NOTRACE, excluded)
        live = install_hash(tracing, ops, FILTER, chosen, awaits_modules=False)
    if live:
        tracing.reclaimer.settle()


def _without(base: LocationSet, locations: Iterable[Location]) -> LocationSet:
    for location in locations:
        if not base.has(location):
            raise OSError(errno.ENOENT, f"{location} is not in the filter")
        base = base - LocationSet.of([location])
    return base


def ftrace_set_filter_ip(ops: ftrace_ops, ip: int, remove: bool = False, reset: bool = False) -> None:
    """`ftrace_set_filter_ips` for one address."""
    ftrace_set_filter_ips(ops, [ip], remove, reset)


def ftrace_free_filter(ops: ftrace_ops) -> None:
    """Empty both hashes (ftrace_free_filter). Raises OSError(EBUSY) while `ops` is registered."""
    with tracer().table.lock:
        if ops.enabled:
            raise OSError(errno.EBUSY, "this ftrace_ops is registered; unregister it before freeing its filters")
        ops.func_hash.clear()


def ftrace_ops_set_global_filter(ops: ftrace_ops) -> None:
    """Have `ops` share the filters of set_ftrace_filter and set_ftrace_notrace; only before its first use."""
    with tracer().table.lock:
        if not ops.flags & FTRACE_OPS_FL_INITIALIZED:
            ops.func_hash = global_hash
            ops.flags |= FTRACE_OPS_FL_INITIALIZED


def _set_hash(ops: ftrace_ops, which: str, pattern: str | None, reset: bool) -> None:
    tracing = tracer()
    with tracing.table.lock:
        tracing.check_alive()
        base = LocationSet() if reset else getattr(ops.func_hash, which)
        changed = base if pattern is None else edited(tracing, base, pattern)
        live = install_hash(tracing, ops, which, changed, awaits_modules=False if reset and which == FILTER else None)
    if live:
        tracing.reclaimer.settle()


def edited(tracing: Tracer, base: LocationSet, text: str) -> LocationSet:
    """`base` with the matches of a pattern added or removed. Raises OSError(EINVAL) if nothing matches."""
    pattern = parse(text)
    found = tracing.table.select(pattern)
    if not found:
        raise OSError(errno.EINVAL, f"no function matches {text!r}{near_misses(text)}")
    return base - found if pattern.negated else base | found


def install_hash(
    tracing: Tracer, ops: ftrace_ops, which: str, changed: LocationSet, awaits_modules: bool | None = None
) -> bool:
    """Give a hash of `ops` new contents, and bring every registered ops that has the same hashes in line (ftrace_hash_move).

    `awaits_modules`: whether the filter is for functions of modules to come; None leaves that as it is. To be called
    with the lock; `settle` has to follow, without it, if the result is True. Raises OSError, having undone everything,
    if an ops may not be there or a site cannot be patched.
    """
    if which == NOTRACE and ops.flags & FTRACE_OPS_FL_IPMODIFY:
        raise OSError(
            errno.EINVAL, "an ftrace_ops with IPMODIFY takes no notrace filter; select its functions by the filter"
        )
    ops.flags |= FTRACE_OPS_FL_INITIALIZED
    hashes = ops.func_hash
    before = [(user, user.selection()) for user in tracing.enabled if user.func_hash is hashes]
    former = hashes.state
    hashes.replace(which, changed, awaits_modules)
    try:
        _follow(tracing, before)
    except OSError:
        hashes.state = former
        raise
    return bool(before)


def _follow(tracing: Tracer, before: list[tuple[Operation, LocationSet]]) -> None:
    """Move registered ops to the functions that their hashes select now. Raises OSError, with none moved."""
    for user, _ in before:
        _check_exclusive(tracing, user)
    moved = []
    try:
        for user, old in before:
            new = user.selection()
            tracing.change(user, old, new)
            moved.append((user, new, old))
    except OSError:
        for move in moved:
            with contextlib.suppress(OSError):  # where the text still holds what we wrote
                tracing.change(*move)
        raise
