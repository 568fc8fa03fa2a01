"""The base of all attachments: a context manager and a decorator."""

from __future__ import annotations

import abc
import atexit
import contextlib
import functools
import logging
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from ftrace.core.filters.image_functions import why_none
from ftrace.core.filters.inlined import InlinedCalls
from ftrace.core.handlers.python_handler import HandlerErrors
from ftrace.core.summary import Summary
from sandbox.process.fork import ProcessBound
from sandbox.process.once import cached_property, once

This = TypeVar("This", bound="Attaching")
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


log = logging.getLogger("fprobe")

_attached: weakref.WeakSet[Attaching] = weakref.WeakSet()


@once
def _warn_at_exit() -> None:
    atexit.register(_warn_all)


def _warn_all() -> None:
    for attaching in list(_attached):
        attaching._warn_of_limit()
        attaching._tell_of_absent()


class Attaching(Summary, ProcessBound, abc.ABC):
    """Attached inside the `with` block, or while the decorated function runs."""

    target: Any
    _has_warned = False

    @property
    @abc.abstractmethod
    def hits(self) -> int:
        """Calls that were seen."""

    @property
    @abc.abstractmethod
    def missed(self) -> int:
        """Calls whose handlers, or some of them, were not called."""

    @property
    @abc.abstractmethod
    def errors(self) -> HandlerErrors:
        """Exceptions of Python handlers: `errors.first`, `errors.count`."""

    @property
    @abc.abstractmethod
    def targets(self) -> list[str]:
        """The functions or places at which it has probes."""

    skipped: Any
    """What the target names and cannot be probed, each with the reason: a list of `Skipped`."""

    def _limit_missed(self) -> str:
        """A sentence on misses that a higher limit would prevent, with the limit's name; '' if there are none."""
        return ""

    def _warn_of_limit(self) -> None:
        """Warn of such misses, once for each attachment."""
        missed = "" if self._has_warned else self._limit_missed()
        if missed:
            self._has_warned = True
            log.warning("%s", missed)

    @cached_property
    def _inlined(self) -> InlinedCalls:
        return InlinedCalls()

    def _tell_of_inlined(self, *, is_over: bool = False) -> None:
        """Warn of calls that the probes do not see, because Numba has inlined them; of each caller once."""
        items = self.target if isinstance(self.target, (list, tuple)) else [self.target]
        patterns = [item for item in items if isinstance(item, str)]
        for sentence in self._inlined.untold(patterns, with_globs=is_over):
            log.warning("%s", sentence)

    def _absent(self) -> list[str]:
        """The patterns for which it is still waiting: of functions that JIT compilers may compile later."""
        return []

    def _tell_of_absent(self) -> None:
        """Warn of functions that were waited for and have not come."""
        for pattern in self._absent():
            with contextlib.suppress(OSError):
                if reason := why_none(pattern):
                    log.warning("%r was attached to nothing: %s", pattern, reason)

    def _watch_limit(self) -> None:
        """Warn when the process ends, if it is still attached then."""
        _warn_at_exit()
        _attached.add(self)

    def _end_limit(self) -> None:
        """Warn now, and not at the process's end. Misses during the detachment have another cause."""
        self._warn_of_limit()
        _attached.discard(self)

    @abc.abstractmethod
    def attach(self: This) -> This:
        """Attach now. Raises OSError as the registration does."""

    @abc.abstractmethod
    def detach(self) -> None:
        """Detach; when this returns no handler runs any more."""

    def __enter__(self: This) -> This:
        return self.attach()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.detach()

    def __call__(self, function: Decorated) -> Decorated:
        @functools.wraps(function)
        def probed(*arguments: Any, **options: Any) -> Any:
            with self:
                return function(*arguments, **options)

        return probed  # type: ignore[return-value]  # it has the signature of what it wraps
