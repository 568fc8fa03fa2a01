"""Where instructions begin: linear decoding from a symbol's start (KP-18).

`read(address, size)` gives original bytes: the caller sees to it that installed breakpoints, jumps and ftrace sites are
read through. It may give fewer bytes than asked for where the text ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sandbox.x86_64.decoding import decoder

Read = Callable[[int, int], bytes]

_CHUNK = 4096
_LONGEST = 15


def _instruction_starts(read: Read, start: int, end: int) -> Iterator[int]:
    """Addresses of instructions, and as the last one where decoding stopped, at `end` or before it."""
    address = start
    while address < end:
        size = min(_CHUNK, end - address)
        code = read(address, size)
        # An instruction may be cut off by the end of the chunk, but not by the end of the function.
        trusted = address + size if address + size == end else address + size - _LONGEST
        before = address
        for at, length, _mnemonic, _operands in decoder().disasm_lite(code, address):
            if at >= trusted:
                break
            yield at
            address = at + length
        if address == before:
            break
    yield address


def boundaries(read: Read, start: int, end: int) -> list[int]:
    """The address of each instruction in [start, end), ascending.

    Raises ValueError, naming the address, if bytes in between are no instruction or the last one goes beyond `end`.
    """
    *starts, stopped = _instruction_starts(read, start, end)
    if stopped != end:
        raise ValueError(f"the bytes at {stopped:#x} are no x86-64 instruction")
    return starts
