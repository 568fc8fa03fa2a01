"""The few instructions that are written rather than decoded: NOPs, endbr64, int3, near jumps, a counter of forks."""

from __future__ import annotations

NOP5 = bytes.fromhex("0f1f440000")
"""nopl 0(%rax,%rax,1): what a site is while nothing is attached."""
ENDBR64 = bytes.fromhex("f30f1efa")
INT3 = 0xCC
JMP32, JMP32_SIZE = 0xE9, 5
_OPCODE = bytes([JMP32])


def displacement(target: int, after: int) -> bytes:
    """The rel32 that leads from the instruction that ends at `after` to `target`. Raises OverflowError beyond 2 GB."""
    distance = target - after
    if not -(1 << 31) <= distance < 1 << 31:
        raise OverflowError(f"{target:#x} is not within 2 GB of {after:#x}")
    return distance.to_bytes(4, "little", signed=True)


def jump(site: int, target: int) -> bytes:
    """`jmp target` for the 5 bytes at `site`. Raises OverflowError beyond 2 GB."""
    return _OPCODE + displacement(target, site + JMP32_SIZE)


FAR_JUMP = 14


def far_jump(target: int) -> bytes:
    """A jump to any address, which is a word behind it: FAR_JUMP bytes, no register is changed."""
    return bytes.fromhex("ff2500000000") + target.to_bytes(8, "little")


def fork_counter(word: int) -> bytes:
    """Code of a `void (void)` that adds one to the 64-bit word at address `word`, as one step."""
    load = b"\x48\xb8" + word.to_bytes(8, "little")  # movabs $word, %rax
    return load + bytes.fromhex("f048ff00 c3")  # lock incq (%rax); ret
