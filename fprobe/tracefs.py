"""The whole tree: ftrace's files and those of kprobe and fprobe events.

from fprobe.tracefs import tracefs

tracefs.write("dynamic_events", "f:opens vfs_open* flags=$arg2:x32", append=True)
"""

from __future__ import annotations

from fprobe.events import register_fprobe_events
from ftrace.tracefs.tree import tracefs
from kprobes.events import register_kprobe_events

register_kprobe_events()
register_fprobe_events()

__all__ = ["tracefs"]
