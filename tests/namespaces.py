"""Mounting in tests: only in a mount namespace of its own."""

from __future__ import annotations

import os
import subprocess

import pytest

UNSHARE = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
"""Runs a command in such a namespace."""


def _can_mount() -> bool:
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError:
        return False
    return subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0


needs_fuse = pytest.mark.skipif(not _can_mount(), reason="needs /dev/fuse and a mount namespace")
