"""The whole tree: ftrace's files and those of kprobe and fprobe events.

    from fprobe.tracefs import tracefs

    tracefs.write("dynamic_events", "f:opens vfs_open* flags=$arg2:x32", append=True)

The environment variable FPROBE_EVENTS has start-up definitions (ftrace.events.boot).
"""

from __future__ import annotations

import os

from fprobe.events.lines import register_fprobe_events
from ftrace.events.boot import setup_boot_events
from ftrace.tracefs.tree import tracefs
from kprobes.events.lines import register_kprobe_events

register_kprobe_events()
register_fprobe_events()
setup_boot_events(os.environ.get("FPROBE_EVENTS", ""))

__all__ = ["tracefs"]
