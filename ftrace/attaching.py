"""What every kind of attachment has in common: a context manager and a decorator."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from sandbox.process.process_bound import ProcessBound

This = TypeVar("This", bound="Attaching")
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class Attaching(ProcessBound, abc.ABC):
    """Attached inside the `with` block, or while the decorated function runs."""

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
