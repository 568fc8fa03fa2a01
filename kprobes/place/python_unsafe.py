"""Refusal of Python handlers on the functions that the interpreter itself runs on."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from ftrace.sites.refusals import runs_python

if TYPE_CHECKING:
    from kprobes.place.placing import Place


def check(place: Place, calls_python: bool, allowed: bool) -> None:
    """Raise OSError(EINVAL) for a Python handler in the C library, the dynamic loader or the interpreter.

    A thread there may hold a lock that the handler needs, or be in the middle of a change: it would deadlock with itself.
    """
    if calls_python and not allowed and runs_python(place.symbol.module):
        raise OSError(
            errno.EINVAL,
            f"{place} cannot have a Python handler (python-unsafe): Python itself runs on {place.symbol.module}; give a "
            "native handler, or python_unsafe=True",
        )
