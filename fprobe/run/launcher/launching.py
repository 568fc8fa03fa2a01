"""Starts the program and waits for it. The launcher handles signals and ends as Python itself would."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from fprobe.run import session
from fprobe.run.launcher.delivered_signals import DeliveredSignals

START = Path(session.__file__).parent / "tracee" / "start"
"""The directory with the module that Python imports at its start."""

_NOT_FORWARDED = (
    *("KILL", "STOP", "CONT", "CHLD", "PIPE", "TTOU", "XFSZ", "XCPU"),
    *("SEGV", "BUS", "FPE", "ILL", "ABRT", "TRAP", "SYS"),
)
_FORWARDED = signal.valid_signals() - {getattr(signal, f"SIG{name}") for name in _NOT_FORWARDED}
"""Signals of the program that the launcher takes for it. The launcher ends and stops when the program does."""
_CHANGED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
_POLLING = 0.05
"""Seconds between checks whether a stopped program has been continued."""


def environment(address: str) -> dict[str, str]:
    """The launcher's environment, with the variables through which the program's Python finds the launcher."""
    made = dict(os.environ)
    before = made.get("PYTHONPATH")
    if before is not None:
        made[session.PYTHONPATH] = before
    made["PYTHONPATH"] = os.pathsep.join([str(START), *([before] if before else [])])
    made[session.VARIABLE] = address
    return made


def replace(path: str, words: Sequence[str]) -> None:
    """Replace this process by the program with this path, without probes. `words`: its name and arguments. Does not return.

    Raises OSError.
    """
    _restore_signals()
    os.execv(path, list(words))


class Program:
    """The running program, a child of this process. `words`: the arguments of `python`.

    `output`: a descriptor to use as standard output and error.
    """

    def __init__(self, words: Sequence[str], environ: Mapping[str, str], output: int | None = None) -> None:
        held = self._fork()
        if not self.pid:
            if output is not None:
                os.dup2(output, 1)
                os.dup2(output, 2)
            become(sys.executable, [sys.executable, *words], environ, held)

    @classmethod
    def copy(cls) -> Program:
        """A copy of this process: as os.fork(), it returns in both. In the child, `pid` is 0."""
        made = cls.__new__(cls)
        held = made._fork()
        if not made.pid:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
        return made

    def _fork(self) -> set[signal.Signals] | set[int]:
        """Returns the signal mask, which the child has to restore."""
        held = signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
        self._delivered = DeliveredSignals(_FORWARDED)
        early = _EarlySignals()
        self.pid = os.fork()
        if not self.pid:
            early.take()
            return held
        for number in early.give():
            self._delivered.has_seen(number)  # it need not report them any more
        self._arrived: list[int] = []
        self.seen: set[int] = set()
        """Signals that have come, to this process or to the group."""
        self._is_forwarding = False
        # An ignored or a blocked signal, too: the program has inherited that, but may have a handler for it.
        self._ignored = {number for number in _FORWARDED if signal.getsignal(number) is signal.SIG_IGN}
        for number in _FORWARDED:
            signal.signal(number, self._forward)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it is ignored, the program's exit status is lost
        signal.pthread_sigmask(signal.SIG_SETMASK, held - _FORWARDED)
        return held

    def _forward(self, number: int, _frame: object) -> None:
        """A handler in which another one may run at any time: that leaves its signal to the outer one."""
        self._arrived.append(number)
        self.seen.add(number)
        while self._arrived and not self._is_forwarding:
            self._is_forwarding = True
            arrived, self._arrived = self._arrived, []
            for each in arrived:
                if not self._delivered.has_seen(each):
                    os.kill(self.pid, each)
            self._is_forwarding = False

    def wait(self) -> int:
        """The program's exit status, as from waitpid. While the program is stopped, the launcher stops too.

        After it, signals have their default actions again, so that they interrupt the report, or are ignored as before.
        """
        while True:
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
            if found is None or found.si_code != os.CLD_STOPPED:
                break
            if number := self.stopped_by():
                self.stop(number)
        for number in _FORWARDED:  # before its process id is free: a signal must not be forwarded to another process
            signal.signal(number, signal.SIG_IGN if number in self._ignored else signal.SIG_DFL)
        self._delivered.end()
        return os.waitpid(self.pid, 0)[1]

    def stopped_by(self) -> int:
        """The signal that has stopped the program since the last call; 0 if it is not stopped, or has ended."""
        try:
            found = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG)
        except ChildProcessError:  # what waitid says of a process that can no longer stop
            return 0
        return found.si_status if found is not None and _is_stopped(self.pid) else 0

    def stop(self, number: int) -> None:
        """Stop by the signal that has stopped the program, until either process is continued; then both are."""
        waker = self._wake_when_continued()
        try:
            stop_by(number if os.getpgid(self.pid) == os.getpgrp() else signal.SIGSTOP)
        finally:
            os.kill(waker, signal.SIGKILL)
            os.waitpid(waker, 0)
        if _is_stopped(self.pid):
            os.kill(self.pid, signal.SIGCONT)

    def _wake_when_continued(self) -> int:
        """Start a process that continues the launcher when the program is continued or ends. Returns its process id."""
        launcher = os.getpid()
        held = signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
        waker = os.fork()
        if waker:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
            return waker
        try:
            while os.getppid() == launcher:
                time.sleep(_POLLING)
                if not _is_stopped(self.pid):
                    os.kill(launcher, signal.SIGCONT)  # repeatedly, since the launcher may not have stopped yet
        finally:
            os._exit(0)


class _EarlySignals:
    """Signals that come while the program is forked: one to the whole group may have come before the program was in it.

    All of `_FORWARDED` are blocked meanwhile.
    """

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()

    def give(self) -> list[int]:
        """In the launcher: hand the pending signals over to the program, and return their numbers."""
        found = sorted(signal.sigpending() & _FORWARDED)
        os.close(self._reader)
        with contextlib.suppress(BrokenPipeError):  # somebody has killed it
            os.write(self._writer, bytes(found))
        os.close(self._writer)
        for number in found:
            signal.sigtimedwait([number], 0)
        return found

    def take(self) -> None:
        """In the program: wait for the launcher, and send the signals that this process has not got itself."""
        os.close(self._writer)
        given = os.read(self._reader, 1 << 10)
        os.close(self._reader)
        for number in set(given) - signal.sigpending():
            os.kill(os.getpid(), number)


def stop_by(number: int) -> None:
    """Stop this process by the signal, whatever handler it has."""
    before = signal.getsignal(number)
    if number != signal.SIGSTOP:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    if number != signal.SIGSTOP:
        signal.signal(number, before)


def become(
    path: str, words: Sequence[str], environ: Mapping[str, str], mask: set[signal.Signals] | set[int]
) -> NoReturn:
    """In the child of a fork: be the program with this path and these words, of which the first is its name."""
    try:
        _restore_signals()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execve(path, list(words), environ)
    except OSError as error:
        os.write(2, f"fprobe: {path}: {error.strerror}\n".encode("utf-8", "surrogateescape"))
    except BaseException as error:
        os.write(2, f"fprobe: {path}: {error}\n".encode("utf-8", "surrogateescape"))
    finally:
        os._exit(127)


def _restore_signals() -> None:
    """Reset the signals that Python and the command line have changed; the program would inherit them."""
    for number in _CHANGED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _is_stopped(pid: int) -> bool:
    """Whether the process is still stopped; it may have been continued in the meantime."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return False
    return fields[0] in (b"T", b"t")
