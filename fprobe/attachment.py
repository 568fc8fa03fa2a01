"""attach(): fprobes as context managers and decorators."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from typing import Any, Generic, SupportsIndex, TypeVar, overload

from fprobe.actions import Action
from fprobe.function_objects import target_of
from fprobe.handlers.roles import data_size_of
from fprobe.probe import FPROBE_FL_DISABLED, FPROBE_FL_KPROBE_SHARED, EntryHandler, ExitHandler, fprobe
from fprobe.registration import (
    disable_fprobe,
    enable_fprobe,
    extend_fprobe,
    functions_of,
    register_fprobe,
    register_fprobe_ips,
    register_fprobe_syms,
    unregister_fprobe,
)
from ftrace.core.attaching import Attaching, log
from ftrace.core.filters.image_functions import is_compiled, is_there, may_be_compiled
from ftrace.core.handlers.python_handler import HandlerErrors
from ftrace.core.probe import Counts
from ftrace.core.sites.locations import Skipped
from ftrace.core.sites.trapping import TrapsBlocked
from ftrace.core.summary import Row, shortened
from sandbox.images.jit_loading import follow, unfollow
from sandbox.process.gil import short_switch_interval
from sandbox.process.renamed import renamed

Target = str | Sequence[str] | Sequence[int]
"""A pattern, names, or addresses."""


SPARE_FUNCTIONS = 500
"""Functions that a JIT compiler may add after an action is attached; the action reserves memory for so many."""

MAX_PENDING = 1 << 24
"""The default nr_maxactive: more calls than all shadow stacks hold. It costs no memory."""

This = TypeVar("This", bound="Attachment[Any]")
ActionOrNone = TypeVar("ActionOrNone", bound=Action | None)
AnyAction = TypeVar("AnyAction", bound=Action)


class Attachment(Attaching, Generic[ActionOrNone]):
    """An fprobe and the functions it is for.

    As a context manager it is attached inside the `with` block; as a decorator, while the function runs.
    """

    def __init__(self, target: Target, exclude: str | None, fp: fprobe, action: ActionOrNone) -> None:
        self.target = target
        self._names, self._addresses = ([], []) if isinstance(target, str) else _listed(target)
        self.exclude = exclude
        self._is_waiting = False
        """Whether nothing that the target names has been compiled since it was attached."""
        self.fp = fp
        self.action = action
        if action is not None:
            fp.prepare = self._use_action

    def _summary_rows(self) -> list[Row]:
        (_, state), *rows = self.fp._summary_rows()
        if self.action is not None:
            rows = [("action", type(self.action).__name__), *(row for row in rows if row[0] not in ("entry", "exit"))]
        return [("on", shortened(self.target)), ("state", state if self.fp.registered else "not attached"), *rows]

    @property
    def hits(self) -> int:
        """Calls that the probe saw."""
        return self.fp.hits

    @property
    def counts(self) -> Counts:
        """Hits, and misses by cause."""
        return self.fp.counts

    @property
    def missed(self) -> int:
        """Hits and returns for which a handler was not called: the sum of the misses of `counts`."""
        return self.fp.nmissed

    @property
    def errors(self) -> HandlerErrors:
        """Exceptions of Python handlers: `errors.first`, `errors.count`."""
        return self.fp.errors

    functions = renamed("functions", "targets")

    @property
    def targets(self) -> list[str]:
        """The names of the functions it is attached to, in table order."""
        return [location.name for location in functions_of(self.fp).each()]

    @property
    def skipped(self) -> list[Skipped]:
        """The functions that the target names and to which the handlers cannot be attached, each with the reason."""
        located = self.fp.resolution.skipped if self.fp.resolution is not None else []
        refused = self.fp.ops.skipped() if self.fp.registered else []
        return [*dict.fromkeys([*located, *(Skipped(location.readable, reason) for location, reason in refused)])]

    @short_switch_interval()
    def attach(self: This) -> This:
        """Attach. Raises OSError as register_fprobe does.

        A target of a JIT compiler (`numba:...`) is followed until `detach`: code that is compiled later is probed before it
        runs. If Numba knows a function of that name, it need not be compiled yet. If what is there now cannot be probed, a
        warning says why.
        """
        if isinstance(self.target, str):
            self._attach_pattern(self.target)
        elif self._names:
            register_fprobe_syms(self.fp, self._names)
        else:
            register_fprobe_ips(self.fp, self._addresses)
        self._watch_limit()
        return self

    def _attach_pattern(self, pattern: str) -> None:
        if not is_compiled(pattern):
            register_fprobe(self.fp, pattern, self.exclude)
            return
        from kprobes import jit_unloading  # all of kprobes, which most programs do not need

        jit_unloading.free_killed()
        follows_now = follow(self._extend)
        try:
            register_fprobe(self.fp, pattern, self.exclude)
        except BaseException as error:
            if not isinstance(error, OSError) or error.errno != errno.EINVAL or not may_be_compiled(pattern):
                if follows_now:
                    unfollow(self._extend)
                raise
            self._is_waiting = True
            if is_there(pattern):
                log.warning("%r is attached to nothing so far: %s", pattern, error.strerror)
        self._tell_of_inlined()

    def _extend(self) -> None:
        """Probe newly compiled code that the target names."""
        assert isinstance(self.target, str)
        if self.fp.registered:
            extend_fprobe(self.fp)
        elif is_there(self.target):
            register_fprobe(self.fp, self.target, self.exclude)
            self._is_waiting = False

    def _absent(self) -> list[str]:
        return [str(self.target)] if self._is_waiting else []

    def _use_action(self, functions: int) -> None:
        assert self.action is not None
        self.action.belong_to(self.fp)
        spare = SPARE_FUNCTIONS if isinstance(self.target, str) and is_compiled(self.target) else 0
        self.action.prepare(functions + spare)
        self.fp.entry_handler, self.fp.exit_handler = self.action.entry, self.action.exit
        self.fp.entry_data_size, self.fp.action = self.action.entry_data_size, self.action.state

    def detach(self) -> None:
        """Detach. When this returns, no handler runs any more.

        Does nothing if it is not attached, or if another thread is detaching it. Raises OSError as unregister_fprobe does.
        """
        unfollow(self._extend)
        if not self.fp.registered:
            self._tell_of_absent()
            self._is_waiting = False
            return
        self._end_limit()
        self._tell_of_inlined(is_over=True)
        try:
            unregister_fprobe(self.fp)
        except OSError as error:
            if error.errno != errno.EBUSY or isinstance(error, TrapsBlocked):
                raise

    def _limit_missed(self) -> str:
        missed = self.counts.missed_nodes
        if not missed:
            return ""
        why = f"more than nr_maxactive={self.fp.nr_maxactive:,} calls were waiting to return"
        return f"the fprobe on {self.target!r} missed {missed:,} returns: {why}; give attach() a larger nr_maxactive"

    def disable(self) -> None:
        """Stop calling the handlers until `enable`."""
        disable_fprobe(self.fp)

    def enable(self) -> None:
        """Call the handlers again."""
        enable_fprobe(self.fp)


@overload
def attach(
    target: Target | Any,
    *,
    action: AnyAction,
    exclude: str | None = None,
    entry_data_size: int = 0,
    nr_maxactive: int = 0,
    thread: int = 0,
    max_hits: int = 0,
    shared: bool = False,
    disabled: bool = False,
    python_unsafe: bool = False,
) -> Attachment[AnyAction]: ...
@overload
def attach(
    target: Target | Any,
    *,
    entry: EntryHandler | None = None,
    exit: ExitHandler | None = None,
    action: None = None,
    exclude: str | None = None,
    entry_data_size: int = 0,
    nr_maxactive: int = 0,
    thread: int = 0,
    max_hits: int = 0,
    shared: bool = False,
    disabled: bool = False,
    python_unsafe: bool = False,
) -> Attachment[None]: ...
def attach(
    target: Target | Any,
    *,
    entry: Any = None,
    exit: Any = None,
    exclude: str | None = None,
    action: Action | None = None,
    entry_data_size: int = 0,
    nr_maxactive: int = 0,
    thread: int = 0,
    max_hits: int = 0,
    shared: bool = False,
    disabled: bool = False,
    python_unsafe: bool = False,
) -> Attachment[Any]:
    """Call handlers at the entry and the return of functions.

        with fprobe.attach("vfs_*", entry=print) as probe:
            module["demo_main"](10)
        print(probe.hits)

    `target`: a pattern of the ftrace filter language (`vfs_*`); such a pattern after the name of a library or other image
    (`libz:inflate*`); a list of names; a list of addresses; or a function of ctypes, cffi, Numba or llvmlite. `exclude`: a
    pattern. `entry`, `exit`: handlers, as for `fprobe.fprobe`. `action`: a built-in action, instead of handlers. The other
    parameters are fields of `fprobe.fprobe`.

    Unless `nr_maxactive` is given, no return is missed for want of a node. Unless `entry_data_size` is given, native handlers
    get as much as they declare. Raises ValueError for handlers and an action together, for an empty list, and if
    `entry_data_size` is too small for a native handler; TypeError for another target or action. Attaching raises OSError as
    `register_fprobe` does.
    """
    _check_action(action, entry, exit)
    flags = FPROBE_FL_KPROBE_SHARED * shared | FPROBE_FL_DISABLED * disabled
    fp = fprobe(
        entry,
        exit,
        flags=flags,
        entry_data_size=data_size_of(entry_data_size, entry, exit),
        nr_maxactive=nr_maxactive or MAX_PENDING,
        thread=thread,
        max_hits=max_hits,
        python_unsafe=python_unsafe,
    )
    return Attachment(target_of(target), exclude, fp, action)


def _listed(target: Sequence[str] | Sequence[int]) -> tuple[list[str], list[int]]:
    """The names and the addresses of a list, one of which is empty. Raises TypeError for another target, ValueError for none."""
    names: list[str] = []
    addresses: list[int] = []
    others: list[Any] = []
    for item in target if isinstance(target, Iterable) else [None]:
        sort: list[Any] = names if isinstance(item, str) else addresses if isinstance(item, SupportsIndex) else others
        sort.append(item)
    wanted = "give a pattern, a list of names, or a list of addresses"
    if not (names or addresses or others):
        raise ValueError(f"the list of targets is empty: {wanted}")
    if others or (names and addresses):
        raise TypeError(f"{shortened(target)} is not a target of fprobes; {wanted}")
    return names, addresses


def _check_action(action: Action | None, *handlers: Any) -> None:
    if action is None:
        return
    if not isinstance(action, Action):
        raise TypeError(
            f"{action!r} is not an action of fprobes; give fprobe.Count(), fprobe.Record() or fprobe.Stat()"
        )
    if any(handler is not None for handler in handlers):
        raise ValueError("give handlers or an action, not both")


__all__ = ["Attachment", "attach"]
