"""The part inside the program: restores the environment and attaches the probes, before the program's first line runs.

Child processes get the launcher's environment variables, also those that get an environment of their own.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from fprobe.run import session
from fprobe.run.tracee import own_modules

_ENVIRONMENT = 5
"""Index of the environment among the arguments of _posixsubprocess.fork_exec, which is a private function of Python's."""
_permanent: list[Any] = []
"""Objects that must live as long as the process."""


def start(directory: str, modules: Sequence[str], hide_environment: Callable[[], None]) -> None:
    """Restore the environment and attach the probes that the launcher requests. Errors go to the journal; the program continues.

    `directory`: the entry of PYTHONPATH in which this module's start file was found. `modules`: names of the modules that
    the program would have now. `hide_environment`: removes our variables from `os.environ`.
    """
    address = os.environ.get(session.VARIABLE, "")
    if address.count(":") != 2:  # not started by a launcher
        hide_environment()
        return
    collects = gc.isenabled()
    gc.disable()  # hundreds of modules are imported, and none of them is garbage
    try:
        hide_environment()
        settings = session.settings(address)
        session.note(address, argv=sys.orig_argv, parent=os.getppid(), doing="preparing the probes")
        if settings.mount and os.getppid() == int(address.split(":")[0]):
            mount(settings.mount)  # before children are covered: the one that unmounts is not the program's
        cover_children(address, directory)
        arm(address, settings)
        with _unseen():
            own_modules.unshadow(modules)
    except Exception as error:  # must not stop the program
        session.note(address, error=f"{type(error).__name__}: {error}")
    finally:
        with _unseen():
            session.note(address, armed=True)
            session.wait_for_terminal(address)
        if collects:
            gc.enable()


def _unseen() -> AbstractContextManager[None]:
    """Within it, probes see nothing of what this thread does; there may be none."""
    if not _permanent:
        return nullcontext()
    from ftrace.core.runtime import runtime

    return runtime().unseen()


def mount(directory: str) -> None:
    """Mount the tree of the program that the launcher has started. Raises OSError."""
    from fprobe.run.tracee.exit_handlers import not_traced

    with not_traced():
        from fprobe.tracefs import mount

        _permanent.append(mount(directory))


def arm(address: str, settings: session.Settings) -> None:
    """Attach probes to loaded functions, and watch for those that are loaded later."""
    if not settings.arms:
        return
    from fprobe.run.tracee.exit_handlers import not_traced

    with not_traced():
        from fprobe.run.tracee.arming import Arming, keep_llvm_out, keep_quiet
        from sandbox.symbols.perfmap import perf_map

        perf_map.is_wanted = settings.perf_map
        keep_quiet(address)
        keep_llvm_out(settings)
        arming = Arming(address, settings)
        _permanent.append(arming)
        arming.begin()


def cover_children(address: str, directory: str) -> None:
    """Make subprocess and multiprocessing pass our variables on, and enter each process that they start in the journal."""
    import _posixsubprocess

    original = _posixsubprocess.fork_exec

    def fork_exec(*arguments: Any) -> Any:
        given = list(arguments)
        if not isinstance(given[_ENVIRONMENT], list | tuple | type(None)):
            reason = f"argument {_ENVIRONMENT} of this Python's _posixsubprocess.fork_exec is no environment"
            session.note(address, error=f"{reason}: child processes are not probed")
            return original(*arguments)
        given[_ENVIRONMENT] = _environment(given[_ENVIRONMENT], address, directory)
        pid = original(*given)
        session.note(address, started=pid, command=[_text(word) for word in given[0]])
        return pid

    _replace_function(original, fork_exec)


def _replace_function(original: Callable[..., Any], wrapper: Callable[..., Any]) -> None:
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
    others = [entry for entry in given if not entry.startswith((b"PYTHONPATH=", b"FPROBE_RUN"))]
    return others + [name + b"=" + value for name, value in variables(address, directory, before).items()]


def variables(address: str, directory: str, before: bytes | None) -> dict[bytes, bytes]:
    """The variables through which a Python process finds the launcher. `before`: PYTHONPATH without our entry."""
    path = os.fsencode(directory)
    found = {session.VARIABLE.encode(): address.encode(), b"PYTHONPATH": path}
    if before is not None:
        found[session.PYTHONPATH.encode()] = before
        found[b"PYTHONPATH"] = path + b":" + before if before else path  # an empty entry is the current directory
    return found


def _text(word: bytes | str) -> str:
    return os.fsdecode(word)
