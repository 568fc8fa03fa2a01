"""attach() and attach_return(): kprobes and kretprobes as context managers and decorators."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, TypeVar

from ftrace.core.attaching import Attaching
from ftrace.core.handlers.python_handler import HandlerErrors
from ftrace.core.sites.locations import Skipped
from ftrace.core.summary import Row, shortened
from kprobes import jit_unloading, registration
from kprobes.breakpoint.patching import kprobe_mutex, patching
from kprobes.handlers.counting import Count, PythonCount, is_python
from kprobes.probe import KPROBE_FLAG_DISABLED, KPROBE_FLAG_GONE, FaultHandler, PostHandler, PreHandler, kprobe
from kprobes.registration import disable_kprobe, enable_kprobe, unregister_kprobes, unregister_kretprobes
from kprobes.return_probe import ReturnEntryHandler, ReturnHandler, kretprobe
from kprobes.targets import Target, Where, compiled_in, has_glob, is_followed, items_of, may_follow, places, symbol_of
from sandbox.images.jit_loading import follow, unfollow
from sandbox.process.gil import short_switch_interval
from sandbox.process.renamed import renamed

_REFUSED = (errno.EINVAL, errno.EILSEQ, errno.EOPNOTSUPP, errno.ENOSPC)
"""Errors that are due to the place, not to the process: a glob skips such a place."""

This = TypeVar("This", bound="_Probes")


class _Probes(Attaching):
    """A probe at each place of a target.

    `target`: as given. `skipped`: functions that its globs match and that cannot be probed.
    """

    _prepare: ClassVar[Callable[[], None]]
    """Called before a registration takes its locks."""
    _register_locked: ClassVar[Callable[[Any], None]]
    """Registers one probe, within `patching()`."""
    _unregister: ClassVar[Callable[[list[Any]], None]]

    nmissed = renamed("nmissed", "missed")

    def __init__(self, target: Target, make: Callable[[Where], Any], count: Count | PythonCount | None) -> None:
        self.target = target
        self.skipped: list[Skipped] = []
        self._make = make
        self._count = count
        self._before = 0
        self._found: set[str | int] = set()
        """What the target lists and has been there since it was attached."""
        self._awaited: list[str] = []
        """While it is attached: code of JIT compilers that the target lists."""
        self._wheres = [] if has_glob(target) else places(target)
        self._probes = [make(where) for where in self._wheres]

    def _summary_rows(self) -> list[Row]:
        attached = sum(probe.registered for probe in self._probes)
        rows: list[Row] = [("on", shortened(self.target)), ("state", "attached" if attached else "not attached")]
        rows += [("probes", attached)] if attached else []
        rows += [("hits", self.hits)] if self._count else []
        rows += [("errors", self.errors.count)] if self.errors.count else []
        return [*rows, ("missed", self.missed)]

    @property
    def hits(self) -> int:
        """Calls of the handler since the last `attach`: before the instruction or, for return probes, at the return.

        Raises ValueError for native and C handlers: their calls are not counted.
        """
        if self._count is None:
            raise ValueError(
                "hits of native and C handlers are not counted; count in the handler, or give action=Count()"
            )
        return self._count.hits - self._before

    @property
    def action(self) -> Count | None:
        """The action that it was given; None for handlers."""
        return self._count if isinstance(self._count, Count) else None

    @property
    def missed(self) -> int:
        """Hits whose handlers were not called: the thread was handling another kprobe."""
        return sum(probe.nmissed for probe in self._probes)

    @property
    def targets(self) -> list[str]:
        """The places at which it has probes, as `symbol+0xoffset`."""
        return [_kprobe_of(probe).where() for probe in self._probes if probe.registered]

    @property
    def errors(self) -> HandlerErrors:
        """Exceptions of Python handlers, at all places: `errors.first`, `errors.count`."""
        if len(self._probes) == 1:
            return self._probes[0].errors  # type: ignore[no-any-return]
        total = HandlerErrors()
        for probe in self._probes:
            total.count += probe.errors.count
            total.first = total.first or probe.errors.first
        return total

    @short_switch_interval()
    def attach(self: This) -> This:
        """Attach at all places or, if that fails, at none. Functions that a glob matches and that cannot be probed: `skipped`.

        Raises OSError as the registration does, and EINVAL if no function that a glob matches can be probed; LookupError for
        a glob that matches nothing. A target of a JIT compiler (`numba:...`) is followed until `detach`: code that is
        compiled later is probed before it runs. If Numba knows a function of that name, it need not be compiled yet.
        """
        type(self)._prepare()
        follows_now = False
        if is_followed(self.target):
            jit_unloading.free_killed()
            follows_now = follow(self._extend)
        try:
            with self._all_or_none() as done:
                self._refuse_if_attached()
                self._renew()
                for where, probe in zip(self._wheres, self._probes, strict=True):
                    self._attach_one(where, probe, done)
                self._probes = done
        except BaseException:
            if follows_now:
                unfollow(self._extend)
            raise
        self._awaited = compiled_in(self.target)
        self._watch_limit()
        self._tell_of_inlined()
        return self

    def _refuse_if_attached(self) -> None:
        if any(probe.registered for probe in self._probes):
            raise OSError(errno.EINVAL, f"the probes of {self.target!r} are already registered; detach them first")

    def _extend(self) -> None:
        """Probe newly compiled code that the target names."""
        self._drop_gone()
        with self._all_or_none() as done:
            there = {_kprobe_of(probe).addr for probe in self._probes}
            new = [where for where in self._places() if where not in self._wheres or where.addr not in there | {None}]
            self._wheres = list(dict.fromkeys([*self._wheres, *new]))
            for where in new:
                self._attach_one(where, self._make(where), done)
            self._probes = self._probes + done

    def _drop_gone(self) -> None:
        """Unregister probes whose code is gone: there may be other code at their addresses now."""
        gone = [probe for probe in self._probes if _kprobe_of(probe).flags & KPROBE_FLAG_GONE]
        if gone:
            type(self)._unregister(gone)
            with kprobe_mutex:
                self._probes = [probe for probe in self._probes if probe not in gone]

    @contextlib.contextmanager
    def _all_or_none(self) -> Iterator[list[Any]]:
        """Unregisters the probes in the list if the block raises."""
        done: list[Any] = []
        try:
            with patching():
                yield done
        except BaseException:
            type(self)._unregister(done)
            raise

    def _places(self) -> list[Where]:
        """Every place that the target names now. Raises as `places`, but not for what may be compiled later."""
        found: list[Where] = []
        for item in items_of(self.target):
            try:
                found += places([item])
            except LookupError:
                if not may_follow(item):
                    raise
            else:
                self._found.add(item)
        return list(dict.fromkeys(found))

    def _absent(self) -> list[str]:
        return [symbol_of(item) for item in self._awaited if item not in self._found]

    def _renew(self) -> None:
        """Make new probes: a glob may match other functions now, and a registration changes a probe's addr and flags."""
        self._before = self._count.hits if self._count else 0
        self.skipped, self._found = [], set()
        if has_glob(self.target):
            self._wheres = self._places()
        self._probes = [self._make(where) for where in self._wheres]

    def _attach_one(self, where: Where, probe: Any, done: list[Any]) -> None:
        try:
            type(self)._register_locked(probe)
        except OSError as error:
            if not where.chosen or error.errno not in _REFUSED:
                raise
            self.skipped.append(Skipped(str(where), error.strerror or str(error)))
            self._fail_if_none()
        else:
            done.append(probe)

    def _fail_if_none(self) -> None:
        if len(self.skipped) == len(self._wheres):
            first = self.skipped[0]
            why = f"none of {len(self.skipped)} functions that {self.target!r} matches can be probed; {first.name}"
            raise OSError(errno.EINVAL, f"{why}: {first.reason}")

    def detach(self) -> None:
        """Detach. When this returns, no handler runs any more. Does nothing if it is not attached.

        Calls in progress return without calling the return handler.
        """
        unfollow(self._extend)
        self._tell_of_absent()
        self._awaited = []
        with kprobe_mutex:  # all of them, not those that another thread has just registered
            registered = [probe for probe in self._probes if probe.registered]
        if registered:
            type(self)._unregister(registered)
            self._warn_of_limit()
            self._tell_of_inlined(is_over=True)


def _kprobe_of(probe: kprobe | kretprobe) -> kprobe:
    return probe.kp if isinstance(probe, kretprobe) else probe


class Attachment(_Probes):
    """The kprobes that `attach` makes."""

    _prepare = registration.init_kprobes
    _register_locked = registration.register_kprobe_locked
    _unregister = unregister_kprobes

    @property
    def probes(self) -> list[kprobe]:
        """The kprobes, one for each place; for a glob, those of the last `attach`."""
        return list(self._probes)

    @property
    def p(self) -> kprobe:
        """The kprobe; the first of several. Raises IndexError before a glob is attached."""
        return self._probes[0]  # type: ignore[no-any-return]

    @property
    def address(self) -> int | None:
        """Address of the (first) kprobe; None if it was given by name and has not been attached yet."""
        return self.p.addr

    def disable(self) -> None:
        """Stop calling the handlers for now."""
        for p in self._probes:
            disable_kprobe(p)

    def enable(self) -> None:
        """Call the handlers again."""
        for p in self._probes:
            enable_kprobe(p)


class ReturnAttachment(_Probes):
    """The kretprobes that `attach_return` makes."""

    _prepare = registration.init_kretprobes
    _register_locked = registration.register_kretprobe_locked
    _unregister = unregister_kretprobes

    @property
    def probes(self) -> list[kretprobe]:
        """The kretprobes, one for each function; for a glob, those of the last `attach`."""
        return list(self._probes)

    @property
    def missed(self) -> int:
        """Calls whose handlers were not called: no instance was free, or the thread was handling a kprobe at their entry."""
        return sum(probe.nmissed + probe.kp.nmissed for probe in self._probes)

    def _limit_missed(self) -> str:
        missed = sum(probe.nmissed for probe in self._probes)
        if not missed:
            return ""
        why = f"more than maxactive={self.rp.maxactive:,} calls were waiting to return"
        return (
            f"the kretprobe on {self.target!r} missed {missed:,} calls: {why}; give attach_return() a larger maxactive"
        )

    @property
    def rp(self) -> kretprobe:
        """The kretprobe; the first of several. Raises IndexError before a glob is attached."""
        return self._probes[0]  # type: ignore[no-any-return]


def attach(
    target: Target,
    *,
    pre: PreHandler | None = None,
    post: PostHandler | None = None,
    fault: FaultHandler | None = None,
    action: Count | None = None,
    disabled: bool = False,
    python_unsafe: bool = False,
) -> Attachment:
    """Call handlers before and after an instruction, at one place or several.

        with kprobes.attach("vfs_read+0x10", pre=lambda p, regs: print(regs.ax)) as probe:
            module["demo_main"](10)
        print(probe.hits)

    `target`: `symbol`, `symbol+offset`, `module:symbol`, `libz:deflate`, a glob (`vfs_*`, `libz:crc32*`), an address, or a
    list of these. `pre(p, regs)` runs before the instruction; if it returns anything but 0 or None, the instruction is not
    executed and the thread continues at regs.ip. `post(p, regs, flags)` runs after the instruction. `fault(p, regs, trapnr)`
    runs when the instruction faults. `action`: `Count()`, instead of handlers. `python_unsafe`: allow Python handlers on
    functions of the C library, the dynamic loader and the interpreter, where they may deadlock.
    Raises ValueError for handlers and an action together. Attaching raises OSError as `register_kprobe` does.
    """
    _check_action(action, pre, post, fault)
    count: Count | PythonCount | None = action
    if action is not None:
        pre = action.pre
    elif is_python(pre) or (pre is None and is_python(post)):
        count = calls = PythonCount()
        pre, post = _first_counted(calls, pre, post)

    def make(where: Where) -> kprobe:
        handlers: dict[str, Any] = {"pre_handler": pre, "post_handler": post, "fault_handler": fault}
        flags = KPROBE_FLAG_DISABLED * disabled
        return kprobe(**where.fields(), **handlers, flags=flags, python_unsafe=python_unsafe)

    return Attachment(target, make, count)


def attach_return(
    target: Target,
    handler: ReturnHandler | None = None,
    *,
    entry: ReturnEntryHandler | None = None,
    action: Count | None = None,
    data_size: int = 0,
    maxactive: int = 0,
    python_unsafe: bool = False,
) -> ReturnAttachment:
    """Call handlers at the return, and at the entry, of functions.

        with kprobes.attach_return("vfs_read", lambda ri, regs: print(kprobes.regs_return_value(regs))):
            module["demo_main"](10)

    `target`, `action`, `python_unsafe`: as for `attach`. `entry(ri, regs)` runs when a call begins; if it returns non-zero,
    `handler` is not called for that call. `handler(ri, regs)` runs when the call returns. `ri.data`: `data_size` bytes that
    the two share. `maxactive`: how many calls of a function may be in progress at once; further ones are missed.
    Attaching raises OSError as `register_kretprobe` does.
    """
    _check_action(action, handler, entry)
    count: Count | PythonCount | None = action
    if action is not None:
        handler = action.handler
    elif is_python(handler) or (handler is None and is_python(entry)):
        count = calls = PythonCount()
        handler, entry = _first_counted(calls, handler, entry)

    def make(where: Where) -> kretprobe:
        sizes: dict[str, Any] = {"data_size": data_size, "maxactive": maxactive}
        return kretprobe(**where.fields(), handler=handler, entry_handler=entry, **sizes, python_unsafe=python_unsafe)

    return ReturnAttachment(target, make, count)


def _first_counted(calls: PythonCount, first: Any, second: Any) -> tuple[Any, Any]:
    """Both handlers; calls of `first` are counted or, if that is None, calls of `second`."""
    return (first, calls.counting(second)) if first is None else (calls.counting(first), second)


def _check_action(action: Count | None, *handlers: Any) -> None:
    if action is None:
        return
    if not isinstance(action, Count):
        raise TypeError(f"{action!r} is not a kprobe action; give kprobes.Count()")
    if any(handler is not None for handler in handlers):
        raise ValueError("give handlers or an action, not both")
