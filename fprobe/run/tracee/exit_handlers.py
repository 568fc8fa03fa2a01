"""Exit handlers of the libraries that the probes bring into a program: the calls that these make are not the program's.

exit() calls handlers in the reverse order of their registration. Those of LLVM are registered between two of ours, of which
the later one is called before them, and the earlier one after them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

from sandbox.memory import mappings

_CODE = b"\xff\x25\x0a\x00\x00\x00" + b"\xc3"  # jmp *16(base) ; ret
_RETURN = 6
"""Offset of the ret, the first target of the jump: the native code that it is for is not loaded yet."""
_TARGET = 16


@contextmanager
def not_traced() -> Iterator[None]:
    """The exit handlers that are registered inside the block will run untraced. The runtime must exist at its end."""
    libc = ctypes.CDLL(None)
    near = ctypes.cast(libc.exit, ctypes.c_void_p).value or 0
    page = mappings.allocate_text((near, near), mappings.PAGE, "fprobe-exit")
    page.write(page.base, _CODE)
    page.write(page.base + _TARGET, (page.base + _RETURN).to_bytes(8, "little"))
    _at_exit(libc, page.base)
    yield
    from ftrace.core.runtime import runtime

    image = runtime().image
    with runtime().unseen():
        page.write(page.base + _TARGET, image.address("unpause_tracing").to_bytes(8, "little"))
        _at_exit(libc, image.address("pause_tracing"))


def _at_exit(libc: ctypes.CDLL, address: int) -> None:
    register = getattr(libc, "__cxa_atexit")  # a name that a class would mangle
    register.argtypes = [ctypes.c_void_p] * 3
    if register(address, None, None):
        raise MemoryError("the C library has no space for an exit handler")
