"""The fprobe API of include/linux/fprobe.h. Failures raise OSError with the kernel's errno."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from fprobe.handlers.roles import ENTRY, EXIT
from fprobe.probe import ENTRY_DATA_MAX, FPROBE_FL_DISABLED, FPROBE_FL_KPROBE_SHARED, copy_disabled, flags_lock, fprobe
from ftrace.core import ops as ftrace
from ftrace.core.entries.locate import locate, locate_addresses, unsafe_for_python
from ftrace.core.entries.neighbours import join_neighbours, patch_lock
from ftrace.core.filters.image_functions import is_compiled
from ftrace.core.handlers import resolve as handlers
from ftrace.core.handlers.kinds import BoundHandler, HandlerRole
from ftrace.core.handlers.python_handler import HandlerErrors, python_handler
from ftrace.core.ops_flags import FTRACE_OPS_FL_RCU, FTRACE_OPS_FL_RECURSION, FTRACE_OPS_FL_SAVE_REGS
from ftrace.core.probe import Counts, NativeProbe
from ftrace.core.sites.image_block import ImageBlock
from ftrace.core.sites.locations import LocationSet, Resolution, Skipped
from ftrace.core.tracer import tracer
from ftrace.hit.records import (
    ASSIST,
    COMPLETE,
    DISABLED,
    FILTERED,
    FOREIGN,
    HAS_ENTRY,
    HAS_EXIT,
    KPROBE_SHARED,
    PYTHON,
    STOPPED,
)
from sandbox.images.near_misses import near_misses
from sandbox.process import hooks
from sandbox.process.cpus import num_possible_cpus
from sandbox.process.gil import short_switch_interval
from sandbox.process.integers import INT_MAX, S64_MAX, S64_MIN, U32_MAX, U64_MAX, integer
from sandbox.symbols.names import names_owner


class Functions(NamedTuple):
    """What a registration is for: the functions that match, those among them that are excluded, and those that are skipped.

    `number`: how many the pool of nodes is for. `what`: for messages, what cannot be traced.
    """

    locations: LocationSet
    skipped: Sequence[Skipped]
    number: int
    what: str
    excluded: LocationSet = LocationSet()


def _build(fp: fprobe, functions: int) -> NativeProbe:
    """The native half of `fp`: its handlers, flags and sizes are fixed here, as in fprobe_init()."""
    sizes = _sizes(fp, functions)

    def of_python(handler: Callable[..., Any], role: HandlerRole) -> BoundHandler:
        address, cookie, keep = python_handler(handler, fp, fp.errors.report, fp.entry_data_size, role.is_exit)
        return BoundHandler(address, FOREIGN | PYTHON, cookie=cookie, keep=keep)

    entry, exit_ = fp._handlers = (
        handlers.resolve(fp.entry_handler, ENTRY, of_python),
        handlers.resolve(fp.exit_handler, EXIT, of_python),
    )
    kind = entry.kind | exit_.kind | (HAS_ENTRY if entry.address else 0) | (HAS_EXIT if exit_.address else 0)
    kind |= KPROBE_SHARED if fp._flags & FPROBE_FL_KPROBE_SHARED else 0
    kind |= ASSIST if fp.ops.flags & (FTRACE_OPS_FL_RECURSION | FTRACE_OPS_FL_RCU) else 0
    plain = all(handler.plain or not handler.address for handler in fp._handlers)
    kind |= handlers.entry_kind(entry.registers) | handlers.exit_kind(exit_.registers)
    flags = 0 if plain and not kind & (KPROBE_SHARED | ASSIST) else COMPLETE
    flags |= DISABLED if fp._flags & FPROBE_FL_DISABLED else 0
    flags |= FILTERED if sizes.thread or sizes.max_hits else 0
    return NativeProbe(
        tracer().table.lines, fp._handlers,
        kind=kind, flags=flags, entry=entry.address, exit=exit_.address, entry_cookie=entry.cookie, exit_cookie=exit_.cookie,
        data_size=sizes.data, pool_unclaimed=sizes.pool, nr_nodes=sizes.pool,
        thread=sizes.thread, max_hits=sizes.max_hits, hits_left=sizes.max_hits,
        action=fp.action, early=fp.early,
    )  # fmt: skip


class _Sizes(NamedTuple):
    """The numbers of a native half. `pool`: return nodes; `data`: bytes of entry data. Both are 0 without an exit handler."""

    thread: int
    max_hits: int
    pool: int
    data: int


def _sizes(fp: fprobe, functions: int) -> _Sizes:
    """Check the numbers that the owner of `fp` has set: as the kernel, when it is registered."""
    thread, max_hits = _number("thread", fp.thread, 0, INT_MAX), _number("max_hits", fp.max_hits, 0, S64_MAX)
    _number("flags", fp._flags, 0, U32_MAX)
    if fp.exit_handler is None:
        _number("nr_maxactive", fp.nr_maxactive, -INT_MAX - 1, INT_MAX)
        _number("entry_data_size", fp.entry_data_size, S64_MIN, U64_MAX)
        return _Sizes(thread, max_hits, 0, 0)
    pool = _number("nr_maxactive", fp.nr_maxactive, 0, INT_MAX) or min(functions * num_possible_cpus() * 2, INT_MAX)
    return _Sizes(
        thread, max_hits, pool, _number("entry_data_size", fp.entry_data_size, 0, ENTRY_DATA_MAX, errno.ENOMEM)
    )


def _number(name: str, value: Any, low: int, high: int, code: int = errno.EINVAL) -> int:
    """As `integer`, which is not asked for an int within the bounds."""
    return value if type(value) is int and low <= value <= high else integer(name, value, low, high, code)


def _watch_unloading() -> None:
    from kprobes import jit_unloading  # all of kprobes, which most programs do not need

    jit_unloading.watch()


hooks.before_patching.add(_watch_unloading)


def register_fprobe(fp: fprobe | None, filter: str | None, notfilter: str | None = None) -> None:
    """Attach `fp` to the functions whose name matches `filter` but not `notfilter`.

    Both are patterns of the ftrace filter language. Raises OSError: EINVAL if a pattern matches nothing, if `fp` or
    `filter` is None, or if the pool size is not positive; ENOMEM for an impossible entry_data_size; EBUSY if `fp` is
    registered already, or another thread is registering or unregistering it. As register_fprobe() in kernel/trace/fprobe.c.
    """
    if fp is None or filter is None:
        raise OSError(errno.EINVAL, "register_fprobe needs an fprobe and a filter")
    _register(fp, partial(resolve, filter, notfilter), (filter, notfilter))


def resolve(filter: str, notfilter: str | None) -> Functions:
    """The functions that `filter` matches now, and those that `notfilter` excludes. Raises OSError(EINVAL) for none."""
    locations, skipped = _matches(filter)
    if not locations and not skipped:
        raise OSError(errno.EINVAL, f"{filter!r} only removes functions; add a pattern of functions to probe")
    excluded = LocationSet()
    if notfilter is not None:
        of_images = _names_images(filter) and not _names_images(notfilter)
        excluded = tracer().table.named_so(notfilter) if of_images else _matches(notfilter).locations
    return Functions(locations, skipped, locations.count(), f"what {filter!r} matches", excluded)


def _names_images(pattern: str) -> bool:
    return isinstance(pattern, str) and ":" in pattern and names_owner(pattern)


def _matches(pattern: str) -> Resolution:
    """Modules' functions of a pattern without a colon, as the kernel's are; functions of any image of one with a colon."""
    if not _names_images(pattern):
        tracing = tracer()
        with tracing.table.lock:
            return Resolution(ftrace.edited(tracing, LocationSet(), pattern), [])
    if is_compiled(pattern):
        _watch_unloading()
    try:
        with short_switch_interval():
            return locate(pattern)
    except LookupError as error:
        raise OSError(errno.EINVAL, str(error.args[0])) from None


def _first_reason(skipped: Sequence[Skipped]) -> str:
    if not skipped:
        return ""
    more = f" (and {len(skipped) - 1:,} others)" if len(skipped) > 1 else ""
    return f": {skipped[0].name}{more}: {skipped[0].reason}"


def extend_fprobe(fp: fprobe) -> None:
    """Attach a registered `fp` to functions that its pattern matches now but did not at registration or the last extension.

    Does nothing unless its pattern names images. Raises OSError as `register_fprobe` does.
    """
    if fp.pattern is None or not _names_images(fp.pattern[0]) or fp.resolution is None or not fp.registered:
        return
    with patch_lock():
        there = fp.ops.filter_hash
        functions = resolve(*fp.pattern)
        new = functions.locations - functions.excluded - there
        usable = _usable(fp, fp.ops.probe, Resolution(new, [*functions.skipped]))
        if usable.locations:
            ftrace.set_filter_selection(fp.ops, there | usable.locations)
        skipped = dict.fromkeys([*fp.resolution.skipped, *usable.skipped])
        fp.resolution = Resolution(there | usable.locations, [*skipped])


def register_fprobe_ips(fp: fprobe | None, addrs: Sequence[int] | None, num: int | None = None) -> None:
    """Attach `fp` to the functions at these addresses.

    Raises OSError(EINVAL) if an address is not in a function that can be traced; nothing is registered then.
    """
    if fp is None or not addrs:
        raise OSError(errno.EINVAL, "register_fprobe_ips needs an fprobe and at least one address")
    count = len(addrs) if num is None else integer("num", num, 1, len(addrs))
    chosen = [integer("an address", ip, 0, U64_MAX) for ip in addrs[:count]]

    def at_addresses() -> Functions:
        with short_switch_interval():
            locations, skipped = locate_addresses(chosen)
        # One that is given twice counts twice for the pool.
        return Functions(locations, skipped, count, "what the addresses are of")

    _register(fp, at_addresses)


def register_fprobe_syms(fp: fprobe | None, syms: list[str] | None, num: int | None = None) -> None:
    """Attach `fp` to the functions with exactly these names; `syms` is sorted in place.

    Raises OSError: ENOENT if a name is unknown, has no function that can be traced, or occurs twice; TypeError for a name that is
    not a str.
    """
    if fp is None or not syms:
        raise OSError(errno.EINVAL, "register_fprobe_syms needs an fprobe and at least one name")
    count = len(syms) if num is None else integer("num", num, 1, len(syms))
    for name in syms[:count]:
        if not isinstance(name, str):
            raise TypeError(f"a name of a function is {name!r}; it must be a str")
    syms[:count] = sorted(syms[:count])
    functions = _named_each(syms[:count])
    _register(fp, lambda: functions)


def _named_each(names: list[str]) -> Functions:
    """The functions with these names. Raises as `register_fprobe_syms`."""
    for name, following in itertools.pairwise(names):
        if name == following:
            raise OSError(errno.ENOENT, f"the name {name!r} is given twice; give each name once")
    found, skipped = LocationSet(), list[Skipped]()
    for name in names:
        location = tracer().table.named(name)
        if location is None and _names_images(name):
            locations, refused = _matches(name)
            found |= locations
            skipped += refused
        elif location is None:
            raise OSError(errno.ENOENT, f"no function called {name!r} can be traced{near_misses(name)}")
        else:
            found |= LocationSet.of([location])
    return Functions(found, skipped, max(len(names), found.count()), "what the names are of")


def _claim(fp: fprobe, registered: bool) -> None:
    """Keep other threads from registering or unregistering `fp` until `_claimed` is 0 again.

    `registered`: whether it has to be registered now. Raises OSError(EBUSY), without side effects, if it is not in that state,
    or if another thread has claimed it.
    """
    with tracer().table.lock:
        if fp.registered and not registered:
            raise OSError(errno.EBUSY, "this fprobe is already registered; unregister it first")
        if registered and not fp.registered:
            raise OSError(errno.EBUSY, "this fprobe is not registered any more")
        if fp.is_claimed:
            raise OSError(
                errno.EBUSY,
                "another thread is registering or unregistering this fprobe; try again afterwards",
            )
        fp._claimed = os.getpid()


def _register(fp: fprobe, resolve: Callable[[], Functions], pattern: tuple[str, str | None] | None = None) -> None:
    """The steps of a registration, in order; a failure undoes those before it.

    Raises OSError(EBUSY), without side effects, if `fp` is registered or another thread is registering it.
    """
    _claim(fp, registered=False)
    try:
        tracer().check_alive()
        fp.pattern, fp.resolution, fp._final, fp.errors = pattern, None, Counts(), HandlerErrors()
        functions = resolve()
        if fp.prepare is not None:
            fp.prepare(functions.number)
        probe = _build(fp, functions.number)
        fp.ops.flags |= FTRACE_OPS_FL_SAVE_REGS
        fp.ops.hooks_return = fp.exit_handler is not None
        fp.ops.detach = lambda: unregister_fprobe(fp)
        _install(fp, probe, functions)
        fp._final = None
        with flags_lock:  # another thread may have changed the flags since `_build` read them
            copy_disabled(fp)
    except BaseException:
        if not fp.registered:
            ftrace.ftrace_free_filter(fp.ops)
        raise
    finally:
        fp._claimed = 0


def _install(fp: fprobe, probe: NativeProbe, functions: Functions) -> None:
    """Register the ops on those of the functions that can have the probe. Raises OSError(EINVAL) if none can."""
    of_images = any(isinstance(block, ImageBlock) for block in functions.locations)
    with patch_lock() if of_images else contextlib.nullcontext():
        try:
            _select(fp, probe, functions, of_images)
        except BaseException:
            probe.free()
            raise
        ftrace.register_ops(fp.ops, probe)  # which frees the probe if it fails


def _select(fp: fprobe, probe: NativeProbe, functions: Functions, of_images: bool) -> None:
    """Set the hashes of the ops, as the kernel does from filter and notfilter."""
    excluded = functions.locations & functions.excluded
    wanted = chosen = Resolution(functions.locations - excluded, [*functions.skipped])
    if of_images:
        chosen = _usable(fp, probe, wanted)
    fp.resolution = chosen
    if not functions.locations:
        raise OSError(errno.EINVAL, f"{functions.what} cannot be traced{_first_reason(chosen.skipped)}")
    refused: list[Skipped] = []
    if chosen.locations or not wanted.locations:
        # With the excluded ones, lest the filter be empty: that means all functions.
        ftrace.set_filter_selection(fp.ops, chosen.locations | excluded, functions.excluded)
        if not wanted.locations or fp.ops.can_be_at(chosen.locations):
            return
        refused = [Skipped(location.readable, reason) for location, reason in fp.ops.skipped()]
        fp.resolution = Resolution(chosen.locations, [*chosen.skipped, *refused])
    raise OSError(errno.EINVAL, f"none of the functions can be traced{_first_reason([*chosen.skipped, *refused])}")


def _usable(fp: fprobe, probe: NativeProbe, resolution: Resolution) -> Resolution:
    """The locations to which the handlers can be attached, and those that are skipped. Within `patch_lock()`."""
    selection, skipped = resolution
    if probe.native.kind & PYTHON and not fp.python_unsafe:
        unsafe = unsafe_for_python(selection)
        skipped = [*skipped, *(Skipped(location.readable, _PYTHON_UNSAFE) for location in unsafe.each())]
        selection -= unsafe
    joined = join_neighbours(selection)
    return Resolution(joined.locations, [*skipped, *joined.skipped])


_PYTHON_UNSAFE = (
    "it cannot have a Python handler (python-unsafe): Python itself runs on it; give a native handler, or "
    "python_unsafe=True"
)


def unregister_fprobe(fp: fprobe | None) -> None:
    """Detach `fp`. Afterwards none of its handlers runs in any thread but the calling one.

    Raises OSError: EINVAL if it was never registered; EBUSY if it is no longer registered, or another thread is unregistering
    it; TrapsBlocked, with EBUSY, while a thread blocks SIGTRAP and text with breakpoints has to be restored; ENODEV if ftrace is
    dead: it stays registered then, but without return nodes.
    """
    if fp is None or not fp.ops.ever_listed:
        raise OSError(errno.EINVAL, "this fprobe was never registered")
    _claim(fp, registered=True)
    try:
        probe = fp.ops.probe
        ftrace.change_flags(fp.ops, on=STOPPED)
        ftrace.unregister_ftrace_function(fp.ops, before_free=lambda: setattr(fp, "_final", probe.counts()))
        ftrace.ftrace_free_filter(fp.ops)
    finally:
        fp._claimed = 0


def disable_fprobe(fp: fprobe | None) -> None:
    """Stop calling the handlers. The sites stay patched. Does not wait for running handlers."""
    if fp is not None:
        fp.flags = fp.flags | FPROBE_FL_DISABLED


def enable_fprobe(fp: fprobe | None) -> None:
    """Call the handlers again."""
    if fp is not None:
        fp.flags = fp.flags & ~FPROBE_FL_DISABLED


def fprobe_disabled(fp: fprobe | None) -> bool:
    """Whether `fp` is disabled; False for None."""
    return fp is not None and fp.is_disabled


def fprobe_is_registered(fp: fprobe | None) -> bool:
    """Whether `fp` has been registered; stays True after unregistering."""
    return fp is not None and fp.ops.ever_listed


def functions_of(fp: fprobe) -> LocationSet:
    """The locations that `fp` is attached to."""
    return fp.ops.selection() if fp.registered else LocationSet()
