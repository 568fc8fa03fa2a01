"""The Pythonic face: kprobes and kretprobes as context managers and decorators."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple, TypeVar

from ftrace.attaching import Attaching
from ftrace.handlers.python_handler import HandlerErrors
from kprobes import departures, registration, returns
from kprobes.breakpoint.patching import patching
from kprobes.counting import Count, PythonCount, is_python
from kprobes.handler_types import FaultHandler, PostHandler, PreHandler, ReturnEntryHandler, ReturnHandler
from kprobes.probe import KPROBE_FLAG_DISABLED, KPROBE_FLAG_GONE, kprobe
from kprobes.registration import disable_kprobe, enable_kprobe, unregister_kprobes
from kprobes.return_probe import kretprobe
from kprobes.returns import unregister_kretprobes
from kprobes.targets import Target, Where, has_glob, is_followed, may_follow, places
from sandbox.images.coming import unfollow
from sandbox.jit.arrivals import follow

_REFUSED = (errno.EINVAL, errno.EILSEQ, errno.EOPNOTSUPP, errno.ENOSPC)
"""What the place is at fault for, not the process: a glob passes over it."""

This = TypeVar("This", bound="_Probes")


class Skipped(NamedTuple):
    """A function that a glob matches and that cannot be probed; `reason` is the sentence of the refusal."""

    name: str
    reason: str


class _Probes(Attaching):
    """A probe at each place of a target. `target`: as given; `skipped`: what its globs match that cannot be probed."""

    _prepare: ClassVar[Callable[[], None]]
    """What comes before the locks of a registration."""
    _put_on: ClassVar[Callable[[Any], None]]
    _unregister: ClassVar[Callable[[list[Any]], None]]

    def __init__(self, target: Target, make: Callable[[Where], Any], count: Count | PythonCount | None) -> None:
        self.target = target
        self.skipped: list[Skipped] = []
        self._make = make
        self._count = count
        self._before = 0
        self._wheres = [] if has_glob(target) else places(target)
        self._probes = [make(where) for where in self._wheres]

    @property
    def hits(self) -> int:
        """How often a handler was called since the last `attach`: before the instruction, or where a function returns.

        Raises ValueError for handlers in native code or C, which nobody counts.
        """
        if self._count is None:
            raise ValueError(
                "hits of native and C handlers are not counted: count in the handler, or give action=Count()"
            )
        return self._count.hits - self._before

    @property
    def nmissed(self) -> int:
        """Hits that called nobody: a kprobe was being handled already or, for returns, no instance was free."""
        return sum(probe.nmissed for probe in self._probes)

    @property
    def errors(self) -> HandlerErrors:
        """What Python handlers have raised, at all places: `errors.first`, `errors.count`."""
        if len(self._probes) == 1:
            return self._probes[0].errors  # type: ignore[no-any-return]
        total = HandlerErrors()
        for probe in self._probes:
            total.count += probe.errors.count
            total.first = total.first or probe.errors.first
        return total

    def attach(self: This) -> This:
        """Attach now, at all places or, if that fails, at none. What a glob matches and cannot be probed is in `skipped`.

        Raises OSError as the registration does, EINVAL if nothing that a glob matches can be probed; LookupError for a
        glob that matches nothing. A target of a JIT compiler (`numba:...`) is followed until `detach`: code that is compiled
        later is probed, too, before it runs. It need not be compiled at all yet, if Numba knows a function of that name.
        """
        type(self)._prepare()
        if is_followed(self.target):
            departures.free_leavings()
            follow(self._extend)
        try:
            with self._all_or_none() as done:
                if not any(probe.registered for probe in self._probes):
                    self._renew()
                for where, probe in zip(self._wheres, self._probes, strict=True):
                    self._attach_one(where, probe, done)
        except BaseException:
            unfollow(self._extend)
            raise
        self._probes = done
        self._watch_limit()
        return self

    def _extend(self) -> None:
        """Code has come: probe what of it is meant."""
        self._drop_gone()
        with self._all_or_none() as done:
            there = {_kprobe_of(probe).addr for probe in self._probes}
            new = [where for where in self._places() if where not in self._wheres or where.addr not in there | {None}]
            self._wheres = list(dict.fromkeys([*self._wheres, *new]))
            for where in new:
                self._attach_one(where, self._make(where), done)
        self._probes = self._probes + done

    def _drop_gone(self) -> None:
        """Code at whose place there may be other code now."""
        gone = [probe for probe in self._probes if _kprobe_of(probe).flags & KPROBE_FLAG_GONE]
        if gone:
            type(self)._unregister(gone)
            self._probes = [probe for probe in self._probes if probe not in gone]

    @contextlib.contextmanager
    def _all_or_none(self) -> Iterator[list[Any]]:
        """What is put into the list is taken off again if the block raises."""
        done: list[Any] = []
        try:
            with patching():
                yield done
        except BaseException:
            type(self)._unregister(done)
            raise

    def _places(self) -> list[Where]:
        try:
            return places(self.target)
        except LookupError:
            if may_follow(self.target):
                return []
            raise

    def _renew(self) -> None:
        """The probes as they were declared: a glob is looked up again; a registration has left addresses and flags."""
        self._before = self._count.hits if self._count else 0
        self.skipped = []
        if has_glob(self.target):
            self._wheres = self._places()
        self._probes = [self._make(where) for where in self._wheres]

    def _attach_one(self, where: Where, probe: Any, done: list[Any]) -> None:
        try:
            type(self)._put_on(probe)
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
        """Detach; when this returns no handler runs any more. Does nothing if it is not attached.

        Calls whose return is waited for return without the handler.
        """
        unfollow(self._extend)
        registered = [probe for probe in self._probes if probe.registered]
        if registered:
            type(self)._unregister(registered)
            self._tell_limit()


def _kprobe_of(probe: kprobe | kretprobe) -> kprobe:
    return probe.kp if isinstance(probe, kretprobe) else probe


class Attachment(_Probes):
    """Kprobes and where they are to be."""

    _prepare = registration.make_ready
    _put_on = registration.put_on
    _unregister = unregister_kprobes

    @property
    def probes(self) -> list[kprobe]:
        """The kprobes, one for each place; for a glob, those of the last `attach`."""
        return list(self._probes)

    @property
    def p(self) -> kprobe:
        """The kprobe, of several the first. Raises IndexError before a glob is attached."""
        return self._probes[0]  # type: ignore[no-any-return]

    @property
    def address(self) -> int | None:
        """Where it is; of several, the first."""
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
    """Kretprobes and the functions whose returns they are on."""

    _prepare = returns.make_ready
    _put_on = returns.put_on
    _unregister = unregister_kretprobes

    @property
    def probes(self) -> list[kretprobe]:
        """The kretprobes, one for each function; for a glob, those of the last `attach`."""
        return list(self._probes)

    def _limit_missed(self) -> str:
        if not self.nmissed:
            return ""
        why = f"more than maxactive={self.rp.maxactive:,} calls were waiting to return"
        return f"the kretprobe on {self.target!r} missed {self.nmissed:,} calls: {why}; give attach_return() a larger maxactive"

    @property
    def rp(self) -> kretprobe:
        """The kretprobe, of several the first. Raises IndexError before a glob is attached."""
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
    """Handlers before and after an instruction, or at several places.

        with kprobes.attach("vfs_read+0x10", pre=lambda p, regs: print(regs.ax)) as probe:
            module["demo_main"](10)
        print(probe.hits)

    `target`: `symbol`, `symbol+offset`, `module:symbol`, `libz:deflate`, a glob (`vfs_*`, `libz:crc32*`), an address, or a
    list of these. `pre(p, regs)`: what it returns is 0 or None to go on, anything else to go on at regs.ip instead of
    executing the instruction. `post(p, regs, flags)`. `fault(p, regs, trapnr)`. `action`: `Count()` in place of handlers.
    `python_unsafe`: Python handlers may be in the C library, the dynamic loader or the interpreter, and may hang there.
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
    """Handlers at the return, and at the entry, of functions.

        with kprobes.attach_return("vfs_read", lambda ri, regs: print(kprobes.regs_return_value(regs))):
            module["demo_main"](10)

    `target`, `action`, `python_unsafe`: as for `attach`. `handler(ri, regs)` runs when a call returns, `entry(ri, regs)`
    when it begins; non-zero: no `handler` for that call. `ri.data` are `data_size` bytes that they share. `maxactive`: calls
    of each function that can be waited for at the same time. Attaching raises OSError as `register_kretprobe` does.
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
    """The handlers, with the calls of `first`, or of `second` if that is None, counted."""
    return (first, calls.counting(second)) if first is None else (calls.counting(first), second)


def _check_action(action: Count | None, *handlers: Any) -> None:
    if action is None:
        return
    if not isinstance(action, Count):
        raise TypeError(f"{action!r} is no action of kprobes: give kprobes.Count()")
    if any(handler is not None for handler in handlers):
        raise ValueError("give handlers or an action, not both")
