"""Passes the launcher's environment variables on to child processes, also to those that get an environment of their own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from fprobe.run import session

_ENVIRONMENT = 5
"""Index of the environment among the arguments of _posixsubprocess.fork_exec."""


def cover(address: str, directory: str) -> None:
    """Make subprocess and multiprocessing pass our variables on, and enter each process that they start in the journal."""
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
    """The environment for a child that was `given` one. None: inherit the C library's environment, which has our variables.

    If `given` is None but the program has set PYTHONPATH, the child gets the program's environment with our variables.
    """
    if given is None:
        if "PYTHONPATH" not in os.environ:
            return None
        given = [name + b"=" + value for name, value in os.environb.items()]
    before = next((entry[11:] for entry in given if entry.startswith(b"PYTHONPATH=")), None)
    kept = [entry for entry in given if not entry.startswith((b"PYTHONPATH=", b"FPROBE_RUN"))]
    return kept + [name + b"=" + value for name, value in variables(address, directory, before).items()]


def variables(address: str, directory: str, before: bytes | None) -> dict[bytes, bytes]:
    """The variables through which a Python process finds the launcher. `before`: PYTHONPATH without our entry."""
    path = os.fsencode(directory)
    found = {session.VARIABLE.encode(): address.encode(), b"PYTHONPATH": path}
    if before is not None:
        found[session.PYTHONPATH.encode()] = before
        found[b"PYTHONPATH"] = path + b":" + before
    return found


def _text(word: bytes | str) -> str:
    return os.fsdecode(word)
