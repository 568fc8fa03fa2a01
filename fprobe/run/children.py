"""Children that the program starts with an environment of their own: they get ours beside it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from fprobe.run import session

_ENVIRONMENT = 5
"""Which argument of _posixsubprocess.fork_exec it is."""


def cover(address: str, directory: str) -> None:
    """From now on subprocess and multiprocessing pass our variables on, and the journal tells what they started."""
    import _posixsubprocess

    original = _posixsubprocess.fork_exec

    def fork_exec(*arguments: Any) -> Any:
        given = list(arguments)
        given[_ENVIRONMENT] = _environment(given[_ENVIRONMENT], address, directory)
        pid = original(*given)
        session.note(address, started=pid, command=[_text(word) for word in given[0]])
        return pid

    _replace(original, fork_exec)


def _replace(original: Callable[..., Any], wrapper: Callable[..., Any]) -> None:
    for name in ("_posixsubprocess", "subprocess"):
        module = sys.modules.get(name)
        for attribute in ("fork_exec", "_fork_exec"):
            if module is not None and getattr(module, attribute, None) is original:
                setattr(module, attribute, wrapper)


def _environment(given: Sequence[bytes] | None, address: str, directory: str) -> list[bytes] | None:
    """None: the child inherits the C library's, where ours are, unless the program has its own PYTHONPATH."""
    if given is None:
        if "PYTHONPATH" not in os.environ:
            return None
        given = [name + b"=" + value for name, value in os.environb.items()]
    before = next((entry[11:] for entry in given if entry.startswith(b"PYTHONPATH=")), None)
    kept = [entry for entry in given if not entry.startswith((b"PYTHONPATH=", b"FPROBE_RUN"))]
    return kept + [name + b"=" + value for name, value in variables(address, directory, before).items()]


def variables(address: str, directory: str, before: bytes | None) -> dict[bytes, bytes]:
    """The variables by which a Python finds us. `before`: PYTHONPATH as it would be."""
    path = os.fsencode(directory)
    found = {session.VARIABLE.encode(): address.encode(), b"PYTHONPATH": path}
    if before is not None:
        found[session.PYTHONPATH.encode()] = before
        found[b"PYTHONPATH"] = path + b":" + before
    return found


def _text(word: bytes | str) -> str:
    return os.fsdecode(word)
