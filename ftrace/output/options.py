"""trace_options: the switches of a trace array, with the kernel's names, order and defaults."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator

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
    ("test_nop_accept", False),
    ("test_nop_refuse", False),
)
"""Those of every trace array, then those of the tracer nop."""
_REFUSED = "test_nop_refuse"
_LONGEST = 63


class TraceOptions:
    """The switches of one trace array. `changed(name, on)` is called when one is set."""

    def __init__(self, changed: Callable[[str, bool], None]) -> None:
        self._on = dict(_OPTIONS)
        self._changed = changed

    def __getitem__(self, name: str) -> bool:
        return self._on[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._on)

    def set(self, name: str, on: bool) -> None:
        """Set a switch. Raises OSError(EINVAL) for an unknown one, and for one that the tracer refuses."""
        if name not in self._on:
            raise OSError(errno.EINVAL, f"there is no trace option {name!r}; trace_options lists them")
        if on and name == _REFUSED:
            raise OSError(errno.EINVAL, f"the tracer nop refuses {name!r}, by its definition")
        self._on[name] = on
        self._changed(name, on)

    def read(self) -> str:
        """The file trace_options: a name for each line, with `no` in front if it is off."""
        return "".join(f"{'' if on else 'no'}{name}\n" for name, on in self._on.items())

    def write(self, text: str) -> None:
        """Write NAME or noNAME to trace_options. Raises OSError(EINVAL)."""
        if len(text) > _LONGEST:
            raise OSError(errno.EINVAL, f"{len(text)} characters were written; an option has at most {_LONGEST}")
        name = text.strip()
        if name not in self._on and name.startswith("no"):
            self.set(name[2:], False)
        else:
            self.set(name, True)
