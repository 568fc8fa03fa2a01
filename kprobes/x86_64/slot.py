"""The contents of a slot: copies of the probed instruction, and a detour. Bytes in, bytes out.

A slot has 64 bytes, is aligned to 64, and belongs to one probed address until the code there is freed. That of `mov %rsp, %rbp`
(a test compares it):

    registers  all are the program's, flags too
    stack      0 and 16: the program's; 43: rsp -> the record, below the red zone of 128 bytes

      0  mov %rsp, %rbp           <- the copied instruction, then int3: stepped; or one to be emulated, to fault in
      3  int3
     16  mov %rsp, %rbp           <- the copied instruction, then a jump back: boosted
     19  jmp back
     32  lea -128(%rsp), %rsp     <- the detour: over the red zone
     37  push 56(%rip)            <- the record
     43  jmp *common(%rip)        <- kprobe_detour
     56  .quad record

`common` is a word at the start of the slots' page that holds the address of `kprobe_detour`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandbox.x86_64.encoding import INT3, jump
from sandbox.x86_64.instruction import Flow
from sandbox.x86_64.relocate import call_from_anywhere, expand, relocate

if TYPE_CHECKING:
    from kprobes.x86_64.emulation import Emulation
    from sandbox.x86_64.instruction import Instruction

SLOT_SIZE = 64
BOOSTED, DETOUR, RECORD = 16, 32, 56
"""Offsets in a slot."""

_FILL = bytes([INT3])
_SKIP_RED_ZONE = bytes.fromhex("488d642480")
_JUMP_AT = DETOUR + 11


def slot_bytes(insn: Instruction, slot: int, boosted: bool) -> bytes:
    """The copy of `insn` at `slot`, with what follows it: a jump back if `boosted`, otherwise an int3.

    The trap's address tells nothing of the instruction's length: a system call is followed by the `lea` that puts the
    original return address into rcx. Raises OverflowError if an operand or the jump back is beyond 2 GB.
    """
    copy = expand(insn, slot) if insn.flow is Flow.SYSCALL else relocate(insn, slot)
    return copy + (jump(slot + len(copy), insn.end) if boosted else bytes([INT3]))


def trapping_bytes(insn: Instruction, slot: int, emulation: Emulation | None) -> bytes:
    """The copy that ends in an int3; with an `emulation`, the copy for the case that its memory is not mapped.

    That copy faults at `slot`, as the instruction would at its place. If the memory has been mapped since, the copy succeeds;
    a call through memory or a register returns to the int3. Raises OverflowError as `slot_bytes` does.
    """
    if emulation is not None and not emulation.accesses_memory:
        return b""
    return call_from_anywhere(insn) if insn.flow is Flow.CALL else slot_bytes(insn, slot, False)


_DETOUR_HEAD = _SKIP_RED_ZONE + b"\xff\x35" + (RECORD - _JUMP_AT).to_bytes(4, "little") + b"\xff\x25"


def detour_bytes(slot: int, common: int) -> bytes:
    """The detour in the slot at `slot`. `common`: the address of the word that holds the address of kprobe_detour."""
    return _DETOUR_HEAD + (common - (slot + _JUMP_AT + 6)).to_bytes(4, "little", signed=True)


def slot_image(
    insn: Instruction, slot: int, common: int, record: int, emulation: Emulation | None, boostable: bool
) -> tuple[bytes, int]:
    """All 64 bytes of a slot, and the length of the copy that ends in a breakpoint.

    Raises OverflowError if an operand is out of range of the slot.
    """
    trapping = trapping_bytes(insn, slot, emulation)
    boosted = slot_bytes(insn, slot + BOOSTED, True) if boostable else b""
    copies = trapping.ljust(BOOSTED, _FILL) + boosted if boosted else trapping
    image = (copies.ljust(DETOUR, _FILL) + detour_bytes(slot, common)).ljust(RECORD, _FILL)
    return image + record.to_bytes(8, "little"), len(trapping)
