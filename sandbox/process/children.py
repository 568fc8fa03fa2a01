"""Children that are started while library code is patched.

A child made by vfork or posix_spawn runs in this process's memory, with every signal blocked, until it executes another
program: a breakpoint hit before that kills it. A child made by fork has memory of its own, and our handlers.
"""

from __future__ import annotations

import functools


@functools.cache
def start_by_fork() -> None:
    """Let `subprocess` start children by fork from now on, by its documented switches.

    Other callers of vfork and posix_spawn (`os.posix_spawn`, C's `system`) are not changed: code that their children run
    before they execute must not have breakpoints.
    """
    import subprocess

    for switch in ("_USE_VFORK", "_USE_POSIX_SPAWN"):
        setattr(subprocess, switch, False)
