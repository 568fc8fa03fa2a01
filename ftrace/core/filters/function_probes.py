"""Function probes: native code that commands of set_ftrace_filter attach to functions, such as `glob:traceon[:count]`.

There is one ftrace_ops for each kind of probe, with all its functions; a command with a count and the same command without
one are two kinds.
"""

from __future__ import annotations

import ctypes
import errno
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

from ftrace.core.glob import PatternKind, parse
from ftrace.core.ops import ftrace_ops, install_hash, register_ops, unregister_ftrace_function
from ftrace.core.probe import NativeProbe
from ftrace.core.runtime import AddressTable
from ftrace.core.sites.locations import FILTER, LocationSet
from ftrace.core.tracer import tracer
from ftrace.hit.function_probe_call import FUNCTIONS, FunctionProbe
from ftrace.hit.records import CALLBACK, COMPLETE, HAS_ENTRY
from sandbox.native import Unit
from sandbox.native.native_image import NativeImage
from sandbox.process.once import once


class Subject(NamedTuple):
    """The object that a kind of probe acts on: the word that it sets or, if that is 0, the code that it calls.

    `release` ends its use.
    """

    switch: int = 0
    act: int = 0
    argument: int = 0
    keep: object = None
    release: Callable[[], None] = lambda: None


def _of_tracing() -> Subject:
    return Subject(tracer().runtime.image.address("tracing_on"))


@dataclass(frozen=True)
class FunctionProbeOps:
    """A kind of function probe (struct ftrace_probe_ops). `func`: the symbol of its native function.

    `name` is the command, with its target if it has one; a function has one probe of each command and `owner`, whatever the
    target. `owner`: an instance, None for the top level. `subject()` is called for each registration, without locks; it may
    raise OSError.
    """

    name: str
    func: str
    counted: bool
    subject: Callable[[], Subject] = field(default=_of_tracing, compare=False)
    owner: object = None

    @property
    def command(self) -> tuple[str, bool, object]:
        """The identity of a command; a function can have one probe for each."""
        return self.name.partition(":")[0], self.counted, self.owner


class _CountTable:
    """The remaining count of a probe for each function."""

    def __init__(self, probe: Any) -> None:
        self._probe = probe
        self._keep: list[Any] = []
        self._words = AddressTable(_image(), self._publish)

    def _publish(self, address: int) -> None:
        self._probe.counts = address

    def set(self, ips: list[int], count: int) -> None:
        """The count of these functions from now on. One that was there before keeps its place."""
        words = (ctypes.c_int64 * len(ips))(*[count] * len(ips))
        self._keep.append(words)
        for index, ip in enumerate(ips):
            if ip in self._words:
                ctypes.c_int64.from_address(self._words[ip]).value = count
            else:
                self._words.set(ip, ctypes.addressof(words) + 8 * index)

    def __getitem__(self, ip: int) -> int:
        return ctypes.c_int64.from_address(self._words[ip]).value


class _Probe:
    """The functions that have one kind of probe (struct ftrace_func_probe)."""

    def __init__(self, probe_ops: FunctionProbeOps, subject: Subject) -> None:
        self.probe_ops = probe_ops
        self._subject = subject
        self.registered = False
        """Whether its registration is complete, so that functions can be removed from it."""
        self.native: Any = FunctionProbe.ctypes()
        self.native.func = _image().address(probe_ops.func)
        self.native.switch, self.native.act, self.native.argument = subject[:3]
        self.counts = _CountTable(self.native) if probe_ops.counted else None
        self.ops = ftrace_ops(_image().address("function_trace_probe_call"))
        self.ops.detach = partial(_withdraw, self)

    def native_half(self) -> NativeProbe:
        """The native half for the ops; it keeps the memory that its callback reads."""
        return NativeProbe(
            tracer().table.lines,
            (self.native, self.counts, self._subject),
            kind=CALLBACK | HAS_ENTRY,
            flags=COMPLETE,
            entry=self.ops.func,
            entry_cookie=ctypes.addressof(self.native),
        )

    def set_count(self, functions: LocationSet, count: int) -> None:
        """Set the count of these functions, before they can be hit."""
        if self.counts is not None:
            self.counts.set([location.ip for location in functions.each()], count)

    def release(self) -> None:
        """Free it: no function has it any more, and no hit is in it."""
        self._subject.release()

    def lines(self) -> Iterator[str]:
        """A line for each function that is loaded."""
        for block, mask in tracer().table.everything().items():
            for location in LocationSet({block: mask & self.ops.filter_hash.get(block, 0)}).each():
                left = f"count={self.counts[location.ip]}" if self.counts is not None else "unlimited"
                yield f"{location.name}:{self.probe_ops.name}:{left}"


@once
def _image() -> NativeImage:
    image = NativeImage.of(Unit("ftrace-function-probes", FUNCTIONS))
    image.publish()
    return image


_probes: list[_Probe] = []
"""The probes that have functions, newest first. Protected by the table's lock."""


def _find(probe_ops: FunctionProbeOps) -> _Probe | None:
    return next((probe for probe in _probes if probe.probe_ops == probe_ops), None)


def _of_command(probe_ops: FunctionProbeOps) -> list[_Probe]:
    return [probe for probe in _probes if probe.probe_ops.command == probe_ops.command]


def register_ftrace_function_probe(glob: str, probe_ops: FunctionProbeOps, count: int = -1) -> int:
    """Put a probe on the functions that match. Returns how many were added. `count`: how often it acts for each; -1: always.

    Raises OSError: EINVAL if nothing matches, or all matching functions have this command; ENODEV if ftrace is dead.
    """
    tracing = tracer()
    subject = probe_ops.subject()
    try:
        with tracing.table.lock:
            tracing.check_alive()
            added = _added(tracing.table.select(parse(glob)), probe_ops, glob)
            found = _find(probe_ops)
            probe = found or _Probe(probe_ops, subject)
            probe.set_count(added, count)
            install_hash(tracing, probe.ops, FILTER, probe.ops.filter_hash | added)
            if found is None:
                _insert(probe)
    except BaseException:
        subject.release()
        raise
    if found is None:
        _register(probe)
    else:
        subject.release()  # the probe has its own
        tracing.reclaimer.settle()
    return added.count()


def _insert(probe: _Probe) -> None:
    """Insert it before the probes of its command; if there are none, at the front."""
    siblings = _of_command(probe.probe_ops)
    _probes.insert(_probes.index(siblings[0]) if siblings else 0, probe)


def _added(found: LocationSet, probe_ops: FunctionProbeOps, glob: str) -> LocationSet:
    added = found
    for probe in _of_command(probe_ops):
        added = added - probe.ops.filter_hash
    if found and not added:
        raise OSError(
            errno.EINVAL,
            f"every function that matches {glob!r} already has the command {probe_ops.command[0]!r}; remove it first",
        )
    if not found:
        raise OSError(errno.EINVAL, f"no function matches {glob!r}; available_filter_functions lists the functions")
    return added


def _register(probe: _Probe) -> None:
    """Register the ops without the lock: undoing a failure waits for handlers, which may need the lock."""
    try:
        register_ops(probe.ops, probe.native_half())
    except BaseException:
        _forget(probe)
        probe.release()
        raise
    probe.registered = True


def _forget(probe: _Probe) -> bool:
    """Remove it from the list. Returns whether it was in it."""
    with tracer().table.lock:
        known = probe in _probes
        if known:
            _probes.remove(probe)
        return known


def unregister_ftrace_function_probe_func(glob: str, probe_ops: FunctionProbeOps) -> None:
    """Remove a command from the functions that match ("" and "*": from all). When this returns, no other thread is in it.

    Raises OSError(ENODEV) if no function that matches has it.
    """
    tracing = tracer()
    with tracing.table.lock:
        tracing.check_alive()
        chosen = [
            (probe, removed)
            for probe in _of_command(probe_ops)
            if probe.registered and (removed := _matching(glob, probe.ops.filter_hash))
        ]
        if not chosen:
            raise OSError(
                errno.ENODEV,
                f"no function that matches {glob!r} has the command {probe_ops.command[0]!r}; set_ftrace_filter lists them",
            )
        ended = [probe for probe, removed in chosen if not _keep_rest(probe, removed)]
    tracing.reclaimer.settle()
    for probe in ended:
        unregister_ftrace_function(probe.ops)
        probe.release()


def _keep_rest(probe: _Probe, removed: LocationSet) -> bool:
    """Remove functions from a probe. False if none is left; the probe is then removed from the list."""
    left = probe.ops.filter_hash - removed
    if left:
        install_hash(tracer(), probe.ops, FILTER, left)
    else:
        _forget(probe)
    return bool(left)


def _matching(glob: str, functions: LocationSet) -> LocationSet:
    """The functions that match by name; a position selects nothing here."""
    if glob in ("", "*"):
        return functions
    pattern = parse(glob)
    if pattern.kind is PatternKind.INDEX:
        return LocationSet()
    return LocationSet({block: mask & block.select(pattern) for block, mask in functions.items()}) & functions


def _withdraw(probe: _Probe) -> None:
    if _forget(probe):
        unregister_ftrace_function(probe.ops)
        probe.release()


def clear_ftrace_function_probes(owner: object) -> None:
    """Remove all probes of an instance that is being removed."""
    for probe in _owned_by(owner):
        _withdraw(probe)


def _owned_by(owner: object) -> list[_Probe]:
    return [probe for probe in list(_probes) if probe.probe_ops.owner is owner]


def probe_lines(owner: object = None) -> Iterator[str]:
    """Lines `function:command:unlimited` or `function:command:count=N`; the newest kind first."""
    for probe in _owned_by(owner):
        yield from probe.lines()


UNLIMITED = -1
"""The count of a command without a count."""
_LARGEST = (1 << 64) - 1
_NUMBER = re.compile(r"\+?(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")


class Instance(Protocol):
    """The trace array that traceon and traceoff act on (ftrace.tracing.instances.trace_array.TraceArray); None: the top level."""

    @property
    def switch(self) -> int: ...


def probe_command(func: str, command: str, parameter: str | None, instance: Instance | None) -> None:
    """traceon and traceoff: `func:command[:count]`."""
    name = "function_switch_on" if command == "traceon" else "function_switch_off"
    probe_ops = FunctionProbeOps(command, name, counted=parameter is not None)
    if instance is not None:
        probe_ops = replace(probe_ops, subject=lambda: Subject(instance.switch, keep=instance), owner=instance)
    apply(func, probe_ops, parameter)


def apply(func: str, probe_ops: FunctionProbeOps, count: str | None) -> None:
    """Put a probe on the functions of `func`, or, with a leading `!`, take it off: `!func:command` the one without a count,
    `!func:command:0` the one with a count.

    Raises OSError: EINVAL for a count that is no number, and if there is nothing to add; ENODEV if there is nothing to take
    back; ERANGE for a count beyond 64 bits.
    """
    if func.startswith("!!"):
        raise OSError(errno.EINVAL, f"the functions are {func!r}; write at most one !")
    if func.startswith("!"):
        unregister_ftrace_function_probe_func(func[1:], probe_ops)
    else:
        register_ftrace_function_probe(func, probe_ops, _count(count) if count else UNLIMITED)


def _count(text: str) -> int:
    """A count in C's notation, stored in a signed word as in the kernel."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise OSError(errno.EINVAL, f"the count is {text!r}; it must be a number in C's notation")
    digits = match[1]
    number = int(digits, 8 if digits[0] == "0" and digits[1:].isdigit() else 0)
    if number > _LARGEST:
        raise OSError(errno.ERANGE, f"the count is {text}; the maximum is {_LARGEST}")
    return number - (number >> 63 << 64)
