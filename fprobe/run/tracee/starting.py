"""The part inside the program: restores the environment and attaches the probes, before the program's first line runs."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from fprobe.run import session
from fprobe.run.tracee import children, own_modules
from sandbox.process import private_names

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
        private_names.check()
        hide_environment()
        settings = session.settings(address)
        session.note(address, argv=sys.orig_argv, parent=os.getppid(), doing="preparing the probes")
        if settings.mount and os.getppid() == int(address.split(":")[0]):
            mount(settings.mount)  # before children are covered: the one that unmounts is not the program's
        children.cover(address, directory, _note)
        arm(address, settings)
        with _unseen():
            own_modules.unshadow(modules)
    except Exception as error:  # must not stop the program
        session.note(address, argv=sys.orig_argv, error=f"{type(error).__name__}: {error}")
    finally:
        _note(address, armed=True)
        with _unseen():
            session.wait_for_terminal(address)
        _leave_out_of_collections()
        if collects:
            gc.enable()


def _leave_out_of_collections() -> None:
    """What exists now stays as long as the process: the program's collections, and those at its end, would look at all of it.

    Not without a GIL, where Python 3.13 crashes at exit after that.
    """
    if "t" not in sys.abiflags:
        gc.freeze()


def _unseen() -> AbstractContextManager[None]:
    """Within it, probes see nothing of what this thread does; there may be none."""
    if not _permanent:
        return nullcontext()
    from ftrace.core.runtime import runtime

    return runtime().unseen()


def _note(address: str, **entry: Any) -> None:
    with _unseen():
        session.note(address, **entry)


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
