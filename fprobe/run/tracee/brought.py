"""The first thing that an interpreter runs which was brought into a program that has none. Its text is sent there, and executed.

Its thread has a table of descriptors of its own, which is empty: the program's numbers stay as they are, it may close whatever it
wants, and the children that it forks inherit none of ours.
"""

from __future__ import annotations

import _thread
import os
import sys

_BROUGHT = "_fprobe_brought"
"""Attribute of `sys` in such an interpreter."""
_GATE = "_fprobe_gate"
"""The same: the fork gate, for all of our modules."""
_CLOSE_RANGE, _ALL, _UNSHARE = 436, 0xFFFFFFFF, 2
_STANDARD = 3


def is_here() -> bool:
    """Whether this interpreter was brought into a program that is not Python."""
    return getattr(sys, _BROUGHT, False)


def _this_thread() -> tuple[int, int]:
    """Its process and its number, which in the child of a fork another one may have."""
    return os.getpid(), _thread.get_ident()


class _Gate:
    """Keeps forks of the program and our Python apart (`sandbox.x86_64.fork_gate`): the thread that runs it is in the gate.

    `forking`, `enter`, `leave`: addresses. This thread has entered before there was Python.
    """

    def __init__(self, forking: int, enter: int, leave: int) -> None:
        import ctypes

        self._forking = ctypes.c_uint32.from_address(forking)
        self._enter, self._leave = map(ctypes.CFUNCTYPE(None), (enter, leave))
        self._inside = {_this_thread()}

    def enter(self) -> bool:
        """Wait until no fork is in progress, and delay others. Returns whether the thread was outside."""
        if (thread := _this_thread()) in self._inside:
            return False
        self._enter()
        self._inside.add(thread)
        return True

    def leave(self) -> bool:
        """Let forks go on. Returns whether the thread was inside."""
        if (thread := _this_thread()) not in self._inside:
            return False
        self._inside.discard(thread)
        self._leave()
        return True

    def forget(self) -> None:
        """This thread ends; the code in which it has entered leaves for it. Another thread may get its number."""
        self._inside.discard(_this_thread())

    def give_way(self) -> None:
        """Let forks go first that wait. The thread must hold no lock of the C library."""
        if self._forking.value and self.leave():
            self.enter()


def settle(gate: int, forking: int, enter: int, leave: int) -> None:
    """Leave Ctrl-C to the program, and keep the numbers of standard streams from being used for files.

    `gate`: where the address of the fork gate is, 0 if there was no memory for one; the others are offsets in it.
    """
    import gc  # here, since a Python of the program's own need not have it

    setattr(sys, _BROUGHT, True)
    gc.disable()  # until all is imported: none of it is garbage
    _leave_sigint()
    _fill_standard()
    import ctypes

    if base := ctypes.c_uint64.from_address(gate).value:
        setattr(sys, _GATE, _Gate(base + forking, base + enter, base + leave))


def settle_again() -> None:
    """The same for another thread, in the interpreter that was brought before; nothing in other interpreters."""
    if is_here():
        import ctypes

        ctypes.CDLL(None).syscall(_CLOSE_RANGE, 0, ctypes.c_uint(_ALL), _UNSHARE)
        _fill_standard()


def _leave_sigint() -> None:
    """Import the module that takes SIGINT over where it has its default action, and give it back. Raises nothing.

    One that comes meanwhile is repeated.
    """
    try:
        import _signal  # type: ignore[import-not-found]
    except KeyboardInterrupt:
        import _signal

        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
        os.kill(os.getpid(), _signal.SIGINT)
        return
    try:
        if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
            _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    except KeyboardInterrupt:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
        os.kill(os.getpid(), _signal.SIGINT)


def _fill_standard() -> None:
    while (descriptor := os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)) < _STANDARD:
        pass
    os.close(descriptor)
