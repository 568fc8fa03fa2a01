"""Kprobe events: the lines p and r of kprobe_events and dynamic_events, and kprobe_profile.

    p[:[GRP/][EVENT]] [MOD:]SYM[+offs]|MEMADDR [FETCHARGS]           at an instruction
    r[MAXACTIVE][:[GRP/][EVENT]] [MOD:]SYM[+0]|MEMADDR [FETCHARGS]   at a function's return
    p[:[GRP/][EVENT]] [MOD:]SYM[+0]%return [FETCHARGS]               the same
    p[:[GRP/][EVENT]] FILE:LINE|[MOD:]SYM:LINE [FETCHARGS]           at the first instruction of a source line

As kernel/trace/trace_kprobe.c of Linux 6.12; source lines are those of perf probe, which writes them as SYM+offs.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import replace
from threading import Lock

from ftrace.tracing.events.dynevent import NotThisType, create_of_type, dyn_event_register, dynamic_events, show
from ftrace.tracing.events.event_mutex import after_unlocking, events_locked
from ftrace.tracing.events.hit.handler_source import EARLY_ENTRY, EARLY_RETURN, EarlyShape, Shape
from ftrace.tracing.events.probe_event import Probe, ProbeLineType, add_probe, arguments_of, event_name, maxactive_of
from ftrace.tracing.files.nodes import TextFile
from ftrace.tracing.probe_args.errors import ErrorCode, error
from ftrace.tracing.probe_args.fetch import Argument
from ftrace.tracing.probe_args.scope import Scope
from ftrace.tracing.tracefs.files import add_ftrace_files, definitions_file
from ftrace.tracing.tracefs.tree import tracefs
from kprobes.events.event_place import EventPlace, module_is_there, parse_place
from kprobes.handlers.native_decorator import event_handler
from kprobes.library_loads import LibraryWatch
from kprobes.probe import KPROBE_FLAG_DISABLED, KPROBE_FLAG_FTRACE, KPROBE_FLAG_GONE, kprobe
from kprobes.registration import (
    disable_kprobe,
    enable_kprobe,
    init_kprobes,
    register_kprobe,
    register_kretprobe,
    unregister_kprobe,
    unregister_kretprobe,
)
from kprobes.return_probe import kretprobe
from sandbox.images.process_text import library_called
from sandbox.images.prototypes import prototype
from sandbox.images.source_places import is_file
from sandbox.images.variables import Variable, variables_at
from sandbox.loading.module import Module, ModuleState, register_module_notifier
from sandbox.process import fork
from sandbox.process.once import once
from sandbox.symbols.names import split_owner

GROUP = "kprobes"
"""The group of events whose line names none."""
_WORD = 8
_SHAPE = Shape(
    "p, regs",
    "p.action",
    ("p.address",),
    shortcut="cast(Shortcut, {})(cast(u64, p), regs)",
    early=replace(EARLY_ENTRY, unless="task.kprobe != 0"),
)
_RETURN_SHAPE = Shape(
    "ri, regs",
    "ri.rp.action",
    ("ri.rp.child.address", "regs.ip"),
    "addressof(ri.data[0])",
    early=EARLY_RETURN,
)


class KprobeEventProbe(Probe):
    """The probe that a line p or r defines."""

    make_handler = staticmethod(event_handler)

    def __init__(
        self,
        names: tuple[str, str],
        where: EventPlace,
        scope: Scope,
        arguments: Sequence[Argument],
        *,
        is_return: bool,
        maxactive: int,
    ) -> None:
        self.is_return = is_return
        self.kind = "r" if is_return else "p"
        self.shape = _RETURN_SHAPE if is_return else _SHAPE
        super().__init__(kprobe_lines, *names, scope, arguments)
        self.where = where
        self.maxactive = maxactive
        self.probe: kprobe | kretprobe | None = None
        """The registered probe; None while its module is not loaded."""
        self._refusal = ""
        """Why it was not registered although its module has been loaded."""
        self._registering = fork.renew(Lock())

    @property
    def place(self) -> str:
        """`SYM`, `SYM+OFFSET` in decimal, or the address."""
        return str(self.where)

    @property
    def head(self) -> str:
        """`p`, or `r` with maxactive if it was given."""
        return f"r{self.maxactive or ''}" if self.is_return else "p"

    @property
    def identity(self) -> object:
        """As the kernel compares places: all addresses count as equal."""
        return self.where.symbol, self.where.offset

    @property
    def absence(self) -> str:
        """See `Probe`."""
        if self.probe is not None:
            return ""
        return self._refusal or self.where.absence

    @property
    def kp(self) -> kprobe | None:
        """The kprobe; for a return probe, that of the kretprobe."""
        return self.probe.kp if isinstance(self.probe, kretprobe) else self.probe

    @property
    def misses(self) -> int:
        """Hits inside another handler; for a return probe also calls for which no instance was free."""
        if self.probe is None:
            return 0
        return self.probe.nmissed + (self.probe.kp.nmissed if isinstance(self.probe, kretprobe) else 0)

    @property
    def early_shape(self) -> EarlyShape | None:
        """None unless it is at an ftrace location."""
        return self.shape.early if self.kp is not None and self.kp.flags & KPROBE_FLAG_FTRACE else None

    # -- registration ---------------------------------------------------------------------------------------------

    def register(self) -> None:
        """Register it, disabled. If its code may be loaded later, it waits. Raises OSError.

        Linking its handler calls dlopen, too: for a watch it must not look meanwhile like a probe that waits.
        """
        try:
            with self._registering:
                if self.probe is None:  # else its code came at this moment
                    self.resolve_symbols()
                    self._put()
        except OSError as failed:
            if failed.errno != errno.ENOENT or not self._may_be_loaded:
                raise
            if self.where.module is not None:
                after_unlocking(library_watch.begin)

    @property
    def _may_be_loaded(self) -> bool:
        """Whether its code may be loaded later: it is an address in no symbol, or in a module that is not loaded."""
        module = self.where.module
        return self.where.symbol is None or (module is not None and not module_is_there(module))

    def _put(self) -> None:
        where = self.where
        made = self._return_probe() if self.is_return else self._plain_probe()
        kp = made.kp if isinstance(made, kretprobe) else made
        kp.symbol_name, kp.offset = where.symbol, where.offset
        kp.addr = None if where.symbol else where.address
        kp.flags = KPROBE_FLAG_DISABLED
        made.action = self.recording.address
        if isinstance(made, kretprobe):
            register_kretprobe(made)
            self.maxactive = made.maxactive
        else:
            register_kprobe(made)
        self.probe = made

    def _plain_probe(self) -> kprobe:
        return kprobe(pre_handler=self.hit_handler)

    def _return_probe(self) -> kretprobe:
        return kretprobe(
            handler=self.hit_handler,
            entry_handler=self.entry_handler,
            maxactive=self.maxactive,
            data_size=_WORD * len(self.scope.saved),
        )

    def unregister(self) -> None:
        """Unregister it, unless it is waiting."""
        if isinstance(self.probe, kretprobe):
            unregister_kretprobe(self.probe)
        elif self.probe is not None:
            unregister_kprobe(self.probe)
        self.probe = None
        after_unlocking(library_watch.end_unless_needed)

    def arm(self) -> None:
        """Enable it, unless it is waiting for its code."""
        if self.kp is not None and not self.kp.flags & KPROBE_FLAG_GONE:
            enable_kprobe(self.kp)

    def disarm(self) -> None:
        """Disable it."""
        if self.kp is not None:
            disable_kprobe(self.kp)

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for a module or library."""
        return self.probe is None and self.where.module is not None

    @property
    def is_awaited(self) -> bool:
        """Whether it waits though its library is there."""
        return self.is_waiting and module_is_there(str(self.where.module))

    def module_loaded(self) -> None:
        """Its module has been loaded: register it again. If that fails, it continues to wait.

        Registering may load libraries, and so come here again: then there is nothing to do.
        """
        if not self._registering.acquire(blocking=False):
            return
        try:
            self.unregister()
            self.resolve_symbols()
            self._put()
            self._refusal = ""
            with events_locked():
                if self.event.is_armed:
                    self.event.arm_probe(self)
        except OSError as error:
            self._refusal = error.strerror or str(error) if error.errno != errno.ENOENT else ""
        finally:
            self._registering.release()


class KprobeLines(ProbeLineType):
    """The lines p and r."""

    subsystem = "trace_kprobe"

    def define(self, words: list[str]) -> None:
        """Define a kprobe event. Raises NotThisType, OSError."""
        letter = words[0][0]
        if letter not in "pr" or len(words) < 2:
            raise NotThisType
        maxactive = maxactive_of(words[0]) if letter == "r" else _no_maxactive(words[0])
        if _is_of_uprobe(words[1]):
            raise NotThisType
        where = parse_place(words[1])
        is_return = letter == "r" or where.says_return
        scope = _scope(where, is_return)
        names = event_name(words[0], GROUP, lambda: f"{'r' if is_return else 'p'}_{where.generated_name}")
        arguments = arguments_of(words, scope)
        add_probe(KprobeEventProbe(names, where, scope, arguments, is_return=is_return, maxactive=maxactive))


def _is_of_uprobe(place: str) -> bool:
    """`/path:offset`. Only a symbol of a module or library may have a `/`, or the path of a library or a source file."""
    owner, _, rest = split_owner(place)
    return "/" in owner and not is_file(owner) and (rest[:1].isdigit() or not library_called(owner))


def _no_maxactive(word: str) -> int:
    if word[1:2].isascii() and word[1:2].isdigit():
        raise error(ErrorCode.BAD_MAXACT_TYPE, 1)
    return 0


def _scope(where: EventPlace, is_return: bool) -> Scope:
    """The names that arguments can refer to: parameters at an entry and a return, variables by debug information elsewhere."""

    def variables() -> dict[str, Variable] | None:
        code = where.code
        return variables_at(code) if code is not None else None

    symbol = where.symbol
    if symbol is None:
        return Scope(find_variables=variables)
    is_entry = where.is_entry
    if is_return and is_entry is False:
        raise error(ErrorCode.BAD_RETPROBE, 0, 1)
    at_entry = bool(is_entry) and not is_return
    return Scope(
        at_entry=at_entry, at_return=is_return, find_prototype=lambda: prototype(symbol), find_variables=variables
    )


kprobe_lines = KprobeLines()
"""The type of lines that dynamic_events passes to kprobes."""


def run_line(line: str) -> None:
    """Run a line of kprobe_events. Raises OSError."""
    create_of_type(line, kprobe_lines)


def kprobe_profile() -> str:
    """The text of kprobe_profile: name, hits and misses of each event."""
    return "".join(f"  {probe.name:<44} {probe.hits:15} {probe.misses:15}\n" for probe in _probes())


def _probes() -> list[KprobeEventProbe]:
    return [event for event in dynamic_events(kprobe_lines) if isinstance(event, KprobeEventProbe)]


def _library_loaded() -> None:
    """Register the probes whose library is there now."""
    for probe in _probes():
        if probe.is_awaited:
            after_unlocking(probe.module_loaded)


library_watch = LibraryWatch(_library_loaded, lambda: any(probe.is_waiting for probe in _probes()))
"""The watch for the probes that wait for a library."""


def _module_event(event: ModuleState, module: Module) -> None:
    if event is not ModuleState.COMING:
        return
    for probe in _probes():
        if probe.where.module == module.name:
            probe.module_loaded()


@once
def register_kprobe_events() -> None:
    """Register the lines p and r with dynamic_events, add kprobe_events and kprobe_profile to the tree, and watch for
    modules that probes wait for.
    """
    add_ftrace_files()
    dyn_event_register(kprobe_lines)
    tracefs.add("kprobe_events", definitions_file(lambda: show(kprobe_lines), run_line, kprobe_lines))
    tracefs.add("kprobe_profile", TextFile(kprobe_profile))
    init_kprobes()
    register_module_notifier(_module_event)
