"""Child processes get the launcher's environment variables, also those that get an environment of their own.

This module imports none of ours: the start file loads it in sub-interpreters, too.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes milliseconds to import
    from collections.abc import Callable, Sequence
    from typing import Any

_ENVIRONMENT = 5
"""Index of the environment among the arguments of _posixsubprocess.fork_exec, which is a private function of Python's."""
_THIRD = 2
"""Index of the environment among those of os.execve and os.posix_spawn."""


def _not_noted(_address: str, **_entry: Any) -> None:
    """In a sub-interpreter: probes would count the calls that write into the journal."""


def cover(address: str, directory: str, note: Callable[..., None] = _not_noted) -> None:
    """Have Python's functions that start and execute programs pass our variables on, and name to `note` what they start."""
    _cover_subprocess(address, directory, note)
    _cover_programs(address, directory, note)


def _cover_subprocess(address: str, directory: str, note: Callable[..., None]) -> None:
    try:
        from _posixsubprocess import fork_exec as original
    except ImportError:
        note(address, error="this Python has no _posixsubprocess.fork_exec: child processes are not probed")
        return

    def fork_exec(*arguments: Any) -> Any:
        given = list(arguments)
        if not isinstance(given[_ENVIRONMENT], list | tuple | type(None)):
            reason = f"argument {_ENVIRONMENT} of this Python's _posixsubprocess.fork_exec is no environment"
            note(address, error=f"{reason}: child processes are not probed")
            return original(*arguments)
        given[_ENVIRONMENT] = _environment(given[_ENVIRONMENT], address, directory)
        pid = original(*given)
        note(address, started=pid, command=[_text(word) for word in given[0]])
        return pid

    _replace_function(original, fork_exec, ("_posixsubprocess", "subprocess"), ("fork_exec", "_fork_exec"))


def _cover_programs(address: str, directory: str, note: Callable[..., None]) -> None:
    """`subprocess` uses them, too, if it need not close descriptors."""

    def begun(argv: Any, pid: Any) -> None:
        note(address, started=pid, command=[os.fsdecode(word) for word in argv])

    def nothing(argv: Any, result: Any) -> None:
        """A program that could be executed does not return."""

    for original, after in ((os.posix_spawn, begun), (os.posix_spawnp, begun), (os.execve, nothing)):
        _replace(original, _covered(original, address, directory, after))
    _replace(os.execv, _covered_execv(os.execv, os.execve))


def _covered(original: Callable[..., Any], address: str, directory: str, after: Callable[[Any, Any], None]) -> Any:
    def call(*arguments: Any, **others: Any) -> Any:
        try:
            if len(arguments) > _THIRD:
                arguments = (
                    *arguments[:_THIRD],
                    _passed_on(arguments[_THIRD], address, directory),
                    *arguments[_THIRD + 1 :],
                )
            elif "env" in others:
                others["env"] = _passed_on(others["env"], address, directory)
            result = original(*arguments, **others)
        except BaseException as error:
            error.__traceback__ = None  # from Python 3.11 on it has no frame of ours then
            raise
        after(arguments[1], result)
        return result

    return call


def _covered_execv(execv: Callable[..., Any], execve: Callable[..., Any]) -> Any:
    """Where the program has a PYTHONPATH of its own, the C library's environment has no longer ours."""

    def call(*arguments: Any) -> Any:
        try:
            if "PYTHONPATH" in os.environ:
                try:  # noqa: SIM105  # contextlib takes a millisecond to import
                    execve(*arguments, os.environ)
                except Exception:  # which execv words differently
                    pass
            execv(*arguments)
        except BaseException as error:
            error.__traceback__ = None
            raise

    return call


def _replace(original: Callable[..., Any], wrapper: Callable[..., Any]) -> None:
    wrapper.__name__ = wrapper.__qualname__ = original.__name__
    wrapper.__doc__, wrapper.__module__ = original.__doc__, original.__module__
    _replace_function(original, wrapper, ("posix", "os"), (original.__name__,))


def _passed_on(env: Any, address: str, directory: str) -> Any:
    """An environment with our variables; as it is, if it is none, for the function that it is given to."""
    try:
        found = {os.fsencode(name): os.fsencode(value) for name, value in env.items()}
    except (AttributeError, TypeError, UnicodeError):
        return env
    before = found.pop(b"PYTHONPATH", None)
    others = {name: value for name, value in found.items() if not name.startswith(b"FPROBE_RUN")}
    return others | variables(address, directory, before)


def _replace_function(
    original: Callable[..., Any], wrapper: Callable[..., Any], modules: Sequence[str], attributes: Sequence[str]
) -> None:
    for module in filter(None, map(sys.modules.get, modules)):
        for attribute in attributes:
            if getattr(module, attribute, None) is original:
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
    others = [entry for entry in given if not entry.startswith((b"PYTHONPATH=", b"FPROBE_RUN"))]
    return others + [name + b"=" + value for name, value in variables(address, directory, before).items()]


def variables(address: str, directory: str, before: bytes | None) -> dict[bytes, bytes]:
    """The variables through which a Python process finds the launcher. `before`: PYTHONPATH without our entry."""
    path = os.fsencode(directory)
    found = {b"FPROBE_RUN": address.encode(), b"PYTHONPATH": path}
    if before is not None:
        found[b"FPROBE_RUN_PYTHONPATH"] = before
        found[b"PYTHONPATH"] = path + b":" + before if before else path  # an empty entry is the current directory
    return found


def _text(word: bytes | str) -> str:
    return os.fsdecode(word)
