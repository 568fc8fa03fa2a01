"""A process of its own that waits for the end of the process that serves a mount, and unmounts it: python watcher.py PID DIR N.

It imports nothing of ours, so that it starts at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

_DETACH = 2


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
    """Unmount, if it is mounted. Files that are open stay open, and fail."""
    if os.geteuid() == 0:
        ctypes.CDLL(None).umount2(os.fsencode(directory), _DETACH)
    else:
        subprocess.run(["fusermount3", "-u", "-z", "-q", "--", directory], check=False, stderr=subprocess.DEVNULL)


def _watch(process: int, directory: str, number: int) -> None:
    for each in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(each, signal.SIG_IGN)
    with contextlib.suppress(ProcessLookupError):  # it has ended already
        select.select([os.pidfd_open(process)], [], [])
    abort(number)
    unmount(directory)


if __name__ == "__main__":
    _watch(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
