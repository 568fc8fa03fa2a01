"""The detour of a jump-optimised probe: the routines as assembly text (AT&T), and the bytes of a detour.

A detour has a multiple of 64 bytes, and is aligned to 64. It belongs to one address as long as the code at the address exists.
That of `push %rbp; mov %rsp, %rbp; push %rbx` (a test compares it):

    registers  all are the program's, flags too
    stack      16, 27: the program's; in the routine: 128 bytes of red zone above the return into the detour at 27

      0  .quad routine            <- kprobe_optimized below, or a variant of it
      8  .quad record
     16  lea -128(%rsp), %rsp     <- target of the jump; skips the red zone
     21  call *0(%rip)            <- to the routine; its `ret $128` undoes the lea
     27  push %rbp                <- a copy of the probed instruction: a breakpoint's hit continues here
     28  mov %rsp, %rbp           <- copies of the others under the jump
     31  push %rbx
     32  jmp back                 <- to the next instruction

The detour changes no flag, and its call pairs with the routine's return in the CPU's return predictor.

At a function's entry with return probes, the copies are preceded by a `jne` to a jump at the detour's end. A call whose return
has been hooked continues there in the return stub of the address. The stub drops the return address on the stack and calls the
copy. This call pushes the address that the hook had stored there, so that calls and returns still pair.

If flags are live at the entry (code that was not compiled here), a jump to the return stub takes the place of the `jne`. For a
call whose return has not been hooked, the routine returns to the instruction after this jump.

The routine for one pre_handler that uses no registers, expanded to its first `ret` (a test compares it):

    kprobe_optimized_plain:
        push %rax
        lahf
        seto %al                            <- the flags, in ah and al
        push %r11
        push %r10
        push %rdi
        push %rsi
        push %rbx
        mov %fs:TASK, %r11
        test %r11, %r11
        je 7f                               <- the thread's first hit: kprobe_optimized, with all registers as they were
        cmpl $0, REC(%r11)
        jne 7f                              <- a hit inside of a hit
        cmpq $0, KPROBE(%r11)
        jne 7f
        mov 48(%rsp), %r10                  <- the return into the detour
        movl $FAST, REC(%r11)               <- until HIT_SP is noted: a signal's hit before that would note its own
        lea -8(%rsp), %rdi
        mov %rdi, (%rdi)
        lea ITSELF(%rdi), %rdi
        mov %rdi, HIT_SP(%r11)              <- the word below says where it is itself: a jump out is noticed by that
        movl $INSIDE, REC(%r11)
        movl $IN_NO_LIST, LIST(%r11)        <- who waits for a list of probes need not wait for this hit
        incq SERIAL(%r11)                   <- another hit has begun
        mov -19(%r10), %r10                 <- r10 = the record, the word at 8 of the detour
        mov CHILDREN(%r10), %rdi            <- loaded once: children may be replaced meanwhile
        cmpl $0, PLAIN(%rdi)
        je 6f                               <- no longer one plain probe
        mov CHILD(%rdi), %rdi
        testl $OFF, FLAGS(%rdi)
        jne 5f                              <- disabled, or gone
        movl $HIT_ACTIVE, STATUS(%r11)
        mov %rsp, %rbx
        lea -16(%rsp), %rsp
        and $-16, %rsp                      <- the program's stack may have any alignment here
        lea NOT_INSIDE(%rsp), %rsi
        mov %rsi, FRAME(%r11)
        mov %r10, KPROBE(%r11)              <- last: a signal's hit from here on is recursion
        mov PRE(%rdi), %r11
        mov COOKIE(%rdi), %rdi              <- rdi = the handler's `p`
        xor %esi, %esi                      <- no pt_regs: it uses none
        mov %rax, %r10                      <- the flags: the handler keeps every register but rax and r11
        call *%r11
        mov %rbx, %rsp
        mov %r10, %rax
        mov %fs:TASK, %r11
        movq $0, KPROBE(%r11)               <- the hit is over
        movq $0, FRAME(%r11)
        movl $0, STATUS(%r11)
        5:
        movq $0, REC(%r11)
        add $0x7f, %al                      <- OF ...
        sahf                                <- ... and the other flags, once nothing changes them any more
        pop %rbx
        pop %rsi
        pop %rdi
        pop %r10
        pop %r11
        pop %rax
        ret $128                            <- to the copies; takes off the red zone
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import Template
from typing import TYPE_CHECKING, NamedTuple

from ftrace.hit.x86_64.assembly_text import with_call_frames
from ftrace.hit.x86_64.preserving_stub import RESTORE_FLAGS
from kprobes.x86_64 import unwinding
from kprobes.x86_64.unwinding import REGISTERS, step, steps_of
from sandbox.x86_64.encoding import INT3, jump
from sandbox.x86_64.relocate import expand

if TYPE_CHECKING:
    from sandbox.x86_64.instruction import Instruction

DETOUR_SIZE = 64
RECORD, ENTRY, _CALL, COPY = 8, 16, 21, 27
"""Offsets in a detour."""
_JNE, _JNE_SIZE = b"\x0f\x85", 6
_JMP_SIZE = 5
_ENTRY_CODE = bytes.fromhex("488d642480") + b"\xff\x15" + (-COPY).to_bytes(4, "little", signed=True)

_HIT = """
# A hit: called at the start of a detour, by the probed thread. All registers and flags are live.
# Handlers get a pt_regs, and may change general registers and flags through it. Changes of ip and sp have no effect (KP-67).
# Vector registers are saved by the code that calls foreign handlers.
#   stack   from sp-128: the red zone; sp-136: return address into the detour; then a pt_regs, 168 bytes
#   rbx = the pt_regs during the call; eax, ecx, edx: the flags while they are converted
    .globl $name
    .type $name,@function
    .p2align 6
$name:
$head
    lea -168(%rsp), %rsp
    mov %rax, 80(%rsp)
    .cfi_rel_offset %rax, 80
$save_flags
    mov %rcx, 88(%rsp)
    mov %rdx, 96(%rsp)
$save
$saved
$flags_word
    mov %rcx, 144(%rsp)
    lea 304(%rsp), %rax
    mov %rax, 152(%rsp)
    movq $$-1, 120(%rsp)
    movq $$$USER_CS, 136(%rsp)
    movq $$$USER_SS, 160(%rsp)
    mov 168(%rsp), %rax
    mov -19(%rax), %rsi
    mov %rsp, %rdi
    mov %rsp, %rbx
    .cfi_def_cfa_register %rbx
    and $$-16, %rsp
    call kprobe_optimized_hit
    mov %rbx, %rsp
    .cfi_def_cfa %rsp, 304
$continuation
    mov 144(%rsp), %rcx
$restore_flags
8:
    .cfi_def_cfa %rsp, 304
$restore
    mov 80(%rsp), %rax
    .cfi_remember_state
$unsaved
    lea 168(%rsp), %rsp
    ret $$128
    .cfi_restore_state
9:  # a handler has set a flag that sahf does not restore: load the whole word
    push %rcx
    popfq
    jmp 8b
    .size $name, .-$name
"""

_PLAIN = """
# A hit of an address with one probe. Its pre_handler is ours: it keeps all registers but rax and r11, and needs no pt_regs.
# Any other hit (another list of probes, recursion, no task) jumps to $otherwise with all registers restored.
#   stack   sp-136: return address into the detour, at 48(%rsp); below it six saved registers
#   r11 = task, r10 = record, rdi = the list of children, then the child; rbx = the stack pointer during the call
    .globl $name
    .type $name,@function
    .p2align 6
$name:
$head
    push %rax
    .cfi_rel_offset %rax, 0
$save_flags
    push %r11
    .cfi_rel_offset %r11, 0
    push %r10
    .cfi_rel_offset %r10, 0
    push %rdi
    .cfi_rel_offset %rdi, 0
    push %rsi
    .cfi_rel_offset %rsi, 0
    push %rbx
    .cfi_rel_offset %rbx, 0
    mov %fs:$TASK, %r11
    test %r11, %r11
    je 7f
    cmpl $$0, $REC(%r11)
    jne 7f
    cmpq $$0, $KPROBE(%r11)
    jne 7f
    mov 48(%rsp), %r10
    movl $$$FAST, $REC(%r11)
    lea -8(%rsp), %rdi
    mov %rdi, (%rdi)
    lea $ITSELF(%rdi), %rdi
    mov %rdi, $HIT_SP(%r11)
    movl $$$INSIDE, $REC(%r11)
    movl $$$IN_NO_LIST, $LIST(%r11)
    incq $SERIAL(%r11)
    mov -19(%r10), %r10
    mov $CHILDREN(%r10), %rdi
    cmpl $$0, $PLAIN(%rdi)
    je 6f
    mov $CHILD(%rdi), %rdi
    testl $$$OFF, $FLAGS(%rdi)
    jne 5f
    movl $$$HIT_ACTIVE, $STATUS(%r11)
    mov %rsp, %rbx
    .cfi_def_cfa_register %rbx
    lea -16(%rsp), %rsp
    and $$-16, %rsp
    lea $NOT_INSIDE(%rsp), %rsi
    mov %rsi, $FRAME(%r11)
    mov %r10, $KPROBE(%r11)
    mov $PRE(%rdi), %r11
    mov $COOKIE(%rdi), %rdi
    xor %esi, %esi
    mov %rax, %r10
    call *%r11
    mov %rbx, %rsp
    .cfi_def_cfa %rsp, 184
    mov %r10, %rax
    mov %fs:$TASK, %r11
    movq $$0, $KPROBE(%r11)
    movq $$0, $FRAME(%r11)
    movl $$0, $STATUS(%r11)
5:  movq $$0, $REC(%r11)
    .cfi_remember_state
$restore_flags
$get
    ret $$128
    .cfi_restore_state
6:  decq $SERIAL(%r11)
    movq $$0, $REC(%r11)
7:
$undo_flags
$get
    jmp $otherwise
    .size $name, .-$name
"""

_RESTORE_FLAGS = Template(RESTORE_FLAGS).substitute()

# The direction flag is clear, as between functions: only the six arithmetic flags are preserved.
_FEW = {
    "name": "kprobe_optimized",
    "save_flags": "    lahf\n    seto %al",
    "flags_word": "    movzbl %al, %ecx\n    movzbl %ah, %edx\n    shl $11, %ecx\n    lea 0x200(%rcx,%rdx), %rcx",
    "continuation": "",
    "restore_flags": _RESTORE_FLAGS,
}

# In a function that sets the direction flag: all flags are preserved, and the direction flag is cleared for handlers.
_ALL = {
    "name": "kprobe_optimized_all_flags",
    "save_flags": "    pushfq\n    popq 144(%rsp)",
    "flags_word": "    cld\n    mov 144(%rsp), %rcx",
    "continuation": "",
    "restore_flags": "    jmp 9f",
}


# At a function's entry, where flags are dead: after the call in the detour, ZF is set if the return is not hooked.
_NONE = {
    "name": "kprobe_optimized_return",
    "save_flags": "",
    "flags_word": "    mov $0x246, %ecx",
    "continuation": "",
    "restore_flags": "    test %eax, %eax",
}

# At an entry where flags are live: all flags are preserved. The routine returns to the jump after the call in the detour if the
# return is hooked, else to the instruction after this jump.
_STEP_OVER = f"addq ${_JMP_SIZE}, "
_KEPT = {
    "name": "kprobe_optimized_return_preserving",
    "save_flags": "    pushfq\n    popq 144(%rsp)",
    "flags_word": "    cld\n    mov 144(%rsp), %rcx",
    "continuation": f"    test %eax, %eax\n    jne 7f\n    {_STEP_OVER}168(%rsp)\n7:",
    "restore_flags": _RESTORE_FLAGS,
}


_PLAIN_USES = ("rbx", "rsi", "rdi", "r10", "r11", "rax")

_PLAIN_FEW = {
    "name": "kprobe_optimized_plain",
    "otherwise": "kprobe_optimized",
    "save_flags": "    lahf\n    seto %al",
    "restore_flags": "    add $0x7f, %al\n    sahf",
    "undo_flags": "    add $0x7f, %al\n    sahf",
}

# At the entry of a function that has or had return probes: ZF is set, since the return is not hooked.
_PLAIN_NONE = {
    "name": "kprobe_optimized_plain_return",
    "otherwise": "kprobe_optimized_return",
    "save_flags": "",
    "restore_flags": "    xor %eax, %eax",
    "undo_flags": "",
}

_PLAIN_KEPT = {
    **_PLAIN_FEW,
    "name": "kprobe_optimized_plain_return_preserving",
    "otherwise": "kprobe_optimized_return_preserving",
    "restore_flags": f"    {_STEP_OVER}48(%rsp)\n    add $0x7f, %al\n    sahf",
}


def assembly(constants: Mapping[str, int | str]) -> str:
    """The assembly text of all routines. `constants`: values of the names in them (kprobes.hit.assembly)."""
    others = [register for register in REGISTERS if register not in ("rax", "rcx", "rdx")]
    all_but_rax = [register for register in REGISTERS if register != "rax"]
    frame = unwinding.head(136) + "\n" + unwinding.ip_by_record(136, int(constants["ADDRESS"]), DETOUR_SIZE, RECORD)
    blocks = {
        **constants,
        "head": frame,
        "save": "\n".join(f"    mov %{register}, {REGISTERS[register]}(%rsp)" for register in others),
        "restore": "\n".join(f"    mov {REGISTERS[register]}(%rsp), %{register}" for register in all_but_rax),
        "saved": unwinding.saved(304),
        "unsaved": unwinding.unsaved(),
        "get": "\n".join(f"    pop %{register}\n    .cfi_same_value %{register}" for register in _PLAIN_USES),
    }
    texts = [Template(_HIT).substitute({**blocks, **flags}) for flags in (_FEW, _ALL, _NONE, _KEPT)]
    texts += [Template(_PLAIN).substitute({**blocks, **flags}) for flags in (_PLAIN_FEW, _PLAIN_NONE, _PLAIN_KEPT)]
    return "    .text\n" + with_call_frames("\n".join(texts))


class DetourCode(NamedTuple):
    """A detour's bytes, the address of the copy of each instruction, and the steps by offset (kprobes.x86_64.unwinding)."""

    code: bytes
    copies: list[int]
    steps: dict[int, int]


def detour_code(
    insns: Sequence[Instruction], detour: int, routine: int, record: int, hooked: int = 0, preserving: bool = False
) -> DetourCode:
    """The code of a detour at address `detour` for successive instructions, of which the first is probed.

    `routine`: address of kprobe_optimized or a variant. `record`: address of the kprobe's record, which leads to the handlers.
    `hooked`: address of the return stub, where calls with a hooked return continue; 0 if the address has no return probes.
    `preserving`: flags are live at the address. The size is a multiple of 64. Raises OverflowError if a target is beyond 2 GB,
    ValueError for an instruction that cannot be moved.
    """
    code = routine.to_bytes(8, "little") + record.to_bytes(8, "little") + _ENTRY_CODE
    copies = []
    if hooked:
        code += jump(detour + COPY, hooked) if preserving else bytes(_JNE_SIZE)
    for insn in insns:
        copies.append(len(code))
        code += expand(insn, detour + copies[-1])
    steps = {
        len(code): step(insns[-1].end - insns[0].address),
        ENTRY: step(0),
        _CALL: step(0, skipped=True),
        COPY: step(0),
    }
    code += jump(detour + len(code), insns[-1].end)
    if hooked and not preserving:
        steps[len(code)] = step(0)
        jne = _JNE + (len(code) - COPY - _JNE_SIZE).to_bytes(4, "little")
        code = code[:COPY] + jne + code[COPY + _JNE_SIZE :] + jump(detour + len(code), hooked)
    code = code.ljust(-(-len(code) // DETOUR_SIZE) * DETOUR_SIZE, bytes([INT3]))
    return DetourCode(code, [detour + copy for copy in copies], steps | steps_of(insns, copies))
