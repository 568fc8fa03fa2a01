"""Mounting in tests: only in a mount namespace of its own."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

import pytest

UNSHARE = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
"""Runs a command in such a namespace."""

ENTER = """
import ctypes, os
from pathlib import Path
ids = os.geteuid(), os.getegid()
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x20000 | 0x10000000 * bool(ids[0])):  # CLONE_NEWNS, CLONE_NEWUSER
    raise OSError(ctypes.get_errno(), "unshare")
if ids[0]:
    Path("/proc/self/setgroups").write_text("deny")
    for name, number in zip(("uid_map", "gid_map"), ids):
        Path("/proc/self", name).write_text(f"0 {number} 1")
if libc.mount(b"none", b"/", None, 0x44000, None):  # MS_REC | MS_PRIVATE
    raise OSError(ctypes.get_errno(), "mount")
"""
"""Python source by which a process with one thread enters such a namespace itself."""


_NEWNS, _NEWUSER = 0x20000, 0x10000000
_PRIVATE, _REC = 1 << 18, 1 << 14


def enter() -> None:
    """As `UNSHARE`, for this process, which has one thread."""
    libc, uid, gid = ctypes.CDLL(None, use_errno=True), os.geteuid(), os.getegid()
    if libc.unshare(_NEWNS | (_NEWUSER if uid else 0)):
        raise OSError(ctypes.get_errno(), "unshare")
    if uid:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    if libc.mount(None, b"/", None, _REC | _PRIVATE, None):
        raise OSError(ctypes.get_errno(), "mount")


def _can_mount() -> bool:
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError:
        return False
    return subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0


needs_fuse = pytest.mark.skipif(not _can_mount(), reason="needs /dev/fuse and a mount namespace")
