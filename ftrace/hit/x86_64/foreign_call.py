"""Calling C code from a hit with live vector registers preserved, as assembly text (AT&T).

A call at a function's entry, expanded down to where the case of wide vectors begins (a test compares it). IF_WIDE_VECTORS,
KEEP_XMM and GET_XMM depend on the CPU (`vector_blocks`).

    registers  rdi = handler, rsi = fp, rdx = ip, rcx = ret_ip, r8 = regs, r9 = data
    stack      from (%rbp) down: rbp, rbx, r12, r13; then the aligned area of 576 bytes, kept vectors first

    ftrace_call_foreign:
        push %rbp
        mov %rsp, %rbp                      <- the vectors' area below is aligned; rbp finds the way back
        push %rbx
        push %r12
        push %r13
        mov %rdi, %rbx                      <- rbx = the handler
        mov %rdx, %r12                      <- r12 = ip
        mov %rcx, %r13                      <- r13 = ret_ip
        cld
        sub $576, %rsp                      <- 8 registers at 64 bytes' distance, and 64 bytes above them
        and $-64, %rsp
        IF_WIDE_VECTORS                     <- anything above the xmm registers that is not zero?
        jne 7f                              <- the same with whole registers
        KEEP_XMM
        VZEROUPPER                          <- nothing where the CPU has no AVX
        mov %fs:TASK, %r11
        mov VECTORS(%r11), %r10
        mov %r10, 512(%rsp)                 <- what Task.vectors said before: hits nest
        fnstcw 520(%rsp)
        lea 4(%rsp), %r10
        mov %r10, VECTORS(%r11)             <- where the registers are kept, plus their distance in units of 16 bytes
        push %rsi
        push %r8
        push %r9
        push %r9                            <- room for the state of cancellation
        call cancellation_off               <- pthread_cancel must not end the thread in a handler
        mov %eax, (%rsp)
        mov 24(%rsp), %rdi                  <- fp
        mov %r12, %rsi
        mov %r13, %rdx
        mov 16(%rsp), %rcx                  <- regs
        mov 8(%rsp), %r8                    <- data
        call *%rbx
        mov (%rsp), %edi
        mov %eax, 8(%rsp)
        call cancellation_back
        mov 8(%rsp), %eax                   <- the handler's result
        lea 32(%rsp), %rsp
        mov 512(%rsp), %r10
        mov %fs:TASK, %r11
        mov %r10, VECTORS(%r11)
        GET_XMM
        6: fnstcw 522(%rsp)
        mov 522(%rsp), %r10w
        cmp %r10w, 520(%rsp)
        je 8f
        fldcw 520(%rsp)                     <- slow: only if the handler has changed the x87 control word
        jmp 8f                              <- 8 takes the frame off and returns
"""

from __future__ import annotations

_KEEP_ALL = """    # every component, in an area on the stack, 64-byte aligned; its size and mask come from CPUID
    sub $$$XSAVE_SIZE, %rsp
    and $$-64, %rsp
    xor %edx, %edx
    mov $$$XSAVE_MASK, %eax
    movq $$0, 512(%rsp)
    movq $$0, 520(%rsp)
    movq $$0, 528(%rsp)
    movq $$0, 536(%rsp)
    movq $$0, 544(%rsp)
    movq $$0, 552(%rsp)
    movq $$0, 560(%rsp)
    movq $$0, 568(%rsp)
    $XSAVE (%rsp)
    $VZEROUPPER
    mov %fs:$TASK, %r11
    mov $VECTORS(%r11), %r10
    mov %r10, $XSAVE_END(%rsp)
    lea 161(%rsp), %r10
    mov %r10, $VECTORS(%r11)
"""
"""Vector and x87 state goes to the stack, and Task.vectors tells where (ftrace.core.handlers.floats). Uses rax, rdx,
r10 and r11."""

_GET_ALL = """
    mov %eax, %ebx
    mov $XSAVE_END(%rsp), %r10
    mov %fs:$TASK, %r11
    mov %r10, $VECTORS(%r11)
    xor %edx, %edx
    mov $$$XSAVE_MASK, %eax
    xrstor (%rsp)
    mov %ebx, %eax
"""
"""Undoes _KEEP_ALL; eax, the result of the called function, is preserved. Uses rbx, rdx, r10 and r11."""

_FRAME = """    push %rbp
    .cfi_offset %rbp, -16
    mov %rsp, %rbp
    .cfi_def_cfa_register %rbp
    push %rbx
    push %r12
    push %r13
    .cfi_offset %rbx, -24
    .cfi_offset %r12, -32
    .cfi_offset %r13, -40
    mov %rdi, %rbx
    mov %rdx, %r12
    mov %rcx, %r13
    cld
"""
_CALL = """    push %rsi
    push %r8
    push %r9
    push %r9
    call cancellation_off
    mov %eax, (%rsp)
    mov 24(%rsp), %rdi
    mov %r12, %rsi
    mov %r13, %rdx
    mov 16(%rsp), %rcx
    mov 8(%rsp), %r8
    call *%rbx
    mov (%rsp), %edi
    mov %eax, 8(%rsp)
    call cancellation_back
    mov 8(%rsp), %eax
    lea 32(%rsp), %rsp
"""
"""The call, without cancellation."""
_END = """8:  lea -24(%rbp), %rsp
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    .cfi_def_cfa %rsp, 8
    ret
"""

_RESULT = "    mov %eax, %ebx\n"
_NARROW, _WIDE, _HIGH = 512, 1024, 2112
"""Bytes that are kept: 8 registers at 64 bytes' distance or 16 at 32; 16 at 64; 32 at 64 and the masks."""


def _stack_space(kept: int) -> str:
    """The stack that `kept` bytes of registers take, and 64 bytes above them, 64-byte aligned."""
    return f"    sub $${kept + 64}, %rsp\n    and $$-64, %rsp\n"


def _call_around(control: str, distance: int, result: str = "", kept: int = _NARROW) -> str:
    """The call, during which Task.vectors describes the saved registers. Above these are its previous value and a control word.

    `control`: the instruction that stores that word; `distance`: between two registers, in units of 16 bytes; `result`: text
    that moves the result away.
    """
    return f"""    mov %fs:$TASK, %r11
    mov $VECTORS(%r11), %r10
    mov %r10, {kept}(%rsp)
    {control} {kept + 8}(%rsp)
    lea {distance}(%rsp), %r10
    mov %r10, $VECTORS(%r11)
{_CALL}{result}    mov {kept}(%rsp), %r10
    mov %fs:$TASK, %r11
    mov %r10, $VECTORS(%r11)
"""


def _get_control(kept: int) -> str:
    """mxcsr as it was, x87 initialised again if the called code has used it, and the result, which is in ebx."""
    return f"""    ldmxcsr {kept + 8}(%rsp)
    fnstcw {kept + 12}(%rsp)
    fnstsw %ax
    xorw $$0x37f, {kept + 12}(%rsp)
    or {kept + 12}(%rsp), %ax
    mov %ebx, %eax
    je 8f
    fninit
    jmp 8f
"""


CALL_FOREIGN = (
    """
# i32 ftrace_call_foreign(handler, fp, ip, ret_ip, regs, data): call C code that may use every caller-saved register, at the
# entry of a function that follows the C convention. Of the vector state only what arguments and results can be in is live
# there: the first eight vector registers, kept here at 64 bytes' distance, and the x87 stack is empty. Task.vectors tells where
# they are kept meanwhile (ftrace.core.handlers.floats); what it said before and the x87 control word are kept above them.
# Where all that is above the xmm registers is zero, only those are kept; and the CPU is notified (vzeroupper), because code that
# uses xmm registers is slower while anything else may be there: the interpreter's as well as the function's.
#   rbx = handler; r12 = ip, r13 = ret_ip; rbp = frame
# ftrace_call_foreign_return, at the return of one: where the x87 stack is not empty, a long double is returned, and everything
# is kept.
    .globl ftrace_call_foreign_return
    .globl ftrace_call_foreign
    .p2align 4
ftrace_call_foreign_return:
    .cfi_startproc
    fnstsw %ax
    test $$0x38, %ah
    jne ftrace_call_foreign_preserving
ftrace_call_foreign:
"""
    + _FRAME
    + _stack_space(_NARROW)
    + """$if_wide_vectors
    jne 7f
$keep_xmm
    $VZEROUPPER
"""
    + _call_around("fnstcw", 4)
    + """$get_xmm
6:  fnstcw 522(%rsp)
    mov 522(%rsp), %r10w
    cmp %r10w, 520(%rsp)
    je 8f
    fldcw 520(%rsp)
    jmp 8f

7:
$keep_vectors
    $VZEROUPPER
"""
    + _call_around("fnstcw", 4)
    + """$get_vectors
    jmp 6b
"""
    + _END
    + """
# i32 ftrace_call_foreign_preserving(function, a, b, c, d, e): the same anywhere else: at the entry or return of a function that
# was not compiled here, in the middle of one, or with a long double on the x87 stack. All vector and x87 state is live, and kept;
# the called code finds an empty x87 stack. XSAVE and XRSTOR take longer than everything else, so where XGETBV says that x87 is
# not in use, registers are kept one by one, as wide as they are in use, with mxcsr above them; and x87 is initialised again if
# the called code has used it. Registers 16 to 31 and the masks, where there are such, are kept in any case.
#   rbx = the function, then its result; r12 = b, r13 = c; eax = what is in use; rbp = frame; the area is 64-byte aligned
    .globl ftrace_call_foreign_preserving
    .p2align 4
ftrace_call_foreign_preserving:
    .cfi_startproc
"""
    + _FRAME
    + """    mov $$1, %ecx
    $XGETBV
    test $$1, %al
    jne 7f
$keep_one_by_one
7:
"""
    + _KEEP_ALL
    + """    testb $$1, 512(%rsp)
    je 1f
    fninit
1:
"""
    + _CALL
    + _GET_ALL
    + _END
)


def vector_blocks(widest: str) -> dict[str, str]:
    """The blocks of this text that depend on the CPU. `widest`: its vector registers, xmm, ymm or zmm."""
    narrow = "movaps" if widest == "xmm" else "vmovaps"
    return {
        "keep_one_by_one": _ONE_BY_ONE[widest],
        "if_wide_vectors": _IF_WIDE[widest],
        "keep_xmm": _moved(narrow, "xmm", keep=True),
        "get_xmm": _moved(narrow, "xmm", keep=False),
        "keep_vectors": _moved(narrow, widest, keep=True),
        "get_vectors": _moved(narrow, widest, keep=False),
    }


def _moved(move: str, register: str, keep: bool, registers: range = range(8), apart: int = 64) -> str:
    """Move vector registers to the stack, or back. Number n is at n times `apart`."""
    pairs = [(f"%{register}{i}", f"{apart * i}(%rsp)") for i in registers]
    return "\n".join(f"    {move} {a}, {b}" if keep else f"    {move} {b}, {a}" for a, b in pairs)


def _masks(keep: bool) -> str:
    """Move the mask registers to the stack after 32 vector registers, or back."""
    pairs = [(f"%k{i}", f"{2048 + 8 * i}(%rsp)") for i in range(8)]
    return "\n".join(f"    kmovq {a}, {b}" if keep else f"    kmovq {b}, {a}" for a, b in pairs)


def _around(register: str, apart: int, kept: int, move: str = "vmovaps", clear: str = "    vzeroupper") -> str:
    """Keep registers 0 to 15, and call."""
    return f"""{_moved(move, register, True, range(16), apart)}
{clear}
{_call_around("stmxcsr", apart // 16, _RESULT, kept)}{_moved(move, register, False, range(16), apart)}
"""


_ONE_BY_ONE = {
    "xmm": _stack_space(_NARROW) + _around("xmm", 32, _NARROW, "movaps", "") + _get_control(_NARROW),
    "ymm": f"""    test $$4, %al
    jne 6f
{_stack_space(_NARROW)}{_around("xmm", 32, _NARROW)}{_get_control(_NARROW)}
6:
{_stack_space(_WIDE)}{_around("ymm", 64, _WIDE)}{_get_control(_WIDE)}""",
    "zmm": f"""{_stack_space(_HIGH)}{_moved("vmovaps", "zmm", True, range(16, 32))}
{_masks(keep=True)}
    test $$0x40, %al
    jne 6f
    test $$4, %al
    jne 5f
{_around("xmm", 64, _HIGH)}    jmp 4f
5:
{_around("ymm", 64, _HIGH)}    jmp 4f
6:
{_around("zmm", 64, _HIGH)}4:
{_moved("vmovaps", "zmm", False, range(16, 32))}
{_masks(keep=False)}
{_get_control(_HIGH)}""",
}
"""Save the registers in use besides x87, call, and jump to 8. Restoring marks registers as in use up to the move's width."""

_IF_WIDE = {
    "xmm": "    cmp %eax, %eax",
    "ymm": """    vorps %ymm0, %ymm1, %ymm8
    vorps %ymm2, %ymm3, %ymm9
    vorps %ymm4, %ymm5, %ymm10
    vorps %ymm6, %ymm7, %ymm11
    vorps %ymm8, %ymm9, %ymm8
    vorps %ymm10, %ymm11, %ymm10
    vorps %ymm8, %ymm10, %ymm8
    vextractf128 $$1, %ymm8, %xmm8
    vptest %xmm8, %xmm8""",
    "zmm": """    mov $$1, %ecx
    $XGETBV
    test $$0x44, %al""",
}
"""Set NE if one of the first eight registers may be wider than an xmm register. Without 512-bit instructions, after which some
CPUs run at a lower clock rate. Uses rax, rcx, rdx and vector registers 8 to 11."""
