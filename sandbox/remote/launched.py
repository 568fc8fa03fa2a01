"""A program that is stopped at its entry point: its libraries are loaded and have been initialised, and nothing of it has run.

Its process waits at a `Gate` before it executes the program. The thread that opens the gate must be the one that releases it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import struct
from types import TracebackType

from sandbox.remote.ptrace import (
    CALLS_MARKED,
    CONTINUE,
    DETACH,
    EVENT_STOP,
    GET_REGISTERS,
    INTERRUPT,
    LISTEN,
    SEIZE,
    SET_OPTIONS,
    SET_REGISTERS,
    SIGTRAP,
    WALL,
    StoppedThread,
    ptrace,
)

_TRACE_EXEC, _EXIT_KILL = 0x10, 0x100000
"""Options of ptrace. While the entry point has a breakpoint, the program ends with this process: it would die there."""
_EVENT_EXEC = 4
_ENTRY = 9
"""AT_ENTRY, of the auxiliary vector."""
_BREAKPOINT = b"\xcc"
_STOPPING = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)


class Gate:
    """Made before a fork: the child `wait`s, and the parent `open`s."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC)

    def wait(self) -> None:
        """In the child. Returns also if the parent has ended."""
        os.close(self._writer)
        os.read(self._reader, 1)
        os.close(self._reader)

    def open(self, pid: int) -> HeldProgram | None:
        """In the parent: let child `pid` execute its program, and stop that at its entry. None if it has ended before.

        Raises OSError if it cannot be traced; then it executes the program without being held.
        """
        os.close(self._reader)
        try:
            ptrace(SEIZE, pid, 0, _TRACE_EXEC | _EXIT_KILL)
        finally:
            os.write(self._writer, b"1")
            os.close(self._writer)
        held = HeldProgram(pid)
        return held if held.reach_entry() else None


class HeldProgram:
    """The stopped program `pid`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._is_held = False

    def reach_entry(self) -> bool:
        """Go to the entry point; False if the process ends before."""
        if not self._wait_for(SIGTRAP | _EVENT_EXEC << 8):
            return False
        try:
            entry = self._entry()
            memory = os.open(f"/proc/{self.pid}/mem", os.O_RDWR | os.O_CLOEXEC)
            try:
                before = os.pread(memory, 1, entry)
                os.pwrite(memory, _BREAKPOINT, entry)
                self._continue()
                if not self._wait_for(SIGTRAP):
                    return False
                os.pwrite(memory, before, entry)
            finally:
                os.close(memory)
            self._step_back(entry)
            if not self.leave_signal():
                return False
            ptrace(SET_OPTIONS, self.pid, 0, 0)
        except ProcessLookupError:  # it was killed; its parent learns that from waitpid
            return False
        self._is_held = True
        return True

    def _entry(self) -> int:
        with open(f"/proc/{self.pid}/auxv", "rb") as file:  # noqa: PTH123  # of a few bytes
            return int(dict(struct.iter_unpack("<QQ", file.read()))[_ENTRY])

    def _step_back(self, entry: int) -> None:
        thread = self.thread(0)
        ptrace(GET_REGISTERS, self.pid, 0, ctypes.addressof(thread.registers))
        thread.registers.rip = entry
        ptrace(SET_REGISTERS, self.pid, 0, ctypes.addressof(thread.registers))

    def leave_signal(self) -> bool:
        """Stop anew, where it is: the signal of the breakpoint or of a step would be delivered if this process ended.

        False if it has ended.
        """
        ptrace(INTERRUPT, self.pid)
        self._continue()
        return self._wait_for(SIGTRAP | EVENT_STOP << 8)

    def _continue(self, number: int = 0) -> None:
        ptrace(CONTINUE, self.pid, 0, number)

    def _wait_for(self, wanted: int) -> bool:
        """Let it run until that stop, with the signals that it gets. False if it has ended."""
        while True:
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
            if found is None or found.si_code in (os.CLD_EXITED, os.CLD_KILLED, os.CLD_DUMPED):
                return False  # its status is left to `waitpid`
            status = os.waitpid(self.pid, WALL)[1] >> 8
            if status == wanted:
                return True
            number, event = status & 0xFF, status >> 8
            with contextlib.suppress(ProcessLookupError):
                if event == EVENT_STOP and number in _STOPPING:
                    ptrace(LISTEN, self.pid)
                else:
                    self._continue(0 if event else number)

    def thread(self, system_call_at: int) -> HeldThread:
        """Its thread, for system calls."""
        return HeldThread(self, system_call_at)

    def release(self, signals: list[int] | None = None) -> None:
        """Let it run."""
        if self._is_held:
            self._is_held = False
            for number in signals or ():
                with contextlib.suppress(OSError):
                    os.kill(self.pid, number)
            with contextlib.suppress(OSError):  # it was killed
                ptrace(DETACH, self.pid)

    def __enter__(self) -> HeldProgram:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


class HeldThread(StoppedThread):
    """The thread of a program that was stopped before, and stays so."""

    def __init__(self, program: HeldProgram, system_call_at: int) -> None:
        super().__init__(program.pid, system_call_at)
        self._program = program

    def __enter__(self) -> StoppedThread:
        try:
            ptrace(SET_OPTIONS, self.thread, 0, CALLS_MARKED)
            self.look()
        except ProcessLookupError:
            raise ProcessLookupError(errno.ESRCH, f"process {self.thread} has ended") from None
        return self

    def _let_go(self) -> None:
        for number in self._signals:
            os.kill(self.thread, number)
        self._program.leave_signal()
