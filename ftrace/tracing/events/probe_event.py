"""Probe events: an event with one or more probes, each defined by a line.

The common part of kprobe and fprobe events: several probes of one event, registration, listing, deletion.
"""

from __future__ import annotations

import errno
from abc import abstractmethod
from collections.abc import Callable, Sequence

from ftrace.core.kstrtox import kstrtoll, kstrtouint
from ftrace.tracing.events import dynevent
from ftrace.tracing.events.dynevent import (
    MAX_EVENT_NAME_LEN,
    DynamicEvent,
    LineType,
    argv_split,
    parse_event_name,
    sanitized,
)
from ftrace.tracing.events.event_file import EventFile
from ftrace.tracing.events.event_mutex import after_unlocking, events_locked
from ftrace.tracing.events.hit.handler_source import EarlyShape, Shape, constants_of, entry_source, hit_source
from ftrace.tracing.events.hit.handlers import Make, native_handler
from ftrace.tracing.events.hit.recording import Recording
from ftrace.tracing.events.hit.shortcuts import shortcut_of
from ftrace.tracing.events.hit.symbol_names import symbol_names
from ftrace.tracing.events.registry import TraceEvent, event_registry
from ftrace.tracing.instances.error_log import error_log
from ftrace.tracing.probe_args.arguments import MAX_ARGUMENTS, dentry_layout, expand, expand_dentries, parse_arguments
from ftrace.tracing.probe_args.errors import ErrorCode, ProbeError, error
from ftrace.tracing.probe_args.fetch import Argument, Store, SymbolAddress
from ftrace.tracing.probe_args.layout import print_fmt, record_layout
from ftrace.tracing.probe_args.scope import Scope
from sandbox.native.handler import HandlerFunction
from sandbox.process import hooks
from sandbox.process.once import cached_property
from sandbox.symbols.names import split_offset
from sandbox.symbols.table import symbol_table

MAXACTIVE_LIMIT = 4096
_MAX_COMPARED = 63
_PLACE = 1
"""The index of the place among a definition's words."""


class Probe(DynamicEvent):
    """A probe, defined by a line `p`, `r`, `f` or `t`: a place, and the arguments that are recorded there.

    `kind` distinguishes probes that cannot share an event.
    """

    kind: str
    is_return: bool

    def __init__(self, line_type: LineType, group: str, name: str, scope: Scope, arguments: Sequence[Argument]) -> None:
        self.line_type = line_type
        self.group = group
        self.name = name
        self.scope = scope
        """The names that arguments may refer to. `scope.saved`: the parameters that are saved at entry."""
        self.arguments = tuple(arguments)
        self.layout = record_layout(arguments, self.is_return)
        self.event: ProbeEvent

    # -- what a subclass defines ----------------------------------------------------------------------------------

    @property
    @abstractmethod
    def place(self) -> str:
        """The probe's place, as listed."""

    @property
    def compared_place(self) -> str:
        """The place, as a deletion names it."""
        return self.place

    @property
    @abstractmethod
    def head(self) -> str:
        """The letter of the probe's line, with maxactive."""

    @property
    @abstractmethod
    def misses(self) -> int:
        """The number of hits at which the handler could not run."""

    @property
    def absence(self) -> str:
        """Why there is nothing that could hit it yet, as a sentence; '' if there is."""
        return ""

    @property
    @abstractmethod
    def identity(self) -> object:
        """Equal for probes at the same place."""

    @abstractmethod
    def register(self) -> None:
        """Resolve its symbols and register it, disarmed. Raises OSError."""

    def extend(self) -> bool:
        """Probe what its place means now and did not at registration. False if that is one function. Raises OSError."""
        return False

    @abstractmethod
    def unregister(self) -> None:
        """Unregister the probe."""

    @abstractmethod
    def arm(self) -> None:
        """Arm the probe. Raises OSError."""

    @abstractmethod
    def disarm(self) -> None:
        """Disarm the probe."""

    shape: Shape
    """How the probe's handlers are called."""
    make_handler: Make
    """Makes a native function a handler of this kind of probe."""

    # -- common ---------------------------------------------------------------------------------------------------

    @property
    def early_shape(self) -> EarlyShape | None:
        """How hits are handled before registers are saved; None if they cannot be."""
        return self.shape.early

    @cached_property
    def recording(self) -> Recording:
        """The native state that the handlers use."""
        return Recording()

    @property
    def hit_handler(self) -> HandlerFunction:
        """The handler that records a hit: at the return for a return probe."""
        return native_handler(hit_source(self.layout, self.shape), type(self).make_handler)

    @property
    def entry_handler(self) -> HandlerFunction | None:
        """A return probe's handler that saves parameters at entry; None if there are none to save."""
        if not self.scope.saved:
            return None
        return native_handler(entry_source(self.scope.saved, self.shape), type(self).make_handler)

    @property
    def hits(self) -> int:
        """The number of times that the handler has run."""
        return self.recording.hits

    @property
    def is_busy(self) -> bool:
        """Whether the event is enabled or in use."""
        return self.event.is_busy

    def __str__(self) -> str:
        return " ".join([f"{self.head}:{self.group}/{self.name}", self.place, *map(str, self.arguments)])

    def matches(self, group: str | None, event: str, words: Sequence[str]) -> bool:
        """As trace_kprobe_match(): `words` must equal the listed place and first arguments, each cut at 63 characters."""
        if (event and event != self.name) or (group is not None and group != self.group):
            return False
        shown = [self.compared_place, *map(str, self.arguments)]
        return list(words) == [word[:_MAX_COMPARED] for word in shown[: len(words)]]

    def resolve_symbols(self) -> None:
        """Find the address of each `@SYMBOL`. Raises OSError: ENOENT for an unknown symbol, EINVAL for a bad offset."""
        self.recording.resolve([address_of(source) for source in constants_of(self.layout)])
        if any(argument.store is Store.SYMBOL_TEXT for argument in self.arguments):
            symbol_names().ensure()

    def is_same(self, other: Probe) -> bool:
        """Whether both record the same values at the same place."""
        bodies = [argument.body for argument in self.arguments]
        return self.identity == other.identity and bodies == [argument.body for argument in other.arguments]

    def free(self) -> None:
        """Delete the probe, and its event if this is the last probe. Raises OSError(EBUSY) if the event is enabled or in use."""
        if len(self.event.probes) == 1:
            if self.event.is_busy:
                raise OSError(
                    errno.EBUSY,
                    f"{self} is enabled, or used by a trigger or a filter command; disable it and remove those first",
                )
            event_registry.remove(self.event)
        elif self.event.is_armed:
            self.disarm()
        self.event.probes.remove(self)
        dynevent.dyn_event_remove(self)
        after_unlocking(self._leave)

    def _leave(self) -> None:
        self.unregister()
        self.recording.close()


class ProbeEvent(TraceEvent):
    """An event whose records come from probes."""

    def __init__(self, first: Probe) -> None:
        super().__init__(first.group, first.name, first.layout.fields, print_fmt(first.layout))
        self.line_type = first.line_type
        self.layout = first.layout
        """The layout of the records, which are also printed after the last probe is deleted."""
        self.probes = [first]

        self._targets: list[EventFile] = []
        """The files that armed probes record for. Unused ones are removed when a trace array is removed, or on disarming."""

    def arm_probe(self, probe: Probe) -> None:
        """Start to record hits of this probe. Raises OSError."""
        self._aim(probe)
        probe.arm()

    def _aim(self, probe: Probe) -> None:
        probe.recording.record_to(self.id, [file.target for file in self._targets])
        self._shorten(probe)

    def file_changed(self) -> None:
        """Choose the shortcuts again."""
        if self.is_armed:
            for probe in self.probes:
                self._shorten(probe)

    def _shorten(self, probe: Probe) -> None:
        """Set the shortcut that the event's filter and triggers allow, if only one trace array records the event."""
        shortcut = None
        shapes = probe.shape, probe.early_shape
        if len(self._targets) == 1 and (probe.shape.shortcut or probe.early_shape is not None):
            shortcut = shortcut_of(self._targets[0], probe.layout, shapes, type(probe).make_handler)
        before = probe.recording.use_shortcut(shortcut)
        if before is not None and before != shortcut:
            self.free_after_hits(before)

    def arm(self) -> None:
        """Arm every probe."""
        self._targets = self.used_files
        armed: list[Probe] = []
        try:
            for probe in self.probes:
                self.arm_probe(probe)
                armed.append(probe)
        except OSError:
            for probe in armed:
                probe.disarm()
            raise

    def retarget(self) -> None:
        """Follow a change of the trace arrays that record the event. Remaining ones keep their order."""
        left = [file for file in self._targets if file in self.files.values()]
        targets = left + [file for file in self.used_files if file not in left]
        if targets != self._targets:
            self._targets = targets
            for probe in self.probes:
                self._aim(probe)

    def disarm(self) -> None:
        """Disarm every probe."""
        for probe in self.probes:
            probe.disarm()


def _disable_probe_events() -> None:
    """Disable probe events in every trace array, before their probes are unregistered."""
    for event in event_registry.events():
        if isinstance(event, ProbeEvent):
            for file in list(event.files.values()):
                event.set_enabled(False, file)


hooks.before_detaching.add(_disable_probe_events)


def address_of(source: SymbolAddress) -> int:
    """The present address of `SYMBOL[+|-OFFSET]`. Raises OSError: ENOENT, EINVAL."""
    name, offset = split_offset(source.expression, lambda name: bool(symbol_table.named(name)), kstrtoll)
    found = symbol_table.named(name)
    if not found:
        raise OSError(errno.ENOENT, f"no symbol {name!r}")
    return found[0].address + offset


# -- definition ---------------------------------------------------------------------------------------------------


class ProbeLineType(LineType):
    """A type of line that defines a probe. A line that is refused has an entry in error_log."""

    subsystem: str

    def create(self, line: str) -> None:
        """Define the probe of a line. Raises NotThisType, OSError."""
        words = argv_split(line)
        if not words:
            return
        try:
            self.define(words)
        except ProbeError as wrong:
            # define() replaces expanded words in `words`, and error_log shows them expanded.
            error_log.add_probe_error(self.subsystem, words, wrong)
            raise

    @abstractmethod
    def define(self, words: list[str]) -> None:
        """Define a probe. Words such as $arg* are expanded in place. Raises NotThisType, OSError."""


def event_name(word: str, default_group: str, generated: Callable[[], str]) -> tuple[str, str]:
    """The group and name after the colon of a definition's first word, or generated ones. Raises ProbeError."""
    head, colon, name = word.partition(":")
    group, event = parse_event_name(name, len(head) + 1) if colon else (None, None)
    return group or default_group, event or sanitized(generated())


def maxactive_of(word: str) -> int:
    """The number after a definition's letter, 0 if there is none. Raises ProbeError."""
    number = word[1:].partition(":")[0]
    if not number[:1].isascii() or not number[:1].isdigit():
        return 0
    try:
        value = kstrtouint(number) if len(number) < MAX_EVENT_NAME_LEN else 0
    except OSError:
        value = 0
    if not value:
        raise error(ErrorCode.BAD_MAXACT, 1)
    if value > MAXACTIVE_LIMIT:
        raise error(ErrorCode.MAXACT_TOO_BIG, 1)
    return value


def arguments_of(words: list[str], scope: Scope) -> list[Argument]:
    """The arguments of a definition. `:%pd` is replaced in `words`, since error_log shows the replacement. Raises OSError."""
    given = words[_PLACE + 1 :]
    try:
        expanded = expand(given, scope)
    except ProbeError as wrong:
        raise _with_the_next(wrong, words, scope) from None
    return _parsed(expanded, words, scope)


def _parsed(expanded: Sequence[str], words: list[str], scope: Scope) -> list[Argument]:
    if len(expanded) > MAX_ARGUMENTS:
        raise ProbeError(errno.E2BIG)
    final = expand_dentries(expanded, dentry_layout)
    if expanded == words[_PLACE + 1 :]:
        words[_PLACE + 1 :] = final
    return parse_arguments(final, scope)


def _with_the_next(wrong: ProbeError, words: list[str], scope: Scope) -> ProbeError:
    """The kernel continues after a `$arg*` of an unknown prototype, and fails at the first word that it cannot parse."""
    if all(finding.code is not ErrorCode.NOSUP_BTFARG for finding in wrong.findings):
        return wrong
    try:
        _parsed(words[_PLACE + 1 :], words, scope)
    except ProbeError as following:
        return ProbeError(following.number, *wrong.findings, *following.findings)
    return wrong


def add_probe(probe: Probe) -> None:
    """Register a probe, as an event of its own or with the probes of the event that has its name. Raises OSError.

    The name is claimed under the lock. Registration runs without it: it may wait for handlers, which may take the lock.
    """
    with events_locked():
        _take_place(probe)
        dynevent.dyn_event_add(probe)
    try:
        _register(probe)
        with events_locked():
            if probe not in probe.event.probes:
                after_unlocking(probe.unregister)  # deleted by another thread
            elif probe.event.is_armed:
                probe.event.arm_probe(probe)
    except OSError:
        with events_locked():
            _take_back(probe)
        raise


def _take_place(probe: Probe) -> None:
    """Add the probe's event, or append the probe to the event of that name. Raises ProbeError."""
    event = event_registry.find(probe.group, probe.name)
    if isinstance(event, ProbeEvent) and event.line_type is probe.line_type:
        _check_siblings(probe, event)
        event.probes.append(probe)
    else:
        event = ProbeEvent(probe)
        try:
            event_registry.add(event)
        except OSError as taken:
            raise error(ErrorCode.EVENT_EXIST, number=taken.errno or errno.EEXIST) from None
    probe.event = event


def _take_back(probe: Probe) -> None:
    event = probe.event
    if probe in event.probes:
        dynevent.dyn_event_remove(probe)
        event.probes.remove(probe)
        if not event.probes:
            event_registry.remove(event)
    after_unlocking(probe.unregister)


def _check_siblings(probe: Probe, event: ProbeEvent) -> None:
    """Check that the probe can be added to the event. Raises ProbeError."""
    first = event.probes[0]
    if (probe.kind, probe.is_return) != (first.kind, first.is_return):
        raise error(ErrorCode.DIFF_PROBE_TYPE, number=errno.EEXIST)
    differing = _first_difference(probe.arguments, first.arguments)
    if differing is not None:
        raise error(ErrorCode.DIFF_ARG_TYPE, 0, differing + _PLACE + 1, errno.EEXIST)
    if any(probe.is_same(other) for other in event.probes):
        raise error(ErrorCode.SAME_PROBE, number=errno.EEXIST)


def _first_difference(one: Sequence[Argument], other: Sequence[Argument]) -> int | None:
    """The index of the first argument that differs in name or type; None if none does."""
    if len(one) != len(other):
        return min(len(one), len(other))
    shapes = [[(argument.name, argument.type, argument.count) for argument in each] for each in (one, other)]
    return next((index for index, pair in enumerate(zip(*shapes, strict=True)) if pair[0] != pair[1]), None)


def _register(probe: Probe) -> None:
    """Register the probe. Raises ProbeError with the message that error_log shows for the errno."""
    try:
        probe.register()
    except OSError as failed:
        codes = {errno.EILSEQ: ErrorCode.BAD_INSN_BNDRY, errno.ENOENT: ErrorCode.BAD_PROBE_ADDR}
        number = failed.errno or errno.EINVAL
        if number in (errno.ENOMEM, errno.EEXIST):
            raise
        hint = "" if isinstance(failed, ProbeError) else str(failed.strerror or "")
        raise error(codes.get(number, ErrorCode.FAIL_REG_PROBE), 0, _PLACE, number, hint=hint) from failed
