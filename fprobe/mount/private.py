"""The tree in a mount namespace of this process's own, where it has the paths that scripts for the kernel's tracefs use."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fprobe.mount import beside
from fprobe.mount.mounting import DEVICE, mount_here
from fprobe.mount.requests import Requests
from fprobe.mount.server import Server
from fprobe.mount.tree import MountedTree
from ftrace.tracing.tracefs.tree import Tracefs

_NEWNS, _NEWUSER = 0x20000, 0x10000000
_BIND, _REC, _PRIVATE = 1 << 12, 1 << 14, 1 << 18
_TRACING, _DEBUG = Path("/sys/kernel/tracing"), Path("/sys/kernel/debug")


def enter() -> None:
    """Leave for a mount namespace of one's own, and unless root a user namespace. Only while there is one thread.

    Raises OSError with what is missing.
    """
    try:
        os.close(os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC))
    except OSError as wrong:
        raise OSError(
            wrong.errno, f"{DEVICE} cannot be opened ({wrong.strerror}): the kernel's FUSE is needed"
        ) from None
    uid, gid = os.geteuid(), os.getegid()
    _call("unshare", _NEWNS | (_NEWUSER if uid else 0), why="namespaces are needed")
    if uid:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    _mount(None, "/", None, _REC | _PRIVATE)


@contextmanager
def mounted(tree: Tracefs) -> Iterator[Path]:
    """Mount the tree on /sys/kernel/tracing, or where there is none on a directory of its own, which is the result."""
    entries = beside.add_to(tree)
    made = None if _TRACING.is_dir() else Path(tempfile.mkdtemp(prefix="tracefs-"))
    place = made or _TRACING
    device = mount_here(place)
    server = Server(device, Requests(MountedTree(tree)), None)
    try:
        _lay_over(place, entries)
        yield place
    finally:
        top = os.open(place, os.O_PATH | os.O_CLOEXEC)
        _libc().umount2(os.fsencode(place), 2)
        server.stop(lambda: os.statvfs(top))
        os.close(device)
        os.close(top)
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)


def signal_others(number: int) -> None:
    """Send a signal to all other processes of this mount namespace: they were started in it."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (
                int(process.name) != os.getpid()
                and (process / "ns/mnt").readlink() == Path("/proc/self/ns/mnt").readlink()
            ):
                os.kill(int(process.name), number)


def _lay_over(place: Path, entries: dict[str, Any]) -> None:
    if _DEBUG.is_dir():
        _mount("none", str(_DEBUG), "tmpfs", 0)
        for name, source in (("tracing", place), ("kprobes", place / beside.DIRECTORY / "kprobes")):
            (_DEBUG / name).mkdir()
            _mount(str(source), str(_DEBUG / name), None, _BIND)
    beside.lay_over(place)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: Any, why: str) -> None:
    if getattr(_libc(), name)(*arguments):
        number = ctypes.get_errno() or errno.EPERM
        raise OSError(number, f"{name}() fails ({os.strerror(number)}): {why}")


def _mount(source: str | None, place: str, kind: str | None, flags: int) -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, place, kind)]
    _call("mount", *words, flags, None, why=f"{place} cannot be mounted on")
