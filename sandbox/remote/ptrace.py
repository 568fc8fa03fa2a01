"""A thread of another process, stopped for a few system calls that it makes for us. By ptrace(2)."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import time
from collections.abc import Sequence
from types import TracebackType

from sandbox.remote.sleeping import Sleep
from sandbox.threads.tasks import ASYNCHRONOUS
from sandbox.x86_64 import signal_frame

_TO_CALL, GET_REGISTERS, SET_REGISTERS, DETACH, CONTINUE = 24, 12, 13, 17, 7
CALLS_MARKED, _MARK = 1, 0x80
"""An option: stops at system calls differ by this bit from those by SIGTRAP."""
SEIZE, INTERRUPT, LISTEN, GET_MASK, SET_MASK, SET_OPTIONS = 0x4206, 0x4207, 0x4208, 0x420A, 0x420B, 0x4200
_GET_SET, _VECTOR_STATE = 0x4204, 0x202
_MOST_VECTOR_STATE = 1 << 14
_RED_ZONE = 128
EVENT_STOP = 128
WALL = 0x40000000
SIGTRAP = 5
_MASK_SIZE = 8
_OF_LIBC = 1 << 31 | 1 << 32
"""Signals 32 and 33, by which glibc cancels threads and changes the user of all of them."""
_PATIENCE, _MUCH_PATIENCE = 0.1, 10.0
"""Seconds in which a thread must stop; and, once it has stopped, in which it makes a system call: the machine may be busy."""
_BRIEFLY, _AT_MOST = 2e-5, 0.01
_ARGUMENTS = ("rdi", "rsi", "rdx", "r10", "r8", "r9")
_NO_SYSTEM_CALL = (1 << 64) - 1
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
_libc.ptrace.restype = ctypes.c_long


class Registers(ctypes.Structure):
    """struct user_regs_struct."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            *("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi"),
            *("orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs"),
        )
    ]


def ptrace(request: int, thread: int, address: int = 0, data: int = 0) -> None:
    """ptrace(2), for requests that return nothing. Raises OSError."""
    if _libc.ptrace(request, thread, address, data) == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class _Vector(ctypes.Structure):
    """struct iovec."""

    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]


class StoppedThread:
    """A thread that is stopped inside the `with` block, with all asynchronous signals blocked from the first system call on.

    Afterwards its registers and signal mask are what they were. Raises OSError: EPERM if the process may not be traced, ESRCH if
    the thread has ended, EBUSY if it does not stop. `system_call_at`: address of the instructions `syscall; ret`.

    If this process is killed meanwhile, the kernel lets the thread go with the registers that it has. Therefore `frame` must be
    in its memory at `stack` before the first system call.
    """

    def __init__(self, thread: int, system_call_at: int, sleep: Sleep | None = None) -> None:
        self.thread = thread
        self._sleep = sleep or Sleep(thread)
        self.registers = Registers()
        self._at = system_call_at
        self._mask = ctypes.c_uint64()
        self._is_blocking = self._is_at_call = False
        self._signals: list[int] = []
        """Signals that came meanwhile, and are delivered at the end."""
        self.stack: int | None = None
        """The stack pointer in system calls: where a `frame` is. None: as it was, and nothing may end this process."""

    def __enter__(self) -> StoppedThread:
        ptrace(SEIZE, self.thread, 0, CALLS_MARKED)
        try:
            ptrace(INTERRUPT, self.thread)
            while (status := self._wait(_PATIENCE)) >> 16 != EVENT_STOP:
                ptrace(CONTINUE, self.thread, 0, status >> 8 & 0xFF)  # a signal of its own, which came before
            self.look()
            self._make_again()
        except BaseException:
            self._let_go()
            raise
        return self

    def look(self) -> None:
        """Remember the registers and the signal mask of the thread, which is stopped."""
        ptrace(GET_REGISTERS, self.thread, 0, ctypes.addressof(self.registers))
        ptrace(GET_MASK, self.thread, _MASK_SIZE, ctypes.addressof(self._mask))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self._is_at_call:  # calls are made again by the kernel only from a stop where it looks for signals
                ptrace(INTERRUPT, self.thread)
                self._go(CONTINUE, SIGTRAP | EVENT_STOP << 8)
            ptrace(SET_MASK, self.thread, _MASK_SIZE, ctypes.addressof(self._mask))
            ptrace(SET_REGISTERS, self.thread, 0, ctypes.addressof(self.registers))
        finally:
            self._let_go()

    def _let_go(self) -> None:
        for number in self._signals[1:]:
            os.kill(self.thread, number)
        with contextlib.suppress(OSError):  # it has ended, or has not stopped; then it is released as the tracer ends
            ptrace(DETACH, self.thread, 0, self._signals[0] if self._signals else 0)

    def _make_again(self) -> None:
        """Let a call that the stop has ended with EINTR be made again unless a signal comes: the kernel does not do so itself."""
        if self.registers.rax == -errno.EINTR & _NO_SYSTEM_CALL and self.registers.orig_rax in _ENDED_EARLY:
            self.registers.rax = _AGAIN_WITHOUT_HANDLER & _NO_SYSTEM_CALL
            timeout = ctypes.c_int32(self.registers.r10).value
            if self.registers.orig_rax in _WITH_TIMEOUT and timeout > 0:
                self.registers.r10 = max(round(timeout - self._sleep.milliseconds), 0)

    def below_stack(self, size: int) -> int:
        """Where a signal's frame of that size would be."""
        return int(self.registers.rsp - _RED_ZONE - size) // 64 * 64

    def vector_state(self) -> bytes:
        """The floating-point and vector registers."""
        state = ctypes.create_string_buffer(_MOST_VECTOR_STATE)
        vector = _Vector(ctypes.addressof(state), len(state))
        ptrace(_GET_SET, self.thread, _VECTOR_STATE, ctypes.addressof(vector))
        return state.raw[: vector.size]

    def frame(self, at: int, restorer: int, vector: bytes) -> bytes:
        """What must be at address `at` if that is the stack pointer in a system call: the thread's way back."""
        return signal_frame.frame(at, restorer, self.registers, self._mask.value, vector)

    def _block_signals(self) -> None:
        """Later than the registers are set, since the way back restores the mask, too."""
        if not self._is_blocking:
            self._is_blocking = True
            blocked = ctypes.c_uint64(ASYNCHRONOUS & ~_OF_LIBC)
            ptrace(SET_MASK, self.thread, _MASK_SIZE, ctypes.addressof(blocked))

    def system_call(self, number: int, *arguments: int, r12: int | None = None) -> int:
        """Let the thread make a system call, and return its result. Raises OSError, as the call fails.

        `r12`: the register's value during the call, which a new thread begins with.
        """
        changed = Registers.from_buffer_copy(self.registers)
        changed.rip, changed.rax, changed.orig_rax = self._at, number, _NO_SYSTEM_CALL
        if r12 is not None:
            changed.r12 = r12
        if self.stack is not None:
            changed.rsp = self.stack
        for name, value in zip(_ARGUMENTS, arguments, strict=False):
            setattr(changed, name, value & _NO_SYSTEM_CALL)
        ptrace(SET_REGISTERS, self.thread, 0, ctypes.addressof(changed))
        self._block_signals()
        for _ in ("its entry", "its end"):
            self._go(_TO_CALL, SIGTRAP | _MARK)
        self._is_at_call = True
        ptrace(GET_REGISTERS, self.thread, 0, ctypes.addressof(changed))
        result = ctypes.c_int64(changed.rax).value
        if -4096 < result < 0:
            raise OSError(-result, os.strerror(-result))
        return result

    def _go(self, request: int, wanted: int) -> None:
        """Let it run until that stop. Not by single steps: it would go on with them, and die, if this process were killed."""
        ptrace(request, self.thread)
        while (status := self._wait(_MUCH_PATIENCE) >> 8) != wanted:
            number, is_signal = status & 0xFF, status >> 8 != EVENT_STOP
            if is_signal and not ASYNCHRONOUS >> number - 1 & 1:
                raise OSError(errno.EFAULT, f"thread {self.thread} could not make a system call")
            self._signals += [number] if is_signal else []
            ptrace(request, self.thread)

    def _wait(self, seconds: float) -> int:
        """Its status once it has stopped. Raises OSError(ESRCH) if it has ended, OSError(EBUSY) if it does not stop in time."""
        end = time.monotonic() + seconds
        while True:
            is_late = time.monotonic() > end  # looked at before, since this process may not have been running meanwhile
            pid, status = os.waitpid(self.thread, WALL | os.WNOHANG)
            if pid and not os.WIFSTOPPED(status):
                raise ProcessLookupError(errno.ESRCH, f"thread {self.thread} has ended")
            if pid:
                return status
            _pause()
            if is_late:
                raise OSError(errno.EBUSY, f"thread {self.thread} did not stop within {seconds:g} s")


def _pause() -> None:
    """Wait for the next stop. Sleeping and looking again takes longer, above all on a busy machine."""
    if signal.SIGCHLD in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
        signal.sigtimedwait((signal.SIGCHLD,), _AT_MOST)
    else:
        time.sleep(_BRIEFLY)


def best_thread(pid: int, threads: Sequence[int]) -> list[int]:
    """The threads, those first whose stop disturbs least: a stop ends epoll_wait early, which not every program expects."""

    def disturbance(thread: int) -> tuple[int, int]:
        try:
            with open(f"/proc/{pid}/task/{thread}/syscall") as file:  # noqa: PTH123  # of one word
                call = file.read().split()[0]
        except OSError:
            return 3, thread
        if call.isdigit() and int(call) in _ENDED_EARLY:
            return 2, thread
        return 1 if call == "running" else 0, thread

    return sorted(threads, key=disturbance)


_ENDED_EARLY = {232, 281, 441, 128, 65, 68, 70, 220, 240, 243}
"""Numbers of system calls that fail with EINTR after a stop: epoll_wait and its like, sigtimedwait, semop, messages."""
_WITH_TIMEOUT = {232, 281}
"""Those whose fourth argument is a time-out in milliseconds: epoll_wait, epoll_pwait."""
_AGAIN_WITHOUT_HANDLER = -514
"""ERESTARTNOHAND"""
