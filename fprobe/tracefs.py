"""The whole tree: ftrace's files and those of kprobe and fprobe events.

    from fprobe.tracefs import tracefs

    tracefs.write("dynamic_events", "f:opens vfs_open* flags=$arg2:x32", append=True)

The environment variable FPROBE_EVENTS has start-up definitions (ftrace.tracing.events.boot).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fprobe.events.lines import register_fprobe_events
from ftrace.tracing.events.boot import awaits_library, setup_boot_events, try_again
from ftrace.tracing.tracefs.tree import tracefs
from kprobes.events.lines import register_kprobe_events
from kprobes.library_loads import LibraryWatch

register_kprobe_events()
register_fprobe_events()


def _library_loaded() -> None:
    try_again()
    _library_watch.end_unless_needed()


_library_watch = LibraryWatch(_library_loaded, awaits_library)
setup_boot_events(os.environ.get("FPROBE_EVENTS", ""))
_library_watch.begin()

if TYPE_CHECKING:
    from fprobe.mount.mounting import Mount


def mount(directory: str | Path, before_request: Callable[[str, int], None] | None = None) -> Mount:
    """Mount the tree on an empty directory of this user's, for other programs: cat, echo, shell scripts, trace-cmd.

    Returns a context manager; its `close` unmounts the tree, as does the end of this process, however it ends. Only this user
    has access. `before_request(path, pid)` is called before each request about a file: pid is the thread that makes it. Raises
    OSError for a directory that cannot be mounted on, and without FUSE.
    """
    from fprobe.mount.mounting import Mount

    return Mount(tracefs, Path(directory), before_request)


__all__ = ["mount", "tracefs"]
