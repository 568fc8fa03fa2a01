"""Hazard: functions that move their return address, or their stack: a hooked return would go nowhere."""

from __future__ import annotations

import ctypes
import errno
import subprocess
from pathlib import Path
from tempfile import mkdtemp

import pytest
from isolation import isolated

import fprobe
import kprobes
from sandbox.native import u64
from sandbox.symbols import process_text
from sandbox.x86_64.return_slot import moves_its_return

counted = fprobe.Array(u64, 1, shared=True)


@kprobes.native
def count(ri, regs):
    counted[0] += 1


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


@pytest.mark.parametrize(("text", "reason"), REFUSED.items())
def test_code_that_moves_its_return_says_how(text, reason):
    assert moves_its_return(assembled(text), 0x1000) == reason


@pytest.mark.parametrize("text", ACCEPTED)
def test_code_that_only_looks_so_is_accepted(text):
    assert moves_its_return(assembled(text), 0x1000) == ""


@isolated(timeout=60)
def test_returns_of_libcs_functions_that_switch_stacks_or_return_twice_are_refused():
    libc = process_text.library_called("libc")
    for name in ("swapcontext", "setcontext", "getcontext", "longjmp", "vfork", "__sigsetjmp"):
        with pytest.raises(OSError, match=f"{name}.* cannot be probed: ") as caught:
            kprobes.register_kretprobe(kprobes.kretprobe(symbol_name=f"libc:{name}", handler=count))
        assert caught.value.errno == errno.EINVAL
    by_code = [
        span for span in libc.functions() if moves_its_return(ctypes.string_at(span[0], span[1] - span[0]), span[0])
    ]
    assert len(by_code) < 40
    for start, _end in by_code:
        with pytest.raises(
            OSError, match=r"cannot be probed: it|cannot be probed: .* (switches|returns)|is not the entry"
        ):
            kprobes.register_kretprobe(kprobes.kretprobe(addr=start, handler=count))


@isolated(timeout=60)
def test_every_function_of_libffi_but_those_that_move_their_return_can_have_a_kretprobe():
    called = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int, ctypes.c_double)(lambda a, b: a + b)
    libc = ctypes.CDLL("libc.so.6")
    try:
        ffi = process_text.library_called("libffi")
    except LookupError:
        pytest.skip("ctypes has libffi inside")
    probes, refused = [], []
    for start, _end in ffi.functions():
        rp = kprobes.kretprobe(addr=start, handler=count, maxactive=100)
        try:
            kprobes.register_kretprobe(rp)
        except OSError as error:
            refused.append(str(error))
            continue
        probes.append(rp)
    assert any("switches stacks" in reason for reason in refused)
    for optimized in (0, 1):
        kprobes.set_kprobes_optimization(optimized)
        kprobes.wait_for_kprobe_optimizer()
        before = counted[0]
        assert called(3, 4.5) == 7.5
        assert libc.labs(ctypes.c_long(-3)) == 3
        assert ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 5)() == 5
        assert counted[0] > before
    kprobes.unregister_kretprobes(probes)
