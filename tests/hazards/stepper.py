"""A tracer: it steps through a child's code instruction by instruction and sends it a signal where it is asked to.

The child says by two signals when: BEGIN starts stepping, also at the end of its handler of INJECTED; END lets it run.
"""

from __future__ import annotations

import bisect
import ctypes
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

BEGIN, END, INJECTED = signal.SIGUSR2, signal.SIGURG, signal.SIGUSR1

_CONT, _SINGLESTEP, _PEEKUSER, _DETACH, _GETSIGINFO, _SEIZE, _GETSIGMASK = 7, 9, 3, 17, 0x4202, 0x4206, 0x420A
_SI_KERNEL = 0x80
_EXITKILL = 1 << 20
_POKEUSER = 6
_RIP, _FLAGS = 16 * 8, 18 * 8
_TRAP_FLAG = 0x100
_WALL = 0x4000_0000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
Span = tuple[int, int]


class Denied(Exception):
    """This machine does not let a process trace its own child."""


class Died(Exception):
    """The child ended while it was traced."""


@contextmanager
def started(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A child with pipes. It is killed when the block raises (a time limit, too): it may be stopped, and is waited for."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as child:
        try:
            yield child
        except BaseException:
            child.kill()
            raise


class Stepper:
    """Traces the process `pid`, a child; `spans` are the ranges of addresses in which signals are sent.

    `times`: at how many comings to an instruction at most. A loop that takes what nobody has changed meanwhile would not end
    if at every one.
    """

    def __init__(self, pid: int, spans: Sequence[Span], times: int = 1) -> None:
        self.pid = pid
        self.times = times
        self.reached: Counter[int] = Counter()
        """Addresses at which signals were sent."""
        self.injected = 0
        self.steps = 0
        self._interrupted = 0
        self._info = (ctypes.c_int * 32)()  # signal, errno, code
        self._info_address = ctypes.addressof(self._info)
        self._spans = sorted(spans)
        self._starts = [start for start, _ in self._spans]

    def attach(self) -> None:
        """Begin to trace, without stopping the child. Raises Denied."""
        if _libc.ptrace(_SEIZE, self.pid, None, _EXITKILL) < 0:
            raise Denied(os.strerror(ctypes.get_errno()))

    def follow(self, rounds: int) -> None:
        """Trace the next `rounds` stretches between BEGIN and END, then let go. Raises Died."""
        with self._on_one_cpu():
            for number in range(rounds):
                if number:
                    self._go(_CONT)
                self._run_to_begin()
                self._stretch()
            self._go(_DETACH)

    @contextmanager
    def _on_one_cpu(self) -> Iterator[None]:
        """The two run by turns: to wake another CPU for each step takes longer than the step."""
        allowed, here = os.sched_getaffinity(0), _libc.sched_getcpu()
        for pid in (0, self.pid):
            os.sched_setaffinity(pid, {here})
        try:
            yield
        finally:
            os.sched_setaffinity(0, allowed)
            with suppress(ProcessLookupError):
                os.sched_setaffinity(self.pid, allowed)

    def _run_to_begin(self) -> None:
        while (number := self._wait()) != BEGIN:
            self._go(_CONT, number if number != signal.SIGTRAP or self._is_breakpoint() else 0)

    def _stretch(self) -> None:
        deliver = 0
        while True:
            self._go(_SINGLESTEP, deliver)
            self.steps += 1
            number = self._wait()
            if number == END:
                return
            is_step = number == signal.SIGTRAP and not self._is_breakpoint()
            is_handlers_first, deliver = deliver != 0, 0 if is_step else number
            if is_handlers_first:
                continue  # stopped before the handler's first instruction, where a signal that is injected is ignored
            if is_step and self._wanted(_libc.ptrace(_PEEKUSER, self.pid, _RIP, None)):
                self._inject()

    def _is_breakpoint(self) -> bool:
        """Whether it is the child's own breakpoint that it has been stopped by."""
        _libc.ptrace(_GETSIGINFO, self.pid, None, self._info_address)
        return self._info[2] == _SI_KERNEL

    def _is_blocked(self) -> bool:
        """Whether INJECTED is: it would come later, at another place."""
        mask = ctypes.c_uint64()
        _libc.ptrace(_GETSIGMASK, self.pid, 8, ctypes.addressof(mask))
        return bool(mask.value >> (INJECTED - 1) & 1)

    def _wanted(self, address: int) -> bool:
        if address == self._interrupted:  # the handler has returned to it
            self._interrupted = 0
            return False
        if self.reached[address] >= self.times:
            return False
        index = bisect.bisect_right(self._starts, address) - 1
        if index < 0 or address >= self._spans[index][1] or self._is_blocked():
            return False
        self.reached[address] += 1
        self._interrupted = address
        return True

    def _inject(self) -> None:
        """Send the signal and let its handler run until it says BEGIN."""
        self.injected += 1
        self._go(_CONT, INJECTED)
        self._run_to_begin()

    def _go(self, request: int, number: int = 0) -> None:
        if request != _SINGLESTEP:
            self._clear_trap_flag()
        if _libc.ptrace(request, self.pid, None, number) < 0:
            raise Died(os.strerror(ctypes.get_errno()))

    def _clear_trap_flag(self) -> None:
        """A pushf that was stepped has stored it, and the popf has taken it for the child's own."""
        flags = _libc.ptrace(_PEEKUSER, self.pid, _FLAGS, None)
        if flags & _TRAP_FLAG:
            _libc.ptrace(_POKEUSER, self.pid, _FLAGS, flags & ~_TRAP_FLAG)

    def _wait(self) -> int:
        """The signal that the child has been stopped by."""
        _, status = os.waitpid(self.pid, _WALL)
        if not os.WIFSTOPPED(status):
            raise Died(f"status {status:#x} after {self.steps} steps and {self.injected} signals")
        return os.WSTOPSIG(status)
