"""Mounting the tree, and unmounting it however this process ends."""

from __future__ import annotations

import array
import atexit
import ctypes
import errno
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from fprobe.mount import watcher
from fprobe.mount.requests import Requests
from fprobe.mount.server import Server
from fprobe.mount.tree import MountedTree
from ftrace.tracing.tracefs.tree import Tracefs
from sandbox.process import fork

DEVICE = "/dev/fuse"
FUSERMOUNT = "fusermount3"
_NOSUID, _NODEV = 2, 4
_COMMAND_DESCRIPTOR = "_FUSE_COMMFD"


class Mount:
    """A mounted tree. A context manager; `close` unmounts it, as do the end of the process and of the watcher's patience."""

    def __init__(self, tree: Tracefs, directory: Path, before_request: Callable[[str, int], None] | None) -> None:
        self.directory = check_directory(directory)
        self._process = os.getpid()
        self._device = _mount(self.directory)
        try:
            self._server = Server(self._device, Requests(MountedTree(tree)), before_request)
            self._watcher = _watch(self.directory, self._server.thread)
        except BaseException:
            watcher.unmount(str(self.directory))
            raise
        fork.in_child(fork.Phase.KERNEL, self._leave)
        atexit.register(self.close)

    def __enter__(self) -> Mount:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Unmount the tree. Files that are open in other processes fail with ENOTCONN. Further calls do nothing."""
        atexit.unregister(self.close)
        fork.not_in_child(self._leave)
        if self._device < 0 or self._process != os.getpid():
            return
        top = os.open(self.directory, os.O_PATH | os.O_CLOEXEC)
        watcher.abort(watcher.connection(str(self.directory)))
        watcher.unmount(str(self.directory))
        self._watcher.kill()
        self._watcher.wait()
        # Where that did not end the connection, since something else holds it, each thread ends with a request of ours.
        self._server.stop(lambda: os.statvfs(top))
        os.close(self._device)  # which ends the connection for all others
        self._device = -1
        os.close(top)

    def _leave(self) -> None:
        """In the child of a fork: give up the device, which would keep the file system alive after its server."""
        if self._device >= 0:
            os.close(self._device)
            self._device = -1


def check_directory(directory: str | os.PathLike[str]) -> Path:
    """The absolute path of a directory that a tree can be mounted on.

    Raises OSError: ENOENT, ENOTDIR, EACCES if it belongs to another user, EBUSY if something is mounted on it, ENOTEMPTY.
    """
    path = Path(directory).resolve()
    if not path.exists():
        raise OSError(errno.ENOENT, f"there is no directory {path}; make it, or give another")
    if not path.is_dir():
        raise OSError(errno.ENOTDIR, f"{path} is not a directory; give an empty one")
    if path.stat().st_uid != os.geteuid():
        raise OSError(errno.EACCES, f"{path} belongs to another user; give a directory of your own")
    if path.is_mount():
        raise OSError(errno.EBUSY, f"something is mounted on {path} already; unmount it, or give another directory")
    if any(path.iterdir()):
        raise OSError(errno.ENOTEMPTY, f"{path} is not empty; give an empty directory")
    return path


def check_device() -> None:
    """Check that file systems can be served here. Raises OSError."""
    if not Path(DEVICE).exists():
        raise OSError(
            errno.ENODEV, f"there is no {DEVICE}: the kernel module fuse is not loaded, or a container hides it"
        )
    if os.geteuid() and shutil.which(FUSERMOUNT) is None:
        raise OSError(errno.ENOENT, f"there is no {FUSERMOUNT}, which mounts for users other than root: install fuse3")


def _mount(directory: Path) -> int:
    """Mount on `directory`; the descriptor by which requests come. Raises OSError."""
    check_device()
    return mount_here(directory) if os.geteuid() == 0 else _mount_by_helper(directory)


def mount_here(directory: Path) -> int:
    """Mount by mount(2), with its capability; the descriptor by which requests come. Raises OSError."""
    device = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id={os.geteuid()},group_id={os.getegid()},default_permissions"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"fprobe", os.fsencode(directory), b"fuse.fprobe", _NOSUID | _NODEV, options.encode()):
        error = ctypes.get_errno()
        os.close(device)
        causes = {errno.EPERM: "mounting needs CAP_SYS_ADMIN", errno.EINVAL: f"{DEVICE} is not the device of FUSE"}
        cause = f"; {causes[error]}" if error in causes else ""
        raise OSError(error, f"{directory} cannot be mounted on: {os.strerror(error)}{cause}")
    return device


def _mount_by_helper(directory: Path) -> int:
    """fusermount3 mounts, and sends the descriptor over a socket."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, its:
        command = [
            FUSERMOUNT,
            "-o",
            "nosuid,nodev,default_permissions,fsname=fprobe,subtype=fprobe",
            "--",
            str(directory),
        ]
        environment = os.environ | {_COMMAND_DESCRIPTOR: str(its.fileno())}
        done = subprocess.run(
            command, env=environment, pass_fds=[its.fileno()], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise OSError(errno.EPERM, f"{directory} cannot be mounted on: {done.stderr.strip()}")
        _, ancillary, _, _ = ours.recvmsg(1, socket.CMSG_SPACE(array.array("i").itemsize))
        descriptors = array.array("i", ancillary[0][2])
    os.set_inheritable(descriptors[0], False)
    return descriptors[0]


def _watch(directory: Path, thread: int) -> subprocess.Popen[bytes]:
    """Start the process that unmounts the tree if this one dies without doing so."""
    command = [sys.executable, "-I", "-S", watcher.__file__, str(os.getpid()), str(thread), str(directory)]
    command.append(str(watcher.connection(str(directory))))
    null = subprocess.DEVNULL  # a reader of our output does not wait for the watcher's end
    return subprocess.Popen(command, stdin=null, stdout=null, stderr=null, start_new_session=True)
