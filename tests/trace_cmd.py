"""trace-cmd, which mounts the machine's tracefs for almost every command: run where it can neither do that nor reach it."""

from __future__ import annotations

import shutil
import subprocess

import pytest

_NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount", "--propagation", "private")
"""Mounts stay in it, and in a user namespace the kernel refuses to mount tracefs at all."""
_COVERED = (
    'for each in /sys/kernel/tracing /sys/kernel/debug; do [ ! -d $each ] || mount -t tmpfs none $each; done; exec "$@"'
)


def reason() -> str:
    """Why it cannot be run here; '' if it can."""
    if shutil.which("trace-cmd") is None:
        return "trace-cmd is not installed: apt-get install trace-cmd"
    tried = subprocess.run([*_NAMESPACE, "true"], capture_output=True, text=True, check=False, timeout=60)
    return f"no namespace for trace-cmd: {tried.stderr.strip()}" if tried.returncode else ""


_missing = reason()
needs_trace_cmd = pytest.mark.skipif(bool(_missing), reason=_missing)


def command(*arguments: str) -> list[str]:
    """The words that run it there."""
    return [*_NAMESPACE, "sh", "-ec", _COVERED, "sh", "trace-cmd", *arguments]


def trace_cmd(*arguments: str, encoding: str = "utf-8") -> str:
    """Its standard output. Raises CalledProcessError."""
    return subprocess.run(command(*arguments), capture_output=True, encoding=encoding, check=True, timeout=60).stdout
