"""The inside part in a process that already ran: attaches the probes, waits for the attacher's word or end, and leaves."""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from fprobe.run import session
from fprobe.run.tracee import brought
from fprobe.run.tracee.arming import Arming, keep_llvm_out, keep_quiet
from sandbox.compile import cache
from sandbox.native.back.compile import compilations
from sandbox.process import fork
from sandbox.process.descriptors import close_own, file_of, moved_up
from sandbox.process.gil import short_switch_interval
from sandbox.process.once import once
from sandbox.symbols.perfmap import perf_map
from sandbox.threads import signals, uncounted
from sandbox.threads.own_thread import OwnThread

_ANSWERED = 10.0
"""Seconds in which the attacher must have opened the descriptors."""
_FIRST_LOOK, _LONGEST = 0.01, 1.0
"""Seconds after which the thread looks whether others are left: twice as many each time, up to _LONGEST.

It matters only if the program's first thread has ended alone.
"""
_present: list[_Session] = []
"""The session of this process, if it is attached to."""


def attach(report: Callable[[bytes], bool], options: dict[str, Any], leave: Callable[[], None]) -> None:
    """Attach, and detach when the attacher says so or has ended. Raises OSError if the session's memory cannot be made.

    `options`: the fields of `Settings`. `leave`: takes our modules out of `sys.modules`, in children of a fork; here the caller
    does that.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _faults())
    with _own_thread(), contextlib.ExitStack() as descriptors:
        settings = session.Settings(**options)
        counts, journal = map(moved_up, session.create(settings))
        reader, writer = map(session.above_standard, os.pipe2(os.O_CLOEXEC))
        reader = moved_up(reader)
        for each in (counts, journal, reader):
            descriptors.callback(close_own, each, file_of(each))
        try:
            is_taken = report(
                session.FILES.pack(session.FILES_MADE, threading.get_native_id(), counts, journal, writer)
            )
            is_there = is_taken and _readable(reader, _ANSWERED) and os.read(reader, 1)
        finally:
            os.close(writer)
        if is_there:
            cache.shipped.update(session.take_objects(counts))
            _Session((counts, journal, reader), settings, leave).run()


class _Session:
    """What is attached to this process. `descriptors`: of the counts, the journal, and the pipe to wait at."""

    def __init__(
        self, descriptors: tuple[int, int, int], settings: session.Settings, leave: Callable[[], None]
    ) -> None:
        self.pid = os.getpid()
        """The process that is attached to, not a child of its."""
        self._descriptors = descriptors
        self._files = [file_of(each) for each in descriptors]
        self._address = session.address_of(*descriptors[:2], threading.get_native_id())
        self._settings = settings
        self._take_modules_out = leave
        self._arming: Arming | None = None
        self._unquiet: Callable[[], None] = lambda: None

    def run(self) -> None:
        """Attach, wait, detach."""
        perf_map.is_wanted = False  # the file would stay
        session.note(self._address, argv=_command_line(), parent=os.getppid(), thread=threading.get_native_id())
        if brought.is_here():
            session.note(self._address, unrecorded=["-e"] if self._settings.events else [])
        last: set[int] = set()
        try:
            with short_switch_interval():
                self._arm()
            last = uncounted.others()
            with uncounted.uncounted() as is_last:  # before the program goes on, whose only other thread may end
                session.note(self._address, armed=True, compiled=compilations[0])
                if brought.is_here():
                    gc.enable()
                last = set() if is_last else self._wait(last)
        except Exception as error:
            self._tell(error)
        finally:
            self._leave()
            cache.shipped.clear()
            session.note(self._address, detached=True)
        if self.pid in last:  # if it had ended long before the others, their status would count, which is 0
            uncounted.end_like_first_thread()

    def _arm(self) -> None:
        from ftrace.core.runtime import runtime
        from ftrace.core.sites import left_text
        from ftrace.core.sites.signal_masks import keep_traps_unblocked
        from ftrace.core.sites.trapping import every_thread_counts

        self._unquiet = keep_quiet(self._address)
        keep_llvm_out(self._settings)
        if brought.is_here():
            uncounted.install(runtime().image)
        runtime().signals.install_again()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _faults() & runtime().signals.handled)
        keep_traps_unblocked()  # at once: the program may set actions, which would take the place of ours
        every_thread_counts[0] = True
        left_text.keep()
        self._arming = Arming(self._address, self._settings)
        self._arming.begin()
        _present[:] = [self]
        _follow_forks()

    def _wait(self, last: set[int]) -> set[int]:
        """Until the attacher says so or has ended, or nothing else is left of the program: then returns those it had last.

        `last`: those that it has now.
        """
        seconds = _FIRST_LOOK
        while not _readable(self._descriptors[2], seconds if brought.is_here() else None):
            others = uncounted.others()
            if not others:
                return last
            last = others
            seconds = min(2 * seconds, _LONGEST)
        return set()

    def _tell(self, error: Exception) -> None:
        session.note(self._address, error=f"{type(error).__name__}: {error}")

    def _leave(self) -> None:
        from ftrace.core.runtime import runtime
        from ftrace.core.sites import left_text

        _present.clear()
        try:
            if self._arming is not None:
                self._arming.end()
                left_text.restore()
                signal.pthread_sigmask(signal.SIG_BLOCK, (*_faults(), signal.SIGTRAP))
                runtime().signals.withdraw()
        except Exception as error:
            self._tell(error)
        self._unquiet()

    def go_on_in_child(self) -> None:
        """In the child of a fork, which has no thread of ours: wait there, too, if children are followed, and leave."""
        OwnThread(self._run_in_child)

    def _run_in_child(self) -> None:
        with _own_thread():
            if self._settings.children:
                session.note(self._address, thread=threading.get_native_id())
                self._wait(set())
            self._leave()
        for each, file in zip(self._descriptors, self._files, strict=True):
            close_own(each, file)
        self._take_modules_out()


def _faults() -> set[int]:
    """Signals that are sent to the process, and blocked by its threads, are pending; where we have no handler, they would end it.

    In a program that is not Python nothing has written breakpoints that the thread may meet.
    """
    found = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
    return {int(each) for each in (found | {signal.SIGTRAP} if brought.is_here() else found)}


def _command_line() -> list[str]:
    """The words of this process's command line; of an interpreter in another program `sys.orig_argv` tells nothing."""
    with open("/proc/self/cmdline", "rb") as file:  # noqa: PTH123  # pathlib need not be there
        return [os.fsdecode(word) for word in file.read().rstrip(b"\0").split(b"\0")]  # some overwrite it


@once
def _follow_forks() -> None:
    fork.in_child(fork.Phase.THREADS, _after_fork)


def settle_forked() -> None:
    """Do in the child of C code's fork, on a thread that was made there, what Python does around its own forks.

    Then `_after_fork` is called, as for those. Does nothing if this process is attached to itself, or unless the interpreter was
    brought along: of another one, the forking thread may have been running Python.
    """
    import ctypes

    if brought.is_here() and any(each.pid != os.getpid() for each in _present):
        ctypes.pythonapi.PyOS_BeforeFork()
        ctypes.pythonapi.PyOS_AfterFork_Child()
        ctypes.pythonapi.PyGILState_Ensure()  # never released: Python 3.11 cannot make a thread state where none is left


def _after_fork() -> None:
    for each in _present:
        each.go_on_in_child()


def _readable(descriptor: int, seconds: float | None) -> bool:
    """Wait until there is something to read, or the other side has ended. Returns False if the time is over."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    with fork.given_way():
        return bool(poll.poll(None if seconds is None else seconds * 1000))


@contextlib.contextmanager
def _own_thread() -> Iterator[None]:
    """Signals of faults that are sent here are the program's."""
    signals.take_own_thread()
    try:
        yield
    finally:
        signals.release_own_thread()
