"""Functions with one kind of instruction each, in assembly, and how to call them."""

# ruff: noqa: E501 (a line per function)

from __future__ import annotations

import ctypes
import itertools
from typing import Any

from instructions import boundaries

import sandbox

FUNCTIONS = {
    "flags_kept": "cmp %rsi, %rdi; nop; jb 1f; mov $2, %eax; ret; 1: sbb %rax, %rax; ret",
    "red_zone": """mov %rdi, -8(%rsp); mov %rsi, -128(%rsp); lea (%rdi,%rsi), %rax; add -8(%rsp), %rax
                   xor -128(%rsp), %rax; ret""",
    "vectors": """movq %rdi, %xmm15; movq %rsi, %xmm8; pxor %xmm3, %xmm3; paddq %xmm8, %xmm15; nop; psubq %xmm3, %xmm15
                  movq %xmm15, %rax; ret""",
    "x87": "fildl 1f(%rip); fildl 1f(%rip); nop; faddp; sub $8, %rsp; fistpll (%rsp); pop %rax; ret; .pushsection .data; 1: .long 21; .popsection",
    "loops": """mov %rdi, %rcx; and $7, %rcx; inc %rcx; xor %eax, %eax; 1: add %rsi, %rax; loop 1b
                mov $5, %ecx; 2: inc %rax; cmp $9, %rax; loopne 2b; add %rcx, %rax
                mov $3, %ecx; 3: add $2, %rax; test %ecx, %ecx; loope 3b; add %rcx, %rax; ret""",
    "loop32": """mov $-1, %rcx; shl $32, %rcx; add $3, %rcx; xor %eax, %eax; 1: inc %rax; addr32 loop 1b
                 add %rcx, %rax; ret""",
    "counts": """mov %rdi, %rcx; xor %eax, %eax; jrcxz 1f; inc %rax; 1: mov %rsi, %rcx; shl $32, %rcx; jecxz 2f
                 add $2, %rax; 2: ret""",
    "drops": "push %rsi; push %rdi; call 1f; sub %rdi, %rax; ret; 1: mov 8(%rsp), %rax; add 16(%rsp), %rax; ret $16",
    "indirect": "lea 1f(%rip), %rax; call *%rax; lea 2f(%rip), %rdx; jmp *%rdx; 1: lea 5(%rdi), %rcx; ret; ud2; 2: mov %rcx, %rax; ret",
    "through_memory": """call *1f(%rip); lea 1f(%rip), %rdx; mov $1, %ecx; call *(%rdx,%rcx,8); mov $2, %ecx
                jmp *(%rdx,%rcx,8); ud2; 5: add %rsi, %rax; ret; 6: mov %rdi, %rax; ret; 7: add $3, %rax
                ret; .pushsection .data; 1: .quad 6b; .quad 7b; .quad 5b; .popsection""",
    "through_the_stack": """lea 1f(%rip), %rax; push %rax; call *(%rsp); lea 2f(%rip), %rdx; mov %rdx, -8(%rsp); pop %rcx
                jmp *-16(%rsp); ud2; 1: lea 5(%rdi), %rax; ret; 2: add %rsi, %rax; ret""",
    "through_segments": """lea 1f(%rip), %rax; push %rax; mov %fs:0, %rdx; mov %rsp, %rcx; sub %rdx, %rcx; xor %eax, %eax
                call *%fs:(%rcx); call *%gs:(%rsp); lea 2f(%rip), %rdx; mov %rdx, (%rsp); jmp *%fs:(%rcx); ud2
                1: add %rdi, %rax; ret; 2: pop %rcx; add %rsi, %rax; ret""",
    "saves_flags": "cmp %rsi, %rdi; pushfq; xor %eax, %eax; popfq; setb %al; sete %ah; ret",
    "rip": "mov 1f(%rip), %rax; lea 1f(%rip), %rdx; add (%rdx), %rax; add %rdi, %rax; ret; .pushsection .data; 1: .quad 77; .popsection",
    "stack": "push %rbp; mov %rsp, %rbp; push %rdi; push %rsi; pop %rax; pop %rdx; add %rdx, %rax; leave; ret",
    "divides": "mov %rdi, %rax; xor %edx, %edx; or $1, %rsi; div %rsi; add %rdx, %rax; ret",
    "branches": """xor %eax, %eax; cmp %rsi, %rdi; jo 1f; add $1, %eax; 1: js 2f; add $2, %eax; 2: jle 3f; add $4, %eax
                   3: ja 4f; add $8, %eax; 4: jp 5f; add $16, %eax; 5: jmp 6f; ud2; 6: ret""",
    "strings": "push %rdi; push %rsi; mov %rsp, %rsi; lea 8(%rsp), %rdi; mov $8, %ecx; rep movsb; pop %rax; pop %rdx; add %rdx, %rax; ret",
    "system": "mov $39, %eax; syscall; mov %rcx, %rdx; lea 1f(%rip), %rcx; 1: sub %rdx, %rcx; add $3, %rcx; shl $32, %rcx; add %rcx, %rax; ret",
}
"""Name -> instructions. Each takes two integers."""

ARGUMENTS = [(0, 0), (1, 2), (2, 1), (7, 7), (2**63, 1), (2**64 - 1, 2**63), (5, 3)]
_numbers = itertools.count()


def _ir() -> str:
    text = []
    for name, code in FUNCTIONS.items():
        lines = [f".globl {name}", f".type {name},@function", f"{name}:"]
        lines += [part.strip() for line in code.splitlines() for part in line.split(";")]
        text += [*lines, f".size {name}, .-{name}"]
    return "\n".join(f'module asm "{line}"' for line in [".text", *text] if line)


def load() -> Any:
    """A module with all of them, under a name of its own."""
    return sandbox.load(_ir(), name=f"kinds{next(_numbers)}")


def call(module: Any, name: str, a: int, b: int) -> int:
    """One of them, directly."""
    return int(ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)(module.symbol(name).address)(a, b))


def results(module: Any) -> dict[tuple[str, int, int], int]:
    """What all of them give for all arguments."""
    return {(name, a, b): call(module, name, a, b) for name in FUNCTIONS for a, b in ARGUMENTS}


def instructions(module: Any, name: str) -> list[int]:
    """The addresses of a function's instructions, as far as they can be decoded."""
    symbol = module.symbol(name)
    for end in range(symbol.end, symbol.address, -1):
        try:
            return boundaries(symbol.address, end)
        except ValueError:
            continue
    return []
