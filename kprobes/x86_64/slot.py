"""What a slot holds: the copied instruction, then a trap or a jump back. Bytes in, bytes out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandbox.x86_64.encoding import INT3, jump
from sandbox.x86_64.instruction import Flow
from sandbox.x86_64.relocate import call_from_anywhere, expand, relocate

if TYPE_CHECKING:
    from kprobes.x86_64.emulation import Emulation
    from sandbox.x86_64.instruction import Instruction

SLOT_SIZE = 16
"""In bytes; every slot fits."""


def slot_bytes(insn: Instruction, slot: int, boosted: bool) -> bytes:
    """The bytes of the slot at `slot` for `insn`: `boosted`, it jumps back by itself; otherwise it ends in an int3.

    The trap's address tells nothing of the instruction's length: a system call is followed by the `lea` that puts the
    original return address into rcx. Raises OverflowError if an operand or the way back is beyond 2 GB.
    """
    copy = expand(insn, slot) if insn.flow is Flow.SYSCALL else relocate(insn, slot)
    return copy + (jump(slot + len(copy), insn.end) if boosted else bytes([INT3]))


def trapping_bytes(insn: Instruction, slot: int, emulation: Emulation | None) -> bytes:
    """The copy that ends in an int3; with an `emulation`, what runs when memory that it accesses is not there.

    That faults at `slot`, as the instruction would at its place. If the memory has come meanwhile, it does what it is there
    for; a call through memory or a register returns to the int3. Raises OverflowError as `slot_bytes` does.
    """
    if emulation is not None and not emulation.accesses_memory:
        return b""
    return call_from_anywhere(insn) if insn.flow is Flow.CALL else slot_bytes(insn, slot, False)
