"""What the patched entry of a function without a stub leads to. Bytes, and assembly text (AT&T).

In code that was not compiled here no register is free, at an entry and at a return (ftrace.x86_64.keeping_stub). The detour of a
function belongs to it for as long as its code is there, is aligned to 16 bytes, and is

      0  .quad return point            of the function's keeping stub, by which nodes name it
      8  call *entry(%rip)             ftrace_entry_keeping_all
     14  jmp  hooked                   calls whose return is hooked: the stub drops the return address and calls the body
     19  the body: copies of the instructions that the patch covers
      -  jmp  back                     to the instruction behind

For a call whose return is not hooked the routine steps over the jump.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ftrace.x86_64.images import GET_REGISTERS, PUSH_ALL
from ftrace.x86_64.keeping_stub import DROP_RETURN_KEEPING, RESTORE_FLAGS
from ftrace.x86_64.stubs import RETURN_POINT
from sandbox.x86_64.encoding import JMP32_SIZE, displacement, jump
from sandbox.x86_64.instruction import INT3
from sandbox.x86_64.relocate import expand

if TYPE_CHECKING:
    from sandbox.x86_64.instruction import Instruction

ENTRY, DECIDED, BODY = 8, 14, 19
"""Offsets: where the patch leads, behind the call, and where calls go on that are not hooked."""
STEP_OVER = JMP32_SIZE
_ALIGNMENT = 16


class EntryDetour(NamedTuple):
    """A detour's bytes and, by address, where the copy of each instruction is."""

    code: bytes
    copies: list[int]


def entry_detour(insns: Sequence[Instruction], where: int, stub: int, entry: int) -> EntryDetour:
    """The detour at `where` of a function that begins with `insns`, which a patch covers, and returns through `stub`.

    At `entry` lies the address of ftrace_entry_keeping_all. Raises OverflowError if something is beyond 2 GB, ValueError for
    an instruction that cannot be moved.
    """
    code = (stub + RETURN_POINT).to_bytes(8, "little")
    code += b"\xff\x15" + displacement(entry, where + DECIDED)
    code += jump(where + DECIDED, stub + DROP_RETURN_KEEPING)
    copies = []
    for insn in insns:
        copies.append(where + len(code))
        code += expand(insn, copies[-1])
    code += jump(where + len(code), insns[-1].end)
    return EntryDetour(code.ljust(-(-len(code) // _ALIGNMENT) * _ALIGNMENT, bytes([INT3])), copies)


ENTRY_KEEPING = f"""
# Entry of a function without a stub, called by its detour. Every register and flag is live. Vector registers are kept by whoever
# calls something that touches them.
#   stack inside: pt_regs (168 bytes), return into the detour at 168(%rsp), return slot at 176(%rsp)
#   rbx = the stack pointer, over the call
    .globl ftrace_entry_keeping_all
    .type ftrace_entry_keeping_all,@function
    .p2align 6
ftrace_entry_keeping_all:
    .cfi_startproc
    push $$$USER_SS
    push %rax
    pushfq
    push $$$USER_CS
    push $$0
    push $$-1
{PUSH_ALL}
    cld
    lea 176(%rsp), %rax
    mov %rax, $REGS_SP(%rsp)
    mov %rsp, %rdi
    mov 168(%rsp), %rsi
    mov $STUB_OF_DETOUR(%rsi), %rsi
    mov %rsp, %rbx
    .cfi_rel_offset %rbx, $REGS_BX
    .cfi_def_cfa_register %rbx
    and $$-16, %rsp
    call dispatch_slow
    mov %rbx, %rsp
    .cfi_def_cfa %rsp, 176
    cmp $$$REDIRECTED, %eax
    je 7f
    cmp $$$HOOKED, %eax
    je 6f
    addq $$$STEP_OVER, 168(%rsp)
6:
    .cfi_def_cfa %rsp, 176
    mov $REGS_FLAGS(%rsp), %rcx
{RESTORE_FLAGS}
8:
    .cfi_def_cfa %rsp, 176
{GET_REGISTERS}
    .cfi_remember_state
    .cfi_same_value %rbx
    lea 168(%rsp), %rsp
    ret
    .cfi_restore_state
7:  # a handler has sent the call elsewhere
    .cfi_def_cfa %rsp, 176
    mov $REGS_IP(%rsp), %rax
    mov %rax, 168(%rsp)
    jmp 6b
9:  # a flag is set that sahf does not: take the word as it is
    .cfi_def_cfa %rsp, 176
    push %rcx
    popfq
    jmp 8b
"""
