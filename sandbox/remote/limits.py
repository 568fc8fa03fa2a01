"""Limits of another process that fprobe's part in it would exceed, read before anything there is touched."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from sandbox.remote.refusals import Refused

_DESCRIPTORS = 16
"""Descriptors that are open at one time while modules are imported and memory files are made."""
_MEMORY = 32 << 20
"""Bytes that are written at least: modules, code, counters."""
_THREADS = 2
_CGROUPS = Path("/sys/fs/cgroup")
_UNLIMITED = ("unlimited", "max")
_NEEDED = {"memory": (_MEMORY, errno.ENOMEM, "bytes of memory"), "pids": (_THREADS, errno.EAGAIN, "threads")}


class Limit(NamedTuple):
    """The files of a control group's limit. `reclaimed`: statistics of what is used and given up when it is needed."""

    most: str
    used: str
    statistics: str = os.devnull
    reclaimed: tuple[str, ...] = ()


_PIDS = Limit("pids.max", "pids.current")
_LIMITS = {
    False: {
        "memory": Limit("memory.max", "memory.current", "memory.stat", ("active_file", "inactive_file")),
        "pids": _PIDS,
    },
    True: {
        "memory": Limit(
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "memory.stat",
            ("total_active_file", "total_inactive_file"),
        ),
        "pids": _PIDS,
    },
}
"""By whether a controller has a tree of its own (version 1): its limits."""


def check(pid: int) -> None:
    """Raise Refused if the process has too little left of a limit."""
    try:
        _check_process(pid, dict(_limits(pid)))
    except FileNotFoundError:
        raise Refused(f"there is no process {pid}", errno.ESRCH) from None
    for group, limits in _groups(_membership(pid)):
        _check_group(pid, group, limits)


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


def _membership(pid: int) -> str:
    """What /proc says of the control groups that the process is in."""
    try:
        return Path(f"/proc/{pid}/cgroup").read_text(errors="replace")
    except OSError:
        return ""


def _groups(membership: str) -> Iterator[tuple[Path, Mapping[str, Limit]]]:
    """The directories of control groups, innermost first, and the limits that each may have."""
    for line in membership.splitlines():
        _, controllers, inside = line.split(":", 2)
        known = _LIMITS[bool(controllers)]
        limits = {name: known[name] for name in controllers.split(",") if name in known} if controllers else known
        top = _CGROUPS / controllers
        path = top / inside.strip("/")
        while limits and path.is_relative_to(top):
            yield path, limits
            path = path.parent


def _check_group(pid: int, group: Path, limits: Mapping[str, Limit]) -> None:
    for name, limit in limits.items():
        needed, number, shown = _NEEDED[name]
        left = _left(group, limit)
        if left is not None and left < needed:
            raise Refused(
                f"process {pid} is in a control group with {max(left, 0):,} {shown} left, and fprobe needs {needed:,}:"
                f" raise {group / limit.most}",
                number,
            )


def _left(group: Path, limit: Limit) -> int | None:
    """What is left of a limit, counting what can be reclaimed; None if there is none."""
    try:
        most = (group / limit.most).read_text().strip()
        if most in _UNLIMITED:
            return None
        return int(most) - int((group / limit.used).read_text()) + _reclaimed(group, limit)
    except (OSError, ValueError):
        return None


def _reclaimed(group: Path, limit: Limit) -> int:
    try:
        statistics = dict(line.split() for line in (group / limit.statistics).read_text().splitlines())
    except OSError:
        return 0
    return sum(int(statistics.get(name, 0)) for name in limit.reclaimed)
