"""Whether another process can open files that this one can: its root directory and its user may be others."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Sequence
from pathlib import Path

from sandbox.remote.refusals import Refused, read_status

_PATH = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_MISSING, _FORBIDDEN = 1, 2


def check(pid: int, files: Sequence[str]) -> None:
    """Raise Refused if the process cannot read one of these files. It is not touched."""
    status = read_status(pid)
    for file in files:
        if not Path(f"/proc/{pid}/root{file}").exists():
            raise Refused(
                f"process {pid} has another root directory (a container?), without fprobe's files: it has no {file};"
                " mount or install fprobe there under the same path",
                errno.ENOENT,
            )
    user, group = int(status["Uid"].split()[1]), int(status["Gid"].split()[1])
    if os.geteuid() == 0 != user:
        groups = [int(each) for each in status.get("Groups", "").split()]
        if denied := _denied(pid, files, user, group, groups):
            raise Refused(
                f"process {pid} belongs to user {user}, who cannot read fprobe's files: {denied};"
                " install fprobe where that user can read it",
                errno.EACCES,
            )


def _denied(pid: int, files: Sequence[str], user: int, group: int, groups: Sequence[int]) -> str:
    """The first of the files that this user cannot read; "" if there is none. Tried in a process of that user."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            with contextlib.suppress(OSError):
                os.setgroups(groups)
            os.setresgid(group, group, group)
            os.setresuid(user, user, user)
            denied = next((file for file in files if not os.access(f"/proc/self/root{file}", os.R_OK)), "")
            os.write(writer, os.fsencode(denied))
        finally:
            os._exit(0)
    os.close(writer)
    found = os.read(reader, 4096)
    os.close(reader)
    os.waitpid(child, 0)
    return os.fsdecode(found)


def root_of(pid: int) -> int | None:
    """A descriptor of the process's root directory, which stays valid when it has ended; None if it is this process's.

    Raises OSError if the process has ended.
    """
    descriptor = os.open(f"/proc/{pid}/root", _PATH)
    own, theirs = Path("/").stat(), os.fstat(descriptor)
    is_same = (own.st_dev, own.st_ino) == (theirs.st_dev, theirs.st_ino)
    if is_same and _namespace(os.getpid()) == _namespace(pid):
        os.close(descriptor)
        return None
    return descriptor


def _namespace(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/mnt")  # noqa: PTH115  # the text of the link
