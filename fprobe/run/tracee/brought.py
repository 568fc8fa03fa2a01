"""The first thing that an interpreter runs which was brought into a program that has none. Its text is sent there, and executed.

Its thread has a table of descriptors of its own, which is empty: the program's numbers stay as they are, it may close whatever it
wants, and the children that it forks inherit none of ours.
"""

from __future__ import annotations

import os
import sys

_BROUGHT = "_fprobe_brought"
"""Attribute of `sys` in such an interpreter."""
_CLOSE_RANGE, _ALL, _UNSHARE = 436, 0xFFFFFFFF, 2
_STANDARD = 3


def is_here() -> bool:
    """Whether this interpreter was brought into a program that is not Python."""
    return getattr(sys, _BROUGHT, False)


def settle() -> None:
    """Leave Ctrl-C to the program, and keep the numbers of standard streams from being used for files."""
    import gc  # here, since a Python of the program's own need not have it

    setattr(sys, _BROUGHT, True)
    gc.disable()  # until all is imported: none of it is garbage
    _leave_sigint()
    _fill_standard()


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
