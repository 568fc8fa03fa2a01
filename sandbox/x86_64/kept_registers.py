"""Registers that a routine leaves alone, though the calling convention lets it change them.

Assembly, such as OpenSSL's, keeps values in any register over calls of its own routines. A routine is followed over direct jumps
to its returns. It must not name the register, and have only instructions that change nothing but what they name.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from sandbox.x86_64.decoding import Decoded, first_decoded
from sandbox.x86_64.return_slot import registers_in

_PLAIN = frozenset({
    "mov", "movabs", "movbe", "movzx", "movsx", "movsxd", "lea", "nop", "endbr64", "ret", "push", "pop", "bswap",
    "add", "sub", "adc", "sbb", "and", "or", "xor", "not", "neg", "inc", "dec", "cmp", "test", "bt",
    "shl", "shr", "sar", "rol", "ror", "prefetcht0", "prefetcht1", "prefetcht2", "prefetchnta",
    "vzeroupper", "vzeroall",
})  # fmt: skip
"""Instructions that change registers by their operands only, and the stack pointer."""
_OF_VECTORS = re.compile(r"[xyz]mm\d")
_COMPARES_TEXT = "str"
"""In the names of the instructions with vectors that have a result in rcx, which they do not name: pcmpistri and its like."""
_MOST = 4096
"""Instructions of a routine that are followed."""
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+")


def keeps(read: Callable[[int], bytes], start: int, register: str) -> bool:
    """Whether the routine at `start` certainly leaves `register` as it is. `read`: the code from an address on, b"" if none."""
    seen, waiting = set[int](), [start]
    while waiting and len(seen) < _MOST:
        at = waiting.pop()
        if at in seen:
            continue
        seen.add(at)
        insn = first_decoded(read(at), at)
        if insn is None or register in registers_in(insn.operands):
            return False
        ways = _ways(insn)
        if ways is None:
            return False
        waiting += ways
    return not waiting


def _ways(insn: Decoded) -> list[int] | None:
    """Where an instruction leads to; None if that, or what it changes, is not known."""
    name, following = insn.mnemonic.rpartition(" ")[2], insn.address + insn.size
    if name == "ret":
        return []
    if name[0] == "j":
        if not _NUMBER.fullmatch(insn.operands):
            return None
        return [int(insn.operands, 16)] + [following] * (name != "jmp")
    is_of_vectors = _OF_VECTORS.search(insn.operands) is not None and _COMPARES_TEXT not in name
    is_plain = name in _PLAIN or is_of_vectors or name.startswith(("set", "cmov"))
    return [following] if is_plain else None
