"""A process of its own that waits for the end of a thread that serves a mount, and unmounts it: watcher.py PID TID DIR N.

It waits for a thread, since the process PID ends when all its threads have: one that waits for its own mount's answer cannot.
It imports nothing of ours, so that it starts at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

_FORCE, _DETACH = 1, 2
_THREAD = os.O_EXCL
"""PIDFD_THREAD: the end of one thread (Linux 6.9)."""


def connection(directory: str) -> int:
    """The number of a mount's FUSE connection: the minor number of its device. It does not ask the server."""
    wanted = os.fsencode(directory).replace(b"\\", b"\\134").replace(b" ", b"\\040")
    wanted = wanted.replace(b"\t", b"\\011").replace(b"\n", b"\\012")
    with Path("/proc/self/mountinfo").open("rb") as mounts:
        numbers = [line.split()[2] for line in mounts if line.split()[4] == wanted]
    return int(numbers[-1].split(b":")[1]) if numbers else -1


def abort(number: int) -> None:
    """End the connection: whoever waits for an answer gets an error, also if a fork of the server has the device open."""
    with contextlib.suppress(OSError):
        Path(f"/sys/fs/fuse/connections/{number}/abort").write_text("1")


def unmount(directory: str) -> None:
    """Unmount, if it is mounted. Whoever waits for an answer gets an error, as root can do; files stay open, and fail."""
    if os.geteuid() == 0:
        ctypes.CDLL(None).umount2(os.fsencode(directory), _FORCE | _DETACH)
    else:
        subprocess.run(["fusermount3", "-u", "-z", "-q", "--", directory], check=False, stderr=subprocess.DEVNULL)


def _watch(process: int, thread: int, directory: str, number: int) -> None:
    for each in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(each, signal.SIG_IGN)
    with contextlib.suppress(ProcessLookupError):  # it has ended already
        select.select([_descriptor(process, thread)], [], [])
    abort(number)
    unmount(directory)


def _descriptor(process: int, thread: int) -> int:
    """A descriptor that can be read when the thread has ended; on older kernels, when its process has."""
    try:
        return os.pidfd_open(thread, _THREAD)
    except OSError as refused:
        if refused.errno != errno.EINVAL:
            raise
        return os.pidfd_open(process)


if __name__ == "__main__":
    _watch(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
