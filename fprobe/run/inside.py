"""The part inside the program: restores the environment and attaches the probes, before the program's first line runs."""

from __future__ import annotations

import gc
import os
import sys
from typing import Any

from fprobe.run import children, session


def start(directory: str) -> None:
    """Restore the environment and attach the probes that the launcher requests. Errors go to the journal; the program continues.

    `directory`: the entry of PYTHONPATH in which this module's start file was found.
    """
    address = os.environ.get(session.VARIABLE, "")
    hide_environment()
    if address.count(":") != 2:  # not started by a launcher
        return
    collects = gc.isenabled()
    gc.disable()  # hundreds of modules are imported, and none of them is garbage
    try:
        settings = session.settings(address)
        session.note(address, argv=sys.orig_argv, parent=os.getppid())
        children.cover(address, directory)
        arm(address, settings)
    except Exception as error:  # must not stop the program
        session.note(address, error=f"{type(error).__name__}: {error}")
    finally:
        if collects:
            gc.enable()


def hide_environment() -> None:
    """Remove our variables from `os.environ`. They stay in the C library's environment, which children inherit by default."""
    before = os.environ.get(session.PYTHONPATH)
    data, encode = os.environ._data, os.environ.encodekey  # type: ignore[attr-defined]  # below putenv
    for name in (session.VARIABLE, session.PYTHONPATH, "PYTHONPATH"):
        data.pop(encode(name), None)
    if before is not None:
        data[encode("PYTHONPATH")] = os.environ.encodevalue(before)


def arm(address: str, settings: session.Settings) -> None:
    """Attach probes to loaded functions, and watch for those that are loaded later."""
    if not (settings.patterns or settings.stacks or settings.handled or settings.events):
        return
    from fprobe.run.arming import Arming
    from fprobe.run.quiet import keep_quiet

    keep_quiet(address)
    _kept.append(Arming(address, settings))
    _kept[0].begin()


_kept: list[Any] = []
"""Objects that must live as long as the process."""
