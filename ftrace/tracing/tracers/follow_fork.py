"""The options event-fork and function-fork: new threads and forked processes join the lists that their creators are in.

trace_event_follow_fork() and ftrace_pid_follow_fork() of the kernel. What happens to a thread is in ftrace.hit.pid_list.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import threading
from pathlib import Path
from typing import Any

from ftrace.core.entries.locate import locate
from ftrace.core.entries.neighbours import join_neighbours, patch_lock
from ftrace.core.runtime import runtime
from ftrace.core.sites.locations import FILTER, OpsHash
from ftrace.hit.pid_list import LISTS, Followers
from ftrace.hit.records import COMPLETE
from ftrace.tracing.tracers.probing import FunctionProbing
from ftrace.tracing.tracers.thread_filters import PidLists
from sandbox.process import fork
from sandbox.process.once import once

_WHERE = ("libc:pthread_create", "libpthread:pthread_create")
"""Before glibc 2.34 it was in a library of its own."""
_WORD = 8
_GROUP = re.compile(r"^Tgid:\s*(\d+)", re.MULTILINE)
_START = 19
"""Of the fields of /proc/TID/stat behind the name."""


class ForkFollowing(fork.Close):
    """The followed lists, and the hook on pthread_create while there are any. Used with trace_types_lock."""

    def __init__(self) -> None:
        self._native: Any = Followers.ctypes()
        runtime().image.variable("pid_followers").value = ctypes.addressof(self._native)
        self._probing: FunctionProbing | None = None
        self._forking = 0
        """The thread that forks."""
        self._known: dict[int, int] = {}
        """Threads of other processes that have been met, with the time of their start."""
        fork.innermost(self)
        fork.in_child(fork.Phase.PROBES, self._follow_fork)

    def follow(self, lists: PidLists) -> None:
        """Follow these lists. Raises OSError if pthread_create cannot be hooked."""
        if self._probing is None:
            self._hook()
        free = (index for index in range(LISTS) if not self._native.lists[index])
        for place, index in zip(lists.places, free, strict=False):
            self._native.lists[index] = place
        lists.follow_forks(True)

    def forget(self, lists: PidLists) -> None:
        """Follow them no more."""
        for index in range(LISTS):
            if self._native.lists[index] in lists.places:
                self._native.lists[index] = 0
        lists.follow_forks(False)
        if not any(self._native.lists):
            self._known.clear()
            self._unhook()

    def _hook(self) -> None:
        located = _pthread_create()
        with patch_lock():
            functions = OpsHash()
            functions.replace(FILTER, join_neighbours(located).locations)
            if functions.for_everything:
                raise OSError(
                    errno.ENODEV,
                    "new threads cannot be followed, since pthread_create cannot be probed; switch the option off",
                )
            self._probing = FunctionProbing(
                functions,
                self._native,
                entry="thread_is_made",
                exit="thread_was_made",
                detach=self._unhook,
                flags=COMPLETE,
                data_size=_WORD,
            )

    def _unhook(self) -> None:
        probing, self._probing = self._probing, None
        if probing is not None:
            probing.stop()

    # -- threads of other processes, whose forks nobody tells of ---------------------------------------------------

    @property
    def is_following(self) -> bool:
        """Whether a list is followed."""
        return self._probing is not None

    def meet(self, tid: int) -> None:
        """Thread `tid` of another process acts here: unless it was met before, it is in the lists of its creator."""
        start, parent = _born(tid)
        if not start or self._known.get(tid) == start:
            return
        if parent > 1 and parent != os.getpid():
            self.meet(parent)
        if tid in self._known:  # the id had another owner, who has left the lists
            self._join(tid, 0)
        self._known[tid] = start
        if parent:
            self.made(parent, tid)

    def made(self, parent: int, child: int) -> None:
        """A thread of another process was made by `parent`: it is in the lists that that is in, besides its own."""
        image = runtime().image
        self._join(child, image.call("lists_with", parent) | image.call("lists_with", child))

    def ended(self, tid: int) -> None:
        """A thread of another process has ended."""
        self._join(tid, 0)

    @staticmethod
    def _join(tid: int, listed: int) -> None:
        runtime().image.call("trace_filter_add_remove_task", tid, listed)

    # -- around os.fork() -----------------------------------------------------------------------------------------

    def before(self) -> None:
        """Note who forks."""
        self._forking = threading.get_native_id()

    def after_in_parent(self) -> None:
        """Nothing: the child has lists of its own."""

    def after_in_child(self) -> None:
        """Nothing yet: native functions are called later."""

    def _follow_fork(self) -> None:
        """In the child: the only thread joins the lists that the forking thread is in; no other is being made here."""
        starts = Followers.offset("starts")
        ctypes.memset(ctypes.addressof(self._native) + starts, 0, Followers.size - starts)
        image = runtime().image
        image.call("trace_filter_add_remove_task", threading.get_native_id(), image.call("lists_with", self._forking))


def _born(tid: int) -> tuple[int, int]:
    """When a thread started, and who made it: its process, or that one's parent for the first thread. 0, 0: it has ended."""
    try:
        status = Path(f"/proc/{tid}/status").read_text("ascii", "replace")
        fields = Path(f"/proc/{tid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
    except OSError:
        return 0, 0
    group = int(_GROUP.findall(status)[0])
    return int(fields[_START]), int(fields[1]) if group == tid else group


def _pthread_create() -> Any:
    last: LookupError | None = None
    for name in _WHERE:
        try:
            return locate(name).locations
        except LookupError as error:
            last = error
    raise OSError(errno.ENODEV, f"new threads cannot be followed: {last}")


@once
def fork_following() -> ForkFollowing:
    """The process's."""
    return ForkFollowing()
