"""Attaches probes to the code that the program has loaded, and to libraries that it loads later."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from fprobe.attachment import Attachment, attach
from fprobe.registration import functions_of
from fprobe.run import session
from fprobe.run.inside.own_modules import OURS
from fprobe.run.inside.patterns import Pattern, compiled_code, described, new_functions, plain_values
from fprobe.run.inside.table import Calls, Table
from fprobe.run.session import Settings
from ftrace.core.entries.locate import outside
from ftrace.core.filters.inlined import InlinedCalls
from ftrace.core.filters.resolve import Found, is_compiled
from ftrace.hit.call_table import BY_CALLER
from sandbox.loading.module import Module, ModuleState, register_module_notifier
from sandbox.process import fork
from sandbox.symbols.libraries import libraries
from sandbox.threads import signals


class _Journal(logging.Handler):
    def __init__(self, address: str) -> None:
        super().__init__(logging.WARNING)
        self._address = address

    def emit(self, record: logging.LogRecord) -> None:
        session.note(self._address, remark=record.getMessage())


def keep_quiet(address: str) -> None:
    """Write this project's log messages and warnings to the journal."""
    handler = _Journal(address)
    for name in OURS:
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.propagate = False
    signals.warn = lambda text: session.note(address, remark=text)


class _Group:
    """Patterns whose functions get the same probe. `probe`: makes a probe for the functions at the given addresses."""

    def __init__(self, patterns: Sequence[str], probe: Callable[[list[int]], Attachment[Any]]) -> None:
        self.patterns = [Pattern(text) for text in patterns]
        self.probe = probe
        self.known: dict[int, Found] = {}
        self.attached: list[Attachment[Any]] = []


class Arming:
    """The probes armed in this process, and the patterns that wait for their libraries."""

    def __init__(self, address: str, settings: Settings) -> None:
        self._address = address
        self._libraries: set[tuple[str, int]] = set()
        self._lock = fork.renew(threading.RLock())
        self._arming = 0
        """The thread that is arming, with the lock."""
        self._again = False
        self._watch: Any = None
        self._waiting: list[tuple[str, str]] = []
        """The patterns that match nothing and why, as published to the launcher."""
        self._inlined, self._texts = InlinedCalls(), [*settings.patterns, *settings.stacks, *settings.handled]
        self._shows_callers = settings.by == BY_CALLER or bool(settings.stacks)
        """Whether callers are named, which may be in libraries that are loaded later, even in a program that is killed."""
        counts = session.open_counts(address)
        try:
            table = Table(counts, settings.by, settings.with_events)
        finally:
            os.close(counts)
        self._groups = [_Group(settings.patterns, lambda ips: attach(ips, action=Calls(table, settings.with_events)))]
        if settings.native:
            self._handle(settings, table)
        if settings.stacks:
            from fprobe.run.inside.stacks import Stacks

            handlers = Stacks(address, table).handlers
            self._groups.append(_Group(settings.stacks, lambda ips: attach(ips, **handlers)))
        self._definitions = None
        if settings.events:
            from fprobe.run.inside.defining import Definitions

            self._definitions = Definitions(address, settings.events)
            self._texts += [pattern.text for pattern in self._definitions.patterns]

    def _handle(self, settings: Settings, table: Table) -> None:
        """Add a group of functions that get the user's native handlers."""
        from fprobe.run.inside.native_handlers import load

        handlers, maps = load(settings.native, table)
        session.note(self._address, maps=maps)
        options: dict[str, Any] = {"entry": handlers.entry, "exit": handlers.exit}
        self._groups.append(_Group(settings.handled, lambda ips: attach(ips, **options)))

    def begin(self) -> None:
        """Arm the functions that are loaded, and watch for the libraries of the others, and of callers.

        Watching first: it takes much Python, which is slow once functions of the interpreter are probed.
        """
        self._find_all()
        if self._shows_callers or not all(pattern.is_settled for pattern in self._patterns()):
            from kprobes.library_loads import Watch
            from kprobes.optimization import wait_for_kprobe_optimizer

            self._watch = Watch(self.arm_loaded)
            wait_for_kprobe_optimizer()  # as breakpoints they would kill a program that takes SIGTRAP at once
            register_module_notifier(self._module_event)
        if any(is_compiled(pattern.text) for pattern in self._patterns()):
            from kprobes import jit_unloading as departures
            from sandbox.images.jit_loading import follow

            departures.free_killed()
            follow(self.arm_loaded)
        atexit.register(self._finish)
        self.arm_loaded()

    def _patterns(self) -> list[Pattern]:
        patterns = [pattern for group in self._groups for pattern in group.patterns]
        return patterns + (self._definitions.patterns if self._definitions else [])

    def _module_event(self, event: ModuleState, _module: Module) -> None:
        if event is ModuleState.LIVE:
            self.arm_loaded()

    def arm_loaded(self) -> None:
        """Arm code loaded since the last call, and report it to the launcher. Raises nothing, so that the program continues.

        Arming opens libraries itself, which calls this again: the outer call then looks once more.
        """
        self._again = True
        if self._arming == threading.get_ident():
            return
        try:
            with self._lock:
                self._arming = threading.get_ident()
                try:
                    while self._again:
                        self._again = False
                        self._arm_all()
                finally:
                    self._arming = 0
        except Exception as error:
            session.note(self._address, error=f"{type(error).__name__}: {error}")

    def _find_all(self) -> None:
        for pattern in self._patterns():
            pattern.found()

    def _arm_all(self) -> None:
        self._report_libraries()
        self._find_all()
        for group in self._groups:
            for pattern in group.patterns:
                self._arm_pattern(pattern, group)
        if self._definitions:
            self._definitions.define_loaded()
        self._tell_waiting()
        self._tell_inlined()

    def _arm_pattern(self, pattern: Pattern, group: _Group) -> None:
        functions = pattern.found()
        new = list(new_functions(functions, group.known))
        if not new:
            return
        group.known |= {each.function.address: each for each in new}
        session.note(self._address, pattern=pattern.text, functions=plain_values(functions))
        session.note(self._address, skipped=self._arm(new, group))

    def _arm(self, functions: list[Found], group: _Group) -> list[tuple[str, str]]:
        """Attach to these functions. Returns name and reason for each that cannot be probed."""
        reasons = {each.function.address: outside(each) for each in functions}
        skipped = [(str(each), reason) for each in functions if (reason := reasons[each.function.address])]
        if len(skipped) == len(functions):
            return skipped
        attachment = group.probe([address for address, reason in reasons.items() if not reason])
        try:
            attachment.attach()
        except OSError as error:
            refused = len(skipped) + len(attachment.skipped) == len(functions)
            if not refused:
                session.note(self._address, error=f"{functions[0]} and {len(functions) - 1:,} others: {error.strerror}")
        else:
            group.attached.append(attachment)
            session.note(self._address, attached=functions_of(attachment.fp).count())
        return skipped + [(each.name, each.reason) for each in attachment.skipped]

    def _tell_waiting(self) -> None:
        waiting = [(each.text, each.reason) for each in self._patterns() if each.reason]
        if waiting != self._waiting:
            self._waiting = waiting
            session.note(self._address, waiting=waiting)

    def _tell_inlined(self, *, is_over: bool = False) -> None:
        for sentence in self._inlined.untold(self._texts, with_globs=is_over):
            session.note(self._address, remark=sentence)

    def _finish(self) -> None:
        """Report at the end what came last: libraries that the C library itself has loaded, and inlined calls. Raises nothing."""
        try:
            self._report_libraries()
            self._tell_inlined(is_over=True)
            if self._shows_callers and (code := list(compiled_code())):
                session.note(self._address, code=code)
        except Exception as error:
            session.note(self._address, error=f"{type(error).__name__}: {error}")

    def _report_libraries(self) -> None:
        found = [library for library in libraries() if (str(library.path), library.base) not in self._libraries]
        self._libraries.update((str(library.path), library.base) for library in found)
        if found:
            session.note(self._address, libraries=[described(library) for library in found])
