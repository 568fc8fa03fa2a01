"""Functions that move their return address or their stack, and others that only look so, in assembly."""

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
}  # fmt: skip
ACCEPTED = (
    "mov (%rsp), %rax; ret",
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
    "mov (%rsp), %rax; mov %rax, (%rdi); ret",
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
