"""Code that keeps forks of a program apart from the Python that was brought into it. It stays until the process ends.

A child has the locks of the C library as they were when it was forked. One that only another thread of its parent could give
back is held in it for ever: of locales, of time zones, of the list of libraries. A program with one thread relies on there being
none, and forks servers. So a fork waits until no thread of ours runs Python, and such a thread gives way to forks.

    holders   threads of ours that are running Python      forking   threads that fork, or wait until they can

A page of code, and one of these two numbers. `PREPARE`, `PARENT` and `CHILD` are for pthread_atfork.
"""

from __future__ import annotations

import struct

from sandbox.x86_64.remote_thread import PAGE
from sandbox.x86_64.syscalls import SYS_NANOSLEEP

HOLDERS, FORKING = PAGE, PAGE + 4
"""Offsets of the numbers, of 32 bits."""
WHOLE = 2 * PAGE
_NAP = 50_000
"""Nanoseconds."""
PATIENCE = 20_000
"""Naps, a second or two in all, for which a fork waits: a limit that turns a deadlock into a delay."""


class _Code:
    """Machine code that begins on a page. Operands are numbers of that page, or of the page after it."""

    def __init__(self) -> None:
        self.bytes = bytearray()

    def __iadd__(self, code: bytes) -> _Code:
        self.bytes += code
        return self

    def relative(self, opcode: bytes, target: int, after: bytes = b"") -> None:
        """An instruction with the distance from its end to an offset in it. `after`: its bytes behind that."""
        end = len(self.bytes) + len(opcode) + 4 + len(after)
        self.bytes += opcode + struct.pack("<i", target - end) + after


_INCREASE, _DECREASE, _IS_ZERO, _CALL = b"\xf0\xff\x05", b"\xf0\xff\x0d", b"\x83\x3d", b"\xe8"
"""lock incl, lock decl, and cmpl $0 of a number; a call"""


def _made() -> tuple[bytes, dict[str, int]]:
    code, at = _Code(), dict[str, int]()

    at["nap"] = 0
    code += b"\x48\x83\xec\x18\x48\xc7\x04\x24\0\0\0\0"  # sub $24,%rsp; movq $0,(%rsp)
    code += b"\x48\xc7\x44\x24\x08" + struct.pack("<I", _NAP)  # movq $_NAP,8(%rsp)
    code += b"\xb8" + struct.pack("<I", SYS_NANOSLEEP) + b"\x48\x89\xe7\x31\xf6\x0f\x05"  # nanosleep(%rsp, NULL)
    code += b"\x48\x83\xc4\x18\xc3"

    at["prepare"] = len(code.bytes)
    code.relative(_INCREASE, FORKING)
    code += b"\x53\xbb" + struct.pack("<I", PATIENCE)  # push %rbx; mov $PATIENCE,%ebx
    look = len(code.bytes)
    code.relative(_IS_ZERO, HOLDERS, b"\0")
    code += b"\x74\x09"  # je over the call, dec and jne
    code.relative(_CALL, at["nap"])
    code += b"\xff\xcb\x75" + struct.pack("b", look - len(code.bytes) - 4)  # dec %ebx; jne look
    code += b"\x5b\xc3"

    at["parent"] = len(code.bytes)
    code.relative(_DECREASE, FORKING)
    code += b"\xc3"

    at["child"] = len(code.bytes)
    for number in (HOLDERS, FORKING):
        code.relative(b"\xc7\x05", number, bytes(4))  # movl $0
    code += b"\xc3"

    at["enter"] = len(code.bytes)
    code.relative(_INCREASE, HOLDERS)
    code.relative(_IS_ZERO, FORKING, b"\0")
    code += b"\x75\x01\xc3"  # jne over ret
    code.relative(_DECREASE, HOLDERS)
    code.relative(_CALL, at["nap"])
    code += b"\xeb" + struct.pack("b", at["enter"] - len(code.bytes) - 2)

    at["leave"] = len(code.bytes)
    code.relative(_DECREASE, HOLDERS)
    code += b"\xc3"
    return bytes(code.bytes), at


CODE, _PLACES = _made()
PREPARE, PARENT, CHILD, ENTER, LEAVE = (_PLACES[name] for name in ("prepare", "parent", "child", "enter", "leave"))
"""Offsets of functions without arguments or results."""
