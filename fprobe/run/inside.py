"""The side in the program: the environment as it would be, then probes, before the program's first line."""

from __future__ import annotations

import gc
import os
import sys
from typing import Any

from fprobe.run import children, session


def start(directory: str) -> None:
    """Restore the environment and arm what the launcher asks for. The program runs on, whatever fails.

    `directory`: the one on PYTHONPATH that this was found in.
    """
    address = os.environ.get(session.VARIABLE, "")
    hide_environment()
    if address.count(":") != 2:  # nobody has launched it
        return
    collects = gc.isenabled()
    gc.disable()  # hundreds of modules are imported, and nothing of them is garbage
    try:
        settings = session.settings(address)
        session.note(address, argv=sys.orig_argv, parent=os.getppid())
        children.cover(address, directory)
        arm(address, settings)
    except Exception as error:  # the program is not to suffer from it
        session.note(address, error=f"{type(error).__name__}: {error}")
    finally:
        if collects:
            gc.enable()


def hide_environment() -> None:
    """Let `os.environ` be what it would be. The C library keeps ours, which children without an environment of their own get."""
    before = os.environ.get(session.PYTHONPATH)
    data, encode = os.environ._data, os.environ.encodekey  # type: ignore[attr-defined]  # below putenv
    for name in (session.VARIABLE, session.PYTHONPATH, "PYTHONPATH"):
        data.pop(encode(name), None)
    if before is not None:
        data[encode("PYTHONPATH")] = os.environ.encodevalue(before)


def arm(address: str, settings: session.Settings) -> None:
    """Put probes on what is loaded, and watch for what is loaded later."""
    if not (settings.patterns or settings.stacks or settings.handled or settings.events):
        return
    from fprobe.run.arming import Arming
    from fprobe.run.quiet import keep_quiet

    keep_quiet(address)
    _kept.append(Arming(address, settings))
    _kept[0].begin()


_kept: list[Any] = []
"""What has to live as long as the process."""
