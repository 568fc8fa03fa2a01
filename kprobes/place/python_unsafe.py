"""Python handlers where the interpreter itself is running: refused, unless the probe's owner takes the risk."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from ftrace.refusals import runs_python

if TYPE_CHECKING:
    from kprobes.place.placing import Place


def check(place: Place, calls_python: bool, allowed: bool) -> None:
    """Raise OSError(EINVAL) for a Python handler in the C library, the dynamic loader or the interpreter.

    There a thread may hold a lock, or be amid a change, that the handler needs: it would wait for itself.
    """
    if calls_python and not allowed and runs_python(place.symbol.module):
        raise OSError(
            errno.EINVAL,
            f"{place} cannot have a Python handler (python-unsafe): {place.symbol.module} is what Python runs on; use a "
            "native handler, or python_unsafe=True",
        )
