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
    "mov %rdi, %rsp; ret": "it switches stacks (`mov rsp, rdi` at +0x0)",
    "mov (%rdi), %rsp; ret": "it switches stacks (`mov rsp, qword ptr [rdi]` at +0x0)",
    "push %rdi; pop %rax; mov %rax, %rsp; ret": "it switches stacks (`mov rsp, rax` at +0x2)",
    "lea 0xb8(%r10), %rsp; pop %r10; ret": "it switches stacks (`lea rsp, [r10 + 0xb8]` at +0x0)",
    "xchg %rsp, %rdi; ret": "it switches stacks (`xchg rdi, rsp` at +0x0)",
    "mov (%rsp), %rax; mov %rax, 56(%rdi); lea 8(%rsp), %rdx; mov %rdx, 48(%rdi); ret":
        "it saves where it returns to, and returns there again (`mov qword ptr [rdi + 0x30], rdx` at +0xd)",
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
