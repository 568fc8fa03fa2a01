"""Attaches probes to the code that the program has loaded, and to libraries that it loads later."""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fprobe.attachment import Attachment, attach
from fprobe.registration import functions_of
from fprobe.run import session
from fprobe.run.session import Settings
from fprobe.run.tracee.own_modules import OURS
from fprobe.run.tracee.patterns import Pattern, compiled_code, described, new_functions, plain_values
from fprobe.run.tracee.table import Calls, MapSpace, Table
from ftrace.core.entries.locate import outside
from ftrace.core.filters.image_functions import ImageFunction, is_compiled
from ftrace.core.filters.inlined import InlinedCalls
from ftrace.core.runtime import runtime
from ftrace.core.sites.trapping import TrapsBlocked
from ftrace.core.tracer import tracer
from ftrace.core.unwind import libunwind
from ftrace.hit.account import BY_CALLER
from sandbox.loading.module import Module, ModuleState, register_module_notifier, unregister_module_notifier
from sandbox.process import fork
from sandbox.symbols import gdbjit
from sandbox.symbols.libraries import libraries
from sandbox.symbols.loaded_files import gone_files
from sandbox.threads import signals

if TYPE_CHECKING:
    from fprobe.calls.stacks import Stacks
    from fprobe.run.tracee.defining import Definitions
    from fprobe.run.tracee.stack_events import StackEvents
    from fprobe.run.tracee.value_histograms import ValueHistograms


_PATIENCE = 10.0
"""Seconds in which threads must have unblocked SIGTRAP when probes are removed."""


class _Journal(logging.Filter):
    """Takes our messages out of loggers that the program may have, too, and writes warnings to the journal."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the message is the program's own."""
        if not record.pathname.startswith(_DIRECTORIES):
            return True
        if record.levelno >= logging.WARNING:
            session.note(self._address, remark=record.getMessage())
        return False


_DIRECTORIES = tuple(str(Path(session.__file__).parents[2] / name) + os.sep for name in OURS)


def keep_quiet(address: str) -> Callable[[], None]:
    """Write this project's log messages and warnings to the journal. Returns a function that ends this."""
    journal, warn = _Journal(address), signals.warn
    loggers = [logging.getLogger(name) for name in OURS]
    for logger in loggers:
        logger.addFilter(journal)
        vars(logger)["makeRecord"] = functools.partial(_record, logger)
    signals.warn = lambda text: session.note(address, remark=text)

    def end() -> None:
        signals.warn = warn
        for logger in loggers:
            logger.removeFilter(journal)
            vars(logger).pop("makeRecord", None)

    return end


def _record(logger: logging.Logger, name: str, level: int, path: str, line: int, text: object, *rest: Any) -> Any:
    """A record for the loggers; in a thread of ours one that only the filter reads: others ask `threading` for the thread.

    That would list it among the program's from then on.
    """
    if threading.get_ident() in threading._active:  # type: ignore[attr-defined]  # undocumented
        return type(logger).makeRecord(logger, name, level, path, line, text, *rest)
    record = logging.LogRecord.__new__(logging.LogRecord)
    record.name, record.levelno, record.pathname, record.msg, record.args = name, level, path, text, rest[0]
    return record


class _Group:
    """Patterns whose functions get the same probe. `probe`: makes a probe for the given functions.

    `refusal`: why a function cannot have it, or "".
    """

    def __init__(
        self,
        patterns: Sequence[str],
        probe: Callable[[list[ImageFunction]], Attachment[Any]],
        refusal: Callable[[ImageFunction], str] = lambda _: "",
    ) -> None:
        self.patterns = [Pattern(text) for text in patterns]
        self.probe, self.refusal = probe, refusal
        self.known: dict[int, ImageFunction] = {}
        self.attached: list[Attachment[Any]] = []


def _entries(functions: list[ImageFunction]) -> list[int]:
    return list(dict.fromkeys(each.function.address for each in functions))


def _counting(settings: Settings, table: Table) -> _Group:
    """The group of functions that are counted and timed; with events, their calls are recorded with values."""
    if not settings.with_events:
        return _Group(settings.patterns, lambda functions: attach(_entries(functions), action=Calls(table, settings)))
    from fprobe.run.tracee.values import Plans, TracedCalls

    def probe(functions: list[ImageFunction]) -> Attachment[Any]:
        plans = Plans(table, functions, settings.strings)
        return attach(_entries(functions), action=TracedCalls(table, settings, plans))

    return _Group(settings.patterns, probe)


def keep_llvm_out(settings: Settings) -> None:
    """Do without LLVM's library, which takes 20 MB and tens of milliseconds, where the program has none.

    Not if a pattern means code of JIT compilers, whose unloading its list for debuggers tells. For others the code of probes is
    in that list only if the program has loaded llvmlite.
    """
    lines = " ".join((*settings.events, *settings.values, *settings.stack_values)).split()
    named = [*settings.patterns, *settings.stacks, *settings.handled, *settings.selected, *lines]
    gdbjit.is_wanted[0] = any(map(is_compiled, named))


def _patiently(remove: Callable[[], None]) -> None:
    """Remove probes as soon as no thread blocks SIGTRAP: text with breakpoints cannot be restored before. Raises OSError."""
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            return remove()
        except TrapsBlocked:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


class Arming:
    """The probes armed in this process, and the patterns that wait for their libraries."""

    def __init__(self, address: str, settings: Settings) -> None:
        self._address = address
        self._libraries: set[tuple[str, int, bool]] = set()
        self._lock = fork.renew(threading.RLock())
        self._arming = 0
        """The thread that is arming, with the lock."""
        self._again = False
        self._has_ended = False
        self._watch: Any = None
        self._waiting: list[tuple[str, str]] = []
        """The patterns that match nothing and why, as published to the launcher."""
        self._remarked = {""}
        self._inlined, self._texts = (
            InlinedCalls(),
            [*settings.patterns, *settings.stacks, *settings.handled, *settings.selected],
        )
        self._shows_callers = settings.by == BY_CALLER or bool(
            settings.stacks or settings.values or settings.stack_values
        )
        """Whether callers are named, which may be in libraries that are loaded later, even in a program that is killed."""
        self._shows_code = self._shows_callers or bool(settings.events)
        """Whether addresses in code outside of libraries are shown."""
        counts = session.open_counts(address)
        try:
            table = self._table = Table(counts, settings)
        finally:
            os.close(counts)
        self._groups = [_counting(settings, table)]
        needs_space = (
            settings.native or settings.values or settings.stacks or settings.stack_values or settings.selected
        )
        space = MapSpace(table) if needs_space else None
        if settings.selected:
            from fprobe.run.tracee.selected import Selecting

            selecting = Selecting(address, settings, table, space)
            self._groups.append(_Group(settings.selected, selecting.probe, selecting.refusal))
        if settings.native and space is not None:
            self._handle(settings, space)
        self._stacks: Stacks | None = None
        self._stack_events: StackEvents | None = None
        if (settings.stacks or settings.stack_values) and space is not None:
            self._stack(settings, space)
        self._definitions: Definitions | None = None
        if settings.events:
            from fprobe.run.tracee.defining import Definitions

            self._definitions = Definitions(address, settings)
            self._texts += [pattern.text for pattern in self._definitions.patterns]
        self._values: ValueHistograms | None = None
        if settings.values and space is not None:
            from fprobe.run.tracee.value_histograms import ValueHistograms

            self._values = ValueHistograms(address, settings, space)
            self._texts += [pattern.text for pattern in self._values.patterns]

    def _handle(self, settings: Settings, space: MapSpace) -> None:
        """Add a group of functions that get the user's native handlers."""
        from fprobe.run.tracee.native_handlers import load

        handlers, maps = load(settings.native, space)
        session.note(self._address, maps=maps)
        options: dict[str, Any] = {"entry": handlers.entry, "exit": handlers.exit}
        self._groups.append(_Group(settings.handled, lambda functions: attach(_entries(functions), **options)))

    def _stack(self, settings: Settings, space: MapSpace) -> None:
        """Add a group of functions whose calls are counted by stack."""
        from fprobe.calls.stacks import StackCalls
        from fprobe.run.tracee.stacks import shared_stacks

        made = self._stacks = shared_stacks(self._address, space)
        self._groups.append(
            _Group(settings.stacks, lambda functions: attach(_entries(functions), action=StackCalls(made)))
        )
        if settings.stack_values:
            from fprobe.run.tracee.stack_events import StackEvents

            self._stack_events = StackEvents(self._address, settings, made)
            self._texts += [pattern.text for pattern in self._stack_events.patterns]

    def begin(self) -> None:
        """Arm the functions that are loaded, and watch for the libraries of the others, and of callers.

        Watching first: it takes much Python, which is slow once functions of the interpreter are probed.
        """
        from ftrace.core.sites.signal_masks import keep_traps_unblocked

        keep_traps_unblocked()  # the program's handlers of faults come after ours, and it does not see ours
        for pattern in self._patterns():
            session.note(self._address, doing=f"reading the functions that match {pattern.text}")
            pattern.found()
        if self._shows_callers or not all(pattern.is_settled for pattern in self._patterns()):
            self._watch_loads()
            register_module_notifier(self._module_event)
        if any(is_compiled(pattern.text) for pattern in self._patterns()):
            from kprobes import jit_unloading
            from sandbox.images.jit_loading import follow

            jit_unloading.free_killed()
            follow(self.arm_loaded)
        atexit.register(self._finish)
        self.arm_loaded()

    def _watch_loads(self) -> None:
        from kprobes.library_loads import Watch
        from kprobes.optimization import wait_for_kprobe_optimizer

        try:
            with self._held():  # a notification meanwhile must not wait for the lock below those of probes
                self._watch = Watch(self.arm_loaded)
        except OSError as error:
            session.note(self._address, remark=f"libraries that are loaded later get no probes: {error.strerror}")
        wait_for_kprobe_optimizer()  # as breakpoints they would kill a program that takes SIGTRAP at once

    def end(self) -> None:
        """Take out everything that `begin` and later loads have brought. Then no thread is in probed code of ours.

        Raises OSError if a function's text could not be restored.
        """
        from ftrace.core.sites.signal_masks import restore_masks
        from kprobes import states, vforks
        from kprobes.optimization import wait_for_kprobe_optimizer
        from sandbox.images.jit_loading import unfollow

        unfollow(self.arm_loaded)
        with contextlib.suppress(ValueError):
            unregister_module_notifier(self._module_event)
        if self._watch is not None:
            self._watch.end()
        atexit.unregister(self._finish)
        with self._lock:
            self._has_ended = True
            for group in self._groups:
                for attachment in group.attached:
                    _patiently(attachment.detach)
            for each in self._event_kinds:
                _patiently(each.remove)
        wait_for_kprobe_optimizer()
        states.rest()
        vforks.restore()
        restore_masks()
        if self._stacks is not None:
            self._stacks.end()
        self._table.end()

    def _patterns(self) -> list[Pattern]:
        patterns = [pattern for group in self._groups for pattern in group.patterns]
        return patterns + [pattern for each in self._event_kinds for pattern in each.patterns]

    @property
    def _event_kinds(self) -> list[Definitions | ValueHistograms | StackEvents]:
        return [each for each in (self._definitions, self._values, self._stack_events) if each is not None]

    def _module_event(self, event: ModuleState, _module: Module) -> None:
        if event is ModuleState.LIVE:
            self.arm_loaded()

    def arm_loaded(self) -> None:
        """Arm code loaded since the last call, and report it to the launcher. Raises nothing, so that the program continues.

        Arming opens libraries itself, which calls this again: the outer call then looks once more. So does the thread that is
        arming, where this one holds locks which that thread may wait for.
        """
        self._again = True
        while self._again and self._arming != threading.get_ident():
            of_probes: Any = tracer().table.lock
            if not self._lock.acquire(blocking=not of_probes._is_owned()):
                return
            try:
                with self._held(), runtime().unseen():
                    self._arm_again()
            except Exception as error:
                session.note(self._address, error=f"{type(error).__name__}: {error}")
            finally:
                self._lock.release()

    def _arm_again(self) -> None:
        while self._again and not self._has_ended:
            self._again = False
            self._arm_all()
        self._again = False

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        """Hold the lock, as the thread that is arming."""
        with self._lock:
            self._arming = threading.get_ident()
            try:
                yield
            finally:
                self._arming = 0

    def _find_all(self) -> None:
        for pattern in self._patterns():
            pattern.found()
            if pattern.remark not in self._remarked:
                self._remarked.add(pattern.remark)
                session.note(self._address, remark=pattern.remark)

    def _arm_all(self) -> None:
        libunwind.register_all()
        self._report_libraries()
        self._find_all()
        for group in self._groups:
            for pattern in group.patterns:
                self._arm_pattern(pattern, group)
        for each in self._event_kinds:
            each.define_loaded()
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

    def _arm(self, functions: list[ImageFunction], group: _Group) -> list[tuple[str, str]]:
        """Attach to these functions. Returns name and reason for each that cannot be probed."""
        reasons = {each.function.address: outside(each) or group.refusal(each) for each in functions}
        skipped = [(str(each), reason) for each in functions if (reason := reasons[each.function.address])]
        if len(skipped) == len(functions):
            return skipped
        number = f"{len(functions):,} function{'s' * (len(functions) != 1)}"
        session.note(self._address, doing=f"probing {number}")
        attachment = group.probe([each for each in functions if not reasons[each.function.address]])
        try:
            attachment.attach()
        except OSError as error:
            if isinstance(error, TrapsBlocked):  # a thread blocks SIGTRAP, and some of them need breakpoints
                return self._arm_apart(functions, group, str(error.strerror))
            refused = len(skipped) + len(attachment.skipped) == len(functions)
            if not refused:
                session.note(self._address, error=f"{functions[0]} and {len(functions) - 1:,} others: {error.strerror}")
        else:
            group.attached.append(attachment)
            session.note(self._address, attached=functions_of(attachment.fp).count())
        return skipped + [(each.name, each.reason) for each in attachment.skipped]

    def _arm_apart(self, functions: list[ImageFunction], group: _Group, reason: str) -> list[tuple[str, str]]:
        """Attach to each half of these functions, of which not all can be probed, for that reason."""
        if len(functions) == 1:
            return [(str(functions[0]), reason)]
        half = len(functions) // 2
        return self._arm(functions[:half], group) + self._arm(functions[half:], group)

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
            with runtime().unseen():
                self._report_libraries()
                self._tell_inlined(is_over=True)
                if self._shows_code and (code := list(compiled_code())):
                    session.note(self._address, code=code)
        except Exception as error:
            session.note(self._address, error=f"{type(error).__name__}: {error}")

    def _report_libraries(self) -> None:
        gone = gone_files()
        found = {
            (path := str(each.path), each.base, each.file != each.path or path in gone): each for each in libraries()
        }
        new = [key for key in found if key not in self._libraries]
        self._libraries.update(new)
        if new and self._stacks is not None:
            self._stacks.see_libraries()
        if new:
            session.note(self._address, libraries=[described(found[key], is_gone=key[2]) for key in new])
