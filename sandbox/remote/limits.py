"""Limits of another process that fprobe's part in it would exceed, read before anything there is touched."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

from sandbox.remote.refusals import Refused

_DESCRIPTORS = 16
"""Descriptors that are open at one time while modules are imported and memory files are made."""
_MEMORY = 32 << 20
"""Bytes that are written at least: modules, code, counters."""
_THREADS = 2
_CGROUPS = Path("/sys/fs/cgroup")
_UNLIMITED = ("unlimited", "max")


def check(pid: int) -> None:
    """Raise Refused if the process has too little left of a limit."""
    try:
        _check_process(pid, dict(_limits(pid)))
    except FileNotFoundError:
        raise Refused(f"there is no process {pid}", errno.ESRCH) from None
    for group in _groups(pid):
        _check_group(pid, group)


def _check_process(pid: int, limits: dict[str, str]) -> None:
    space = limits.get("Max address space", "unlimited")
    if space not in _UNLIMITED:
        raise Refused(
            f"process {pid} has a limit of its address space (ulimit -v, {int(space) >> 20:,} MiB), and counters are mapped"
            f" sparsely: lift it with prlimit --pid {pid} --as=unlimited",
            errno.ENOMEM,
        )
    size = limits.get("Max file size", "unlimited")
    if size not in _UNLIMITED:
        raise Refused(
            f"process {pid} has a limit of the size of files (ulimit -f, {int(size):,} bytes), and counters are in a memory file"
            f" with large holes: lift it with prlimit --pid {pid} --fsize=unlimited",
            errno.EFBIG,
        )
    most = limits.get("Max open files", "unlimited")
    is_open = len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208  # names only
    if most not in _UNLIMITED and is_open + _DESCRIPTORS > int(most):
        raise Refused(
            f"process {pid} has {is_open:,} of at most {int(most):,} files open, and fprobe needs {_DESCRIPTORS} descriptors:"
            f" raise the limit with prlimit --pid {pid} --nofile={is_open + 2 * _DESCRIPTORS}",
            errno.EMFILE,
        )


def _limits(pid: int) -> Iterator[tuple[str, str]]:
    """The names of the process's limits, and their soft values."""
    for line in Path(f"/proc/{pid}/limits").read_text().splitlines()[1:]:
        yield line[:26].strip(), line[26:47].strip()


def _groups(pid: int) -> Iterator[Path]:
    """The directories of the control groups (version 2) that the process is in, innermost first."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text(errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        if line.startswith("0::"):
            path = _CGROUPS / line[3:].strip("/")
            while path.is_relative_to(_CGROUPS):
                yield path
                path = path.parent


def _check_group(pid: int, group: Path) -> None:
    for name, needed, number, shown in (
        ("memory", _MEMORY, errno.ENOMEM, "bytes of memory"),
        ("pids", _THREADS, errno.EAGAIN, "threads"),
    ):
        left = _left(group, name)
        if left is not None and left < needed:
            raise Refused(
                f"process {pid} is in a control group with {max(left, 0):,} {shown} left, and fprobe needs {needed:,}:"
                f" raise {group / name}.max",
                number,
            )


def _left(group: Path, name: str) -> int | None:
    """What is left of a limit; None if there is none."""
    try:
        most = (group / f"{name}.max").read_text().strip()
        return None if most in _UNLIMITED else int(most) - int((group / f"{name}.current").read_text())
    except (OSError, ValueError):
        return None
