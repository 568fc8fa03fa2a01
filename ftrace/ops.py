"""ftrace_ops: a callback, the functions it is for, and its registration (FT-14..31, FT-36..40)."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from typing import Any

from ftrace.glob import parse
from ftrace.locations import Location, Selection
from ftrace.probe import NativeProbe
from ftrace.python_handler import HandlerErrors, python_handler
from ftrace.records import ASSIST, CALLBACK, COMPLETE, FOREIGN, HAS_ENTRY, PYTHON, WANTS_REGS
from ftrace.tracer import Tracer, tracer

FTRACE_OPS_FL_ENABLED = 1 << 0
FTRACE_OPS_FL_DYNAMIC = 1 << 1
FTRACE_OPS_FL_SAVE_REGS = 1 << 2
FTRACE_OPS_FL_SAVE_REGS_IF_SUPPORTED = 1 << 3
FTRACE_OPS_FL_RECURSION = 1 << 4
FTRACE_OPS_FL_STUB = 1 << 5
FTRACE_OPS_FL_INITIALIZED = 1 << 6
FTRACE_OPS_FL_DELETED = 1 << 7
FTRACE_OPS_FL_IPMODIFY = 1 << 12
FTRACE_OPS_FL_RCU = 1 << 14
FTRACE_OPS_FL_PERMANENT = 1 << 16


class ftrace_ops:
    """What is called, and where.

    `filter_hash` and `notrace_hash`: an empty filter means all functions, an empty notrace excludes none (FT-23).
    `detach` is called by `detach_all` in place of a plain unregister.
    """

    def __init__(self, func: Any = None, flags: int = 0) -> None:
        self.func = func
        """func(ip, parent_ip, ops, fregs): a Python callable, or the address of a native function."""
        self.flags = flags
        self.errors = HandlerErrors()
        """What a Python callback has raised."""
        self.filter_hash = Selection()
        self.notrace_hash = Selection()
        self.detach: Callable[[], Any] = lambda: unregister_ftrace_function(self)
        self.hooks_return = False
        """Whether its probe has something to do when a function returns."""
        self.ever_listed = False
        """Whether it has been among the registered operations: what saved_func tells in the kernel (FP-43, FP-49)."""
        self._probe: NativeProbe | None = None

    @property
    def enabled(self) -> bool:
        """Whether it is registered."""
        return bool(self.flags & FTRACE_OPS_FL_ENABLED)

    @property
    def permanent(self) -> bool:
        """Whether ftrace may not be switched off while it is registered (FT-80)."""
        return bool(self.flags & FTRACE_OPS_FL_PERMANENT)

    @property
    def probe(self) -> NativeProbe:
        """The native half. Raises ValueError before the first registration."""
        if self._probe is None:
            raise ValueError("this ftrace_ops has never been registered")
        return self._probe

    def selection(self) -> Selection:
        """The locations it is for, by its hashes as they are now."""
        wanted = self._wanted()
        return wanted - self._refused(wanted)

    def skipped(self) -> list[tuple[Location, str]]:
        """The locations that the hashes select but that cannot be probed so, each with the reason."""
        wanted = self._wanted()
        return [(location, _reason(location)) for location in self._refused(wanted).locations()]

    def _wanted(self) -> Selection:
        """What the hashes select of the functions that are there. Those of a module that has gone stay in the hashes: they
        match nothing any more, and a filter that was for them alone is not the empty one (FT-29, FT-72).
        """
        there = tracer().table.everything()
        return (self.filter_hash & there if self.filter_hash else there) - self.notrace_hash

    def _refused(self, wanted: Selection) -> Selection:
        """What of `wanted` cannot be patched, or cannot have its return hooked if that is asked for."""
        masks = {block: block.unpatchable | (block.unhookable if self.hooks_return else 0) for block in wanted}
        return wanted & Selection(masks)


def _reason(location: Location) -> str:
    if location.block.unpatchable >> location.position & 1:
        return "r10 and r11 are not free at its entry"
    return "it returns twice or on another stack, so its return cannot be hooked"


def register_ftrace_function(ops: ftrace_ops) -> None:
    """Call `ops.func` at the entry of every function that its hashes select (FT-36).

    Raises OSError: ENODEV if ftrace is dead; EINVAL for an ops that is deleted, has no func, or has IPMODIFY and no filter;
    EBUSY if it is registered, is PERMANENT while ftrace is switched off, or wants to modify ip where another does.
    """
    if ops.func is None:
        raise OSError(errno.EINVAL, "this ftrace_ops has no func")
    register_ops(ops, _native_half(ops))


def _native_half(ops: ftrace_ops) -> NativeProbe:
    kind = CALLBACK | HAS_ENTRY | (ASSIST if ops.flags & (FTRACE_OPS_FL_RECURSION | FTRACE_OPS_FL_RCU) else 0)
    if isinstance(ops.func, int):
        entry, cookie, keep, kind = ops.func, 0, ops.func, kind | FOREIGN
    else:
        entry, cookie, keep = python_handler(_in_order(ops.func), ops, ops.errors.report)
        kind |= FOREIGN | PYTHON
    wants = WANTS_REGS if ops.flags & FTRACE_OPS_FL_SAVE_REGS else 0
    return NativeProbe(tracer().table.lines, keep, kind=kind | wants, flags=COMPLETE, entry=entry, entry_cookie=cookie)


def _in_order(func: Callable[..., Any]) -> Callable[..., None]:
    """From what a handler is called with to what a callback takes."""

    def callback(ops: ftrace_ops, ip: int, parent_ip: int, fregs: Any, _data: None) -> None:
        func(ip, parent_ip, ops, fregs)

    return callback


def ftrace_get_regs(fregs: Any) -> Any:
    """All registers, or None unless an ops on the same function has asked for them (FT-17). fregs has the arguments."""
    return fregs if fregs.cs else None


def register_ops(ops: ftrace_ops, probe: NativeProbe) -> None:
    """Register `ops` with its native half, which is its own from then on. Raises OSError with the errno of FT-36."""
    tracing = tracer()
    try:
        _enable(tracing, ops, probe)
    except BaseException:
        if ops._probe is probe:
            tracing.settle()
        else:
            probe.free()
        raise


def _enable(tracing: Tracer, ops: ftrace_ops, probe: NativeProbe) -> None:
    with tracing.table.lock:
        tracing.check_alive()
        if ops.flags & FTRACE_OPS_FL_DELETED:
            raise OSError(errno.EINVAL, "this ftrace_ops is marked as deleted")
        if ops.enabled:
            raise OSError(errno.EBUSY, "this ftrace_ops is registered already")
        if ops.permanent and not tracing.switched_on:
            raise OSError(errno.EBUSY, "a PERMANENT ftrace_ops cannot be registered while ftrace is switched off")
        ops.ever_listed = True
        _check_ipmodify(tracing, ops, ops.selection())
        ops._probe = probe
        tracing.enable(ops)
        ops.flags |= FTRACE_OPS_FL_ENABLED


def _check_ipmodify(tracing: Tracer, ops: ftrace_ops, wanted: Selection) -> None:
    """At most one ops may modify ip on a function, and not on all of them (FT-45)."""
    if not ops.flags & FTRACE_OPS_FL_IPMODIFY:
        return
    if not ops.filter_hash:
        raise OSError(errno.EINVAL, "an ftrace_ops with IPMODIFY needs a filter")
    for other in tracing.enabled:
        if other is not ops and other.flags & FTRACE_OPS_FL_IPMODIFY:
            both = wanted & other.selection()
            if both:
                raise OSError(errno.EBUSY, f"another ftrace_ops modifies ip of {next(both.locations())}")


def change_flags(ops: ftrace_ops, on: int = 0, off: int = 0) -> None:
    """Set and clear flags of the native half (ftrace.records), at once and without waiting."""
    tracing = tracer()
    with tracing.table.lock:
        ops.probe.change_flags(on, off)
        tracing.table.lists.flags_changed(ops.probe)


def unregister_ftrace_function(ops: ftrace_ops, before_free: Callable[[], None] | None = None) -> None:
    """Take `ops` off all functions; returns when no other thread is in its callback (FT-39, FT-40).

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
    tracing.settle(before_free)


def ftrace_set_filter(ops: ftrace_ops, pattern: str | None, reset: bool = False) -> None:
    """Add the functions that match to the filter; `!pattern` removes them; `reset` starts from an empty one (FT-25).

    Raises OSError(EINVAL), with the filter unchanged, if nothing matches.
    """
    _set_hash(ops, "filter_hash", pattern, reset)


def ftrace_set_notrace(ops: ftrace_ops, pattern: str | None, reset: bool = False) -> None:
    """The same for the functions that are excluded. Raises OSError(EINVAL) also for an IPMODIFY ops (FT-28)."""
    if ops.flags & FTRACE_OPS_FL_IPMODIFY:
        raise OSError(errno.EINVAL, "an ftrace_ops with IPMODIFY takes no notrace filter")
    _set_hash(ops, "notrace_hash", pattern, reset)


def ftrace_set_filter_ips(ops: ftrace_ops, ips: Iterable[int], remove: bool = False, reset: bool = False) -> None:
    """Add (or remove) the locations of these addresses, all or none (FT-26).

    Raises OSError: EINVAL for an address without a location, ENOENT for removing one that is not there.
    """
    tracing = tracer()
    with tracing.table.lock:
        tracing.check_alive()
        base = Selection() if reset else ops.filter_hash
        chosen = [_location(tracing, ip) for ip in ips]
        changed = _without(base, chosen) if remove else base | Selection.of(chosen)
        _install(tracing, ops, "filter_hash", changed)
    if ops.enabled:
        tracing.settle()


def _location(tracing: Tracer, ip: int) -> Location:
    location = tracing.table.location(ip)
    if location is None:
        raise OSError(errno.EINVAL, f"{ip:#x} is in no function that can be traced")
    return location


def _without(base: Selection, locations: Iterable[Location]) -> Selection:
    for location in locations:
        if not base.has(location):
            raise OSError(errno.ENOENT, f"{location} is not in the filter")
        base = base - Selection.of([location])
    return base


def ftrace_set_filter_ip(ops: ftrace_ops, ip: int, remove: bool = False, reset: bool = False) -> None:
    """`ftrace_set_filter_ips` for one address."""
    ftrace_set_filter_ips(ops, [ip], remove, reset)


def ftrace_free_filter(ops: ftrace_ops) -> None:
    """Empty both hashes (FT-30)."""
    ops.filter_hash, ops.notrace_hash = Selection(), Selection()


def _set_hash(ops: ftrace_ops, which: str, pattern: str | None, reset: bool) -> None:
    tracing = tracer()
    with tracing.table.lock:
        tracing.check_alive()
        base = Selection() if reset else getattr(ops, which)
        changed = base if pattern is None else _edited(tracing, base, pattern)
        _install(tracing, ops, which, changed)
    if ops.enabled:
        tracing.settle()


def _edited(tracing: Tracer, base: Selection, text: str) -> Selection:
    pattern = parse(text)
    found = tracing.table.select(pattern)
    if not found:
        raise OSError(errno.EINVAL, f"no function matches {text!r}")
    return base - found if pattern.negated else base | found


def _install(tracing: Tracer, ops: ftrace_ops, which: str, changed: Selection) -> None:
    if not ops.enabled:
        setattr(ops, which, changed)
        return
    before = ops.selection()
    kept = getattr(ops, which)
    setattr(ops, which, changed)
    try:
        _check_ipmodify(tracing, ops, ops.selection())
    except OSError:
        setattr(ops, which, kept)
        raise
    tracing.change(ops, before, ops.selection())
