"""Functions that move or read their return address, or move their stack, and others that only look so, in assembly."""

from __future__ import annotations

import subprocess
from pathlib import Path
from tempfile import mkdtemp

REFUSED = {
    "pop %rcx; jmp *%rcx": "it takes its return address off the stack (`pop rcx` at +0x0)",
    "add $8, %rsp; jmp *%rax": "it takes more off the stack than it has put there (`jmp rax` at +0x4)",
    "push %rbx; mov %rax, 8(%rsp); pop %rbx; ret": "it writes to its return slot (`mov qword ptr [rsp + 8], rax` at +0x1)",
    "push %rbp; mov %rsp, %rbp; mov %rax, 8(%rbp); leave; ret":
        "it writes to its return slot (`mov qword ptr [rbp + 8], rax` at +0x4)",
    "mov %rdi, %rsp; ret": "it may switch stacks (`mov rsp, rdi` at +0x0)",
    "mov (%rdi), %rsp; ret": "it may switch stacks (`mov rsp, qword ptr [rdi]` at +0x0)",
    "push %rdi; pop %rax; mov %rax, %rsp; ret": "it may switch stacks (`mov rsp, rax` at +0x2)",
    "lea 0xb8(%r10), %rsp; pop %r10; ret": "it may switch stacks (`lea rsp, [r10 + 0xb8]` at +0x0)",
    "xchg %rsp, %rdi; ret": "it may switch stacks (`xchg rdi, rsp` at +0x0)",
    "mov (%rsp), %rax; mov %rax, 56(%rdi); lea 8(%rsp), %rdx; mov %rdx, 48(%rdi); ret":
        "it saves where it returns to, and returns there again (`mov qword ptr [rdi + 0x30], rdx` at +0xd)",
    # a difference of two places on the stack, a mask, and registers that a call does not keep: from anywhere
    "mov %rsp, %rax; mov %rsp, %rcx; sub %rcx, %rax; mov %rax, %rsp; ret":
        "it may switch stacks (`mov rsp, rax` at +0x9)",
    "mov %rsp, %rax; and $0xffff, %eax; mov %rax, %rsp; ret": "it may switch stacks (`mov rsp, rax` at +0x8)",
    "mov %rsp, %rax; and $-0x100000, %rax; mov %rax, %rsp; ret": "it may switch stacks (`mov rsp, rax` at +0x9)",
    "mov %rsp, %rax; call 1f; 1: mov %rax, %rsp; ret": "it may switch stacks (`mov rsp, rax` at +0x8)",
    "lea (%rdi,%rsi), %rsp; ret": "it may switch stacks (`lea rsp, [rdi + rsi]` at +0x0)",
    "lea (%rsp,%rdi), %rax; add %rsp, %rax; mov %rax, %rsp; ret": "it may switch stacks (`mov rsp, rax` at +0x7)",
    "mov $15, %eax; syscall": "it returns from a signal's handler (rt_sigreturn) (`syscall` at +0x5)",
    "push %rbp; mov %rsp, %rbp; leave; pop %rcx; jmp *%rcx": "it takes its return address off the stack (`pop rcx` at +0x5)",
    "test %edi, %edi; je 1f; ret; 1: pop %rdx; jmp *%rdx": "it takes its return address off the stack (`pop rdx` at +0x5)",
    # its caller's address: at once, after a prologue, in a frame, as an operand, after a call, by a vector register
    "mov (%rsp), %rax; ret": "it reads its own return address (`mov rax, qword ptr [rsp]` at +0x0)",
    "mov (%rsp), %rax; mov %rax, (%rdi); ret": "it reads its own return address (`mov rax, qword ptr [rsp]` at +0x0)",
    "push %rbx; sub $16, %rsp; mov %rdi, %rbx; mov 24(%rsp), %rdx; call 1f; 1: add $16, %rsp; pop %rbx; ret":
        "it reads its own return address (`mov rdx, qword ptr [rsp + 0x18]` at +0x8)",
    "push %rbp; mov %rsp, %rbp; and $-32, %rsp; call 1f; 1: mov 8(%rbp), %rdi; leave; ret":
        "it reads its own return address (`mov rdi, qword ptr [rbp + 8]` at +0xd)",
    "sub $24, %rsp; cmp %rdi, 24(%rsp); sete %al; add $24, %rsp; ret":
        "it reads its own return address (`cmp qword ptr [rsp + 0x18], rdi` at +0x4)",
    "sub $24, %rsp; pushq 24(%rsp); call 1f; 1: add $32, %rsp; ret":
        "it reads its own return address (`push qword ptr [rsp + 0x18]` at +0x4)",
    "sub $40, %rsp; movq %rdi, %xmm0; movhps 40(%rsp), %xmm0; movaps %xmm0, 16(%rsp); add $40, %rsp; ret":
        "it reads its own return address (`movhps xmm0, qword ptr [rsp + 0x28]` at +0x9)",
    "sub $24, %rsp; movq 24(%rsp), %xmm1; movups %xmm1, (%rsp); add $24, %rsp; ret":
        "it reads its own return address (`movq xmm1, qword ptr [rsp + 0x18]` at +0x4)",
    "lea 8(%rsp), %r10; mov -8(%r10), %rax; ret": "it reads its own return address (`mov rax, qword ptr [r10 - 8]` at +0x5)",
    # after a large frame that was allocated page by page
    "push %rbx; lea -0x9000(%rsp), %r11; 1: sub $0x1000, %rsp; orq $0, (%rsp); cmp %r11, %rsp; jne 1b; "
    "mov 0x9008(%rsp), %rdi; call 2f; 2: add $0x9000, %rsp; pop %rbx; ret":
        "it reads its own return address (`mov rdi, qword ptr [rsp + 0x9008]` at +0x1a)",
    "push %rbx; lea -0x9000(%rsp), %r11; 1: sub $0x1000, %rsp; orq $0, (%rsp); cmp %r11, %rsp; jne 1b; "
    "add $0x9000, %rsp; pop %rbx; pop %rcx; jmp *%rcx": "it takes its return address off the stack (`pop rcx` at +0x22)",
    # its address, passed on
    "sub $24, %rsp; lea 24(%rsp), %rdi; call 1f; 1: add $24, %rsp; ret":
        "it passes on where its return address is (`call 0x100e` at +0x9)",
}  # fmt: skip
ACCEPTED = (
    # large frames, allocated page by page: gcc, with two registers pushed; Rust; LLVM; a counted loop; room of a variable size
    "push %rbx; push %rbp; lea -0x9000(%rsp), %r11; 1: sub $0x1000, %rsp; orq $0, (%rsp); cmp %r11, %rsp; jne 1b; "
    "sub $0xc40, %rsp; call 2f; 2: add $0x9c40, %rsp; pop %rbp; pop %rbx; ret",
    "push %r14; lea -0x9000(%rsp), %r11; 1: sub $0x1000, %rsp; movq $0, (%rsp); cmp %r11, %rsp; jne 1b; "
    "sub $0xc48, %rsp; add $0x9c48, %rsp; pop %r14; ret",
    "push %rbx; mov %rsp, %r11; sub $0x9000, %r11; 1: sub $0x1000, %rsp; movq $0, (%rsp); cmp %rsp, %r11; jne 1b; "
    "add $0x9000, %rsp; pop %rbx; ret",
    "push %rbx; mov $9, %ecx; 1: sub $0x1000, %rsp; orq $0, (%rsp); dec %ecx; jne 1b; add $0x9000, %rsp; pop %rbx; ret",
    "push %rbp; mov %rsp, %rbp; push %rbx; mov %rsp, %rcx; sub %rax, %rcx; cmp %rcx, %rsp; je 2f; 1: sub $0x1000, %rsp; "
    "orq $0, 0xff8(%rsp); cmp %rcx, %rsp; jne 1b; 2: sub %rdx, %rsp; mov -8(%rbp), %rbx; leave; ret",
    "push %rbp; mov %rsp, %rbp; mov %rax, %r11; 1: sub $0x1000, %rsp; test %rsp, 8(%rsp); sub $0x1000, %r11; "
    "cmp $0x1000, %r11; ja 1b; sub %r11, %rsp; test %rsp, 8(%rsp); add %rax, %rsp; leave; ret",
    # AddressSanitizer's frame: on the stack, or elsewhere, where its first word after the frame is a flag
    "push %rbx; sub $0x20, %rsp; mov %rsp, %rbx; test %edi, %edi; je 2f; call 1f; 1: mov %rax, %rbx; 2: movq $5, (%rbx); "
    "mov 0x28(%rbx), %rdx; add $0x20, %rsp; pop %rbx; ret",
    # arguments on the stack, and a block behind a call that does not return, which another path reaches
    "mov 8(%rsp), %rax; ret",
    "push %rbx; sub $16, %rsp; mov 32(%rsp), %rdx; mov 40(%rsp), %rcx; add $16, %rsp; pop %rbx; ret",
    "push %rbp; mov %rsp, %rbp; mov 16(%rbp), %rax; lea 16(%rbp), %rdi; call 1f; 1: pop %rbp; ret",
    "sub $8, %rsp; test %edi, %edi; je 2f; call 1f; 1: call 3f; 2: sub $24, %rsp; 3: mov 8(%rsp), %rax; add $32, %rsp; ret",
    "push %rbp; mov %rsp, %rbp; sub $32, %rsp; and $-32, %rsp; mov %rax, (%rsp); leave; ret",
    "push %rbp; mov %rsp, %rbp; push %rbx; sub %rdi, %rsp; mov %rax, (%rsp); lea -8(%rbp), %rsp; pop %rbx; pop %rbp; ret",
    # gcc's realignment with a copy of the return address
    "lea 8(%rsp), %r10; and $-32, %rsp; pushq -8(%r10); push %rbp; mov %rsp, %rbp; push %r10; "
    "pop %r10; pop %rbp; lea -8(%r10), %rsp; ret",
    "mov %rsp, %rax; sub $64, %rsp; mov %rax, %rsp; ret",
    # room of a variable size, as compilers and OpenSSL's assembly make it
    "push %rbp; mov %rsp, %rbp; mov %rsp, %rax; sub %rdx, %rax; and $-32, %rax; mov %rax, %rsp; leave; ret",
    "push %rbp; mov %rsp, %rbp; neg %rdi; add %rsp, %rdi; mov %rdi, %rsp; mov %rbp, %rsp; pop %rbp; ret",
    "push %rbp; mov %rsp, %rbp; lea (%rsp,%rdi), %rsp; lea 0(%rbp), %rsp; pop %rbp; ret",
    "mov %rsp, %rax; lea -16(%rsp,%r9,8), %r10; mov %rsp, %r11; and $-1024, %r10; sub %r10, %r11; and $-4096, %r11; "
    "lea (%r10,%r11), %rsp; mov %rax, 8(%rsp,%r9,8); mov 8(%rsp,%r9,8), %rsi; lea (%rsi), %rsp; ret",
    "lea -0x150(%rsp), %r15; and $-64, %r15; xchg %rsp, %r15; mov %r15, 16(%rsp); mov 16(%rsp), %rsi; "
    "lea (%rsi), %rsp; ret",
    "lock orq $0, (%rsp); ret",
    "push %rdi; call 1f; 1: pop %rdi; ret",
    "cmp %rdi, %rsp; ja 1f; 1: ret",
)


def assembled(text: str) -> bytes:
    directory = Path(mkdtemp(prefix="return-slot-"))
    subprocess.run(
        ["as", "-o", str(directory / "a.o"), "-"], input=text.replace(";", "\n") + "\n", text=True, check=True
    )
    command = ["objcopy", "-O", "binary", "-j", ".text", str(directory / "a.o"), str(directory / "a")]
    subprocess.run(command, check=True)
    return (directory / "a").read_bytes()
