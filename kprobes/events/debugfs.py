"""The directory `kprobes` of debugfs, which is not part of tracefs.

from kprobes.events.debugfs import debugfs

print(debugfs.read("kprobes/list"))
"""

from __future__ import annotations

from collections.abc import Callable

from ftrace.tracefs.nodes import Directory, TextFile
from ftrace.tracefs.tree import Tracefs
from kprobes.listing import kprobes_blacklist, kprobes_list, read_kprobes_enabled, write_kprobes_enabled

_OWNER = 0o600


def _private(read: Callable[[], str], write: Callable[[str], None] | None = None) -> TextFile:
    """A file that only its owner can read."""
    file = TextFile(read, write)
    file.mode &= _OWNER
    return file


debugfs = Tracefs()
"""The process's debugfs."""
debugfs.add(
    "kprobes",
    Directory(
        {
            "blacklist": _private(kprobes_blacklist),
            "enabled": _private(read_kprobes_enabled, write_kprobes_enabled),
            "list": _private(kprobes_list),
        }
    ),
)
