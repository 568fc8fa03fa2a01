"""trace_options: the switches of a trace array, with the kernel's names, order and defaults."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Set
from typing import Protocol

from ftrace.tracing.tracers.available import tracers
from ftrace.tracing.tracers.interfaces import Tracer, TracerFlags

_OPTIONS = (
    ("print-parent", True),
    ("sym-offset", False),
    ("sym-addr", False),
    ("verbose", False),
    ("raw", False),
    ("hex", False),
    ("bin", False),
    ("block", False),
    ("fields", False),
    ("trace_printk", True),
    ("annotate", True),
    ("userstacktrace", False),
    ("sym-userobj", False),
    ("printk-msg-only", False),
    ("context-info", True),
    ("latency-format", False),
    ("record-cmd", True),
    ("record-tgid", False),
    ("overwrite", True),
    ("disable_on_free", False),
    ("irq-info", True),
    ("markers", True),
    ("event-fork", False),
    ("trace_printk_dest", True),
    ("pause-on-trace", False),
    ("hash-ptr", True),
    ("function-trace", True),
    ("function-fork", False),
    ("display-graph", False),
    ("stacktrace", False),
)
"""The options of every trace array."""
_NOT_INHERITED = ("event-fork", "function-fork", "trace_printk_dest")
"""Options that are off in a new instance."""
_TOP_LEVEL = ("trace_printk", "printk-msg-only", "record-cmd")
"""Options that have no file in instances."""
_LONGEST = 63


class Options(Protocol):
    """Options to read."""

    def __getitem__(self, name: str, /) -> bool: ...


class TraceOptions:
    """The options of one trace array, and those of tracers, which all trace arrays share.

    `changed(name, on)` is called when an option is set, and may refuse that with OSError. `tracer()`: the current tracer.
    `inherited`: for an instance, the options of the top level.
    """

    def __init__(
        self,
        changed: Callable[[str, bool], None],
        tracer: Callable[[], Tracer],
        inherited: TraceOptions | None = None,
    ) -> None:
        self._is_top = inherited is None
        self._on: dict[str, bool] = (
            dict(_OPTIONS) if inherited is None else inherited._on | dict.fromkeys(_NOT_INHERITED, False)
        )
        self._changed = changed
        self._tracer = tracer

    def __getitem__(self, name: str) -> bool:
        if name in self._on:
            return self._on[name]
        return _flags_with(name)[name]

    def __iter__(self) -> Iterator[str]:
        """The names of the files in options/."""
        yield from (name for name in self._on if self._is_top or name not in _TOP_LEVEL)
        for tracer in reversed(tracers):
            yield from tracer.flags

    @property
    def present(self) -> Options:
        """A copy, for a reader that shows all records alike."""
        return {**self._on, **{name: tracer.flags[name] for tracer in tracers for name in tracer.flags}}

    @property
    def own(self) -> Set[str]:
        """The names of the trace array's own options, without those of tracers."""
        return self._on.keys()

    def set(self, name: str, on: bool) -> None:
        """Set an option of the trace array or of any tracer. Raises OSError(EINVAL) if it is unknown or refused."""
        if name not in self._on:
            _flags_with(name).set(name, on)
            self._changed(name, on)
        elif on != self._on[name]:
            self._on[name] = on
            try:
                self._changed(name, on)
            except OSError:
                self._on[name] = not on
                raise

    def put(self, name: str, on: bool) -> None:
        """Set one of the trace array's own options without calling `changed`."""
        self._on[name] = on

    def read(self) -> str:
        """The file trace_options: one name on each line, prefixed with `no` if it is off."""
        flags = self._tracer().flags
        shown = self._on | {name: flags[name] for name in flags}
        return "".join(f"{'' if on else 'no'}{name}\n" for name, on in shown.items())

    def write(self, text: str) -> None:
        """Write NAME or noNAME to trace_options: an option of the array or of the current tracer. Raises OSError(EINVAL)."""
        if len(text) > _LONGEST:
            raise OSError(errno.EINVAL, f"the option has {len(text)} characters; the maximum is {_LONGEST}")
        name = text.strip()
        bare = name.removeprefix("no")
        if bare not in self._on and bare not in self._tracer().flags:
            raise _unknown(name)
        self.set(bare, bare == name)


def _flags_with(name: str) -> TracerFlags:
    for tracer in tracers:
        if name in tracer.flags:
            return tracer.flags
    raise _unknown(name)


def _unknown(name: str) -> OSError:
    return OSError(errno.EINVAL, f"there is no trace option {name!r}; trace_options lists them")
