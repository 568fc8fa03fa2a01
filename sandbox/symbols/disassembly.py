"""Machine code as text, with the names of call targets and operands, and with the stubs marked."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from sandbox.compile.stubs import STUB_SIZE
from sandbox.x86_64.decoding import decoded

Describe = Callable[[int], "str | None"]
"""An address -> its name, such as `vfs_read+0x0/0x30 [demo]`; None if unknown."""

_TARGET = re.compile(r"0x[0-9a-f]+|\d")
_RIP_RELATIVE = re.compile(r"\[rip (?P<sign>[+-]) (?P<offset>0x[0-9a-f]+|\d+)\]")
_BYTES_SHOWN = 10


class Line(NamedTuple):
    """One instruction. `note` says what its operand points to, and is empty if there is nothing to say."""

    address: int
    code: bytes
    text: str
    note: str
    is_stub: bool


def disassemble(code: bytes, address: int, describe: Describe, stubs: Collection[int] = ()) -> list[Line]:
    """The instructions of `code`, which runs at `address`; `stubs` are the addresses of 5-byte stubs.

    Bytes that are no instruction become a `.byte` each. A stub is one line whatever it holds.
    """
    lines: list[Line] = []
    position = 0
    for stub in sorted(stub - address for stub in stubs if address <= stub < address + len(code)):
        lines += _stretch(code[position:stub], address + position, describe)
        lines += _stub(code[stub : stub + STUB_SIZE], address + stub, describe)
        position = stub + STUB_SIZE
    return [*lines, *_stretch(code[position:], address + position, describe)]


def _stub(code: bytes, address: int, describe: Describe) -> Iterator[Line]:
    first = next(_stretch(code, address, describe))
    whole = len(first.code) == STUB_SIZE
    # Anything else than one instruction is a stub in the middle of being patched.
    yield Line(address, code, first.text if whole else f"{first.text} ...", first.note, True)


def _stretch(code: bytes, address: int, describe: Describe) -> Iterator[Line]:
    position = 0
    while position < len(code):
        for start, size, mnemonic, operands in decoded(code[position:], address + position):
            position = start - address + size
            note = _note(start + size, mnemonic, operands, describe)
            text = f"{mnemonic} {operands}".strip()
            yield Line(start, code[position - size : position], text, note, False)
        if position < len(code):
            yield Line(address + position, code[position : position + 1], f".byte {code[position]:#04x}", "", False)
            position += 1


def _note(after: int, mnemonic: str, operands: str, describe: Describe) -> str:
    """The address that the instruction refers to: the target of a jump or call, or memory relative to `after`, its end."""
    if mnemonic.startswith(("j", "call", "loop", "xbegin")) and _TARGET.fullmatch(operands):
        return describe(int(operands, 16)) or ""
    relative = _RIP_RELATIVE.search(operands)
    if not relative:
        return ""
    offset = int(relative["offset"], 0)
    return describe(after + offset if relative["sign"] == "+" else after - offset) or ""


def listing(lines: Collection[Line], base: int) -> Iterator[str]:
    """Lines of text; offsets are from `base`, the start of the function. A stub is marked by `=>`."""
    for line in lines:
        shown = line.code[:_BYTES_SHOWN].hex(" ") + (" .." if len(line.code) > _BYTES_SHOWN else "")
        mark = "=>" if line.is_stub else "  "
        note = f"  <{line.note}>" if line.note else ""
        yield f"{mark} {line.address:#x} +{line.address - base:<#6x} {shown:<32} {line.text}{note}".rstrip()
