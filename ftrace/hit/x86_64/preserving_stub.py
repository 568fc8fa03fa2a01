"""The return stub for code where no register is free, and the routine that it calls. Bytes and assembly text (AT&T).

In libraries, and at functions of C programs without stubs, no register is free: gcc keeps values in r8 to r11 across calls of
functions whose register use it knows (-fipa-ra). The return stub there is (a test compares it)

    registers  all are the program's, flags too
    stack      54: rsp -> the parent's return address (the return slot)
               64: rsp -> what lay above the return slot
               69: rsp -> the return slot, which is empty until the routine has filled it

      0  .quad site
     54  lea 8(%rsp), %rsp             <- calls whose return was hooked by a jump: the return address is dropped
     59  call body
     64  lea -8(%rsp), %rsp            <- calls return here: space for the address that they really return to
     69  call *exit(%rip)              <- ftrace_exit_preserving_all, which puts the parent's address there
     75  ret

whose calls and returns match for the CPU's return predictor.
"""

from __future__ import annotations

from ftrace.hit.x86_64.images import GET_REGISTERS, whole
from ftrace.hit.x86_64.stubs import EXIT_POINT, RETURN_POINT, SITE_SIZE, STUB_SIZE, TO_BODY_BY_CALL
from sandbox.x86_64.encoding import INT3

DROP_RETURN_PRESERVING = 54
"""Offset after the decision to hook: the return address is taken off the stack, and the body called."""
SLOT_RESTORED = 69
"""Up to this offset the return address is in the node only (ftrace.hit.x86_64.frames)."""
AFTER_CALL = 75
_DROP_AND_CALL = bytes.fromhex("488d642408") + b"\xe8" + bytes(4)
_CALL_EXIT = bytes.fromhex("488d6424f8") + b"\xff\x15" + bytes(4) + b"\xc3"
_TEMPLATE = (
    (bytes(8).ljust(DROP_RETURN_PRESERVING, bytes([INT3])) + _DROP_AND_CALL).ljust(EXIT_POINT, bytes([INT3]))
    + _CALL_EXIT
).ljust(STUB_SIZE, bytes([INT3]))


def preserving_stub(where: int, site: int, exit_: int) -> bytes:
    """The stub at `where` of the function at `site`. At `exit_` lies the address of ftrace_exit_preserving_all.

    Only the return path can be run until the body's address is filled in.
    """
    code = bytearray(_TEMPLATE)
    code[0:8] = site.to_bytes(8, "little")
    for at, target in ((TO_BODY_BY_CALL, where + SITE_SIZE), (AFTER_CALL - 4, exit_)):
        code[at : at + 4] = (target - (where + at + 4)).to_bytes(4, "little", signed=True)
    return bytes(code)


RESTORE_FLAGS = """    mov %ecx, %eax
    and $$~0x8d5, %eax
    cmp $$0x202, %eax
    jne 9f
    mov %cl, %ah
    shr $$11, %ecx
    and $$1, %ecx
    mov %cl, %al
    add $$0x7f, %al
    sahf"""
"""Set the flags that ecx holds; if there are others than the six arithmetic ones, go to 9. Uses eax and ecx."""

RETURN_PRESERVING = f"""    mov $REGS_FLAGS(%rsp), %rcx
{RESTORE_FLAGS}
8:
    .cfi_def_cfa %rsp, 176
{GET_REGISTERS}
    .cfi_remember_state
    .cfi_same_value %rbx
    lea 168(%rsp), %rsp
    ret
    .cfi_restore_state"""
"""Return with the registers and flags of the pt_regs on top of the stack. `WHOLE_FLAGS` has to follow somewhere."""
WHOLE_FLAGS = """9:  # a flag is set that sahf does not: take the word as it is
    .cfi_def_cfa %rsp, 176
    push %rcx
    popfq
    jmp 8b"""

EXIT_PRESERVING = f"""
# The return path of a hooked call, called by its return stub. Every register and flag is live; the stub's `ret` takes the address
# that is left in the return slot. Vector registers are saved around the calls of code that uses them.
#   stack inside: pt_regs (168 bytes), return into the stub at 168(%rsp), return slot at 176(%rsp)
#   rbx = the stack pointer, over the call
    .globl ftrace_exit_preserving_all
    .type ftrace_exit_preserving_all,@function
    .p2align 6
ftrace_exit_preserving_all:
    .cfi_startproc
{whole("push %rax")}
    cld
    lea 184(%rsp), %rax
    mov %rax, $REGS_SP(%rsp)
    mov %rsp, %rdi
    lea 176(%rsp), %rsi
    mov 168(%rsp), %rdx
    lea {RETURN_POINT - AFTER_CALL}(%rdx), %rdx
    mov %rsp, %rbx
    .cfi_rel_offset %rbx, $REGS_BX
    .cfi_def_cfa_register %rbx
    and $$-16, %rsp
    call dispatch_exit
    mov %rax, 176(%rbx)
    mov %rbx, %rsp
    .cfi_def_cfa %rsp, 176
{RETURN_PRESERVING}
{WHOLE_FLAGS}
"""
