"""Reference primitives: what the parts of a probe cost when nothing else is done. They patch a stub of their own program."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import sandbox
from benchmarks import program
from benchmarks.measure import Row, Sample
from sandbox import Module
from sandbox.memory.pages import sync_cores
from sandbox.threads.signals import SIGTRAP

_ASSEMBLY = """
# call + inc: all that a counter at the entry needs.
reference_call_inc:
    incq reference_hits(%rip)
    ret

# The classic return swap: the parent goes to a shadow stack, the return slot gets an address of ours.
reference_swap:
    push %rax
    push %rcx
    mov reference_top(%rip), %rax
    mov 24(%rsp), %rcx
    mov %rcx, (%rax)
    add $8, %rax
    mov %rax, reference_top(%rip)
    lea reference_swapped(%rip), %rcx
    mov %rcx, 24(%rsp)
    incq reference_hits(%rip)
    pop %rcx
    pop %rax
    ret
reference_swapped:
    sub $8, %rsp
    push %rax
    push %rcx
    incq reference_exits(%rip)
    mov reference_top(%rip), %rax
    sub $8, %rax
    mov (%rax), %rcx
    mov %rax, reference_top(%rip)
    mov %rcx, 16(%rsp)
    pop %rcx
    pop %rax
    ret

# void (int signal, siginfo *, ucontext *): count, and go on in the copy of what the breakpoint covers.
reference_trap:
    incq reference_hits(%rip)
    lea reference_copy(%rip), %rax
    mov %rax, 168(%rdx)
    ret
reference_copy:
    .byte 0x0f, 0x1f, 0x44, 0x00, 0x00
    jmp work+5
reference_restorer:
    mov $15, %eax
    syscall

    .data
    .balign 64
reference_hits: .quad 0
    .balign 64
reference_exits: .quad 0
    .balign 64
reference_top: .quad reference_shadow
reference_shadow: .fill 512
    .globl reference_table
    .balign 64
reference_table:
    .quad reference_call_inc, reference_swap, reference_trap, reference_restorer, reference_hits, reference_exits
    .text
"""
_NAMES = ("call_inc", "swap", "trap", "restorer", "hits", "exits")

_LOOPS = {"work_plain": "loop_plain", "work_rdtsc2": "loop_rdtsc2", "work_callbacks": "loop_callbacks"}
_TARGETS = """
define i64 @work_rdtsc2(i64 %x) #1 {
  call void asm sideeffect "rdtsc", "~{rax},~{rdx}"()
  %a = mul i64 %x, 3
  %r = add i64 %a, 1
  call void asm sideeffect "rdtsc", "~{rax},~{rdx}"()
  ret i64 %r
}
define i64 @work_plain(i64 %x) #1 {
  %a = mul i64 %x, 3
  %r = add i64 %a, 1
  ret i64 %r
}
define i64 @work_callbacks(i64 %x) #1 {
  %callback = load volatile ptr, ptr @callback
  %first = call i64 %callback(i64 %x)
  %a = mul i64 %x, 3
  %r = add i64 %a, 1
  %second = call i64 %callback(i64 %r)
  %both = add i64 %first, %second
  %before = load i64, ptr @answers
  %after = add i64 %before, %both
  store i64 %after, ptr @answers
  ret i64 %r
}
@callback = global ptr null
@answers = global i64 0
@reference_table = external global [6 x ptr]
@references = global ptr @reference_table
"""


def _text() -> str:
    assembly = "\n".join(f'module asm "{line}"' for line in _ASSEMBLY.splitlines())
    loops = "".join(map(program.loop_text, _LOOPS.values()))
    return assembly + "\n" + program.program_text() + loops + _TARGETS


class References:
    """The loaded program and where its primitives are."""

    def __init__(self) -> None:
        self.module: Module = sandbox.load(_text(), name="bench-reference", opt=2)
        data = {symbol.name: symbol.address for symbol in self.module.data}
        table = ctypes.c_uint64.from_address(data["references"]).value
        self.at = dict(zip(_NAMES, (ctypes.c_uint64 * len(_NAMES)).from_address(table), strict=True))
        self.callback = ctypes.c_uint64.from_address(data["callback"])
        self.answers = ctypes.c_uint64.from_address(data["answers"])
        """The sum of what callbacks have returned."""

    def counter(self, name: str) -> int:
        """The value of a counter of the assembly."""
        return ctypes.c_uint64.from_address(self.at[name]).value

    @contextmanager
    def patched(self, code: bytes) -> Iterator[None]:
        """`work` begins with these bytes. No other thread may run it."""
        address = self.module["work"].address
        text = next(text for text in self.module.texts if address in text)
        old = text.read(address, len(code))
        text.write(address, code)
        sync_cores()
        try:
            yield
        finally:
            text.write(address, old)
            sync_cores()

    def call_to(self, name: str) -> bytes:
        """`call` of a primitive, for the stub of `work`."""
        return b"\xe8" + struct.pack("<i", self.at[name] - (self.module["work"].address + 5))


@cache
def references() -> References:
    """The reference program, loaded at first use."""
    return References()


class _KernelAction(ctypes.Structure):
    _fields_ = [
        ("handler", ctypes.c_uint64), ("flags", ctypes.c_uint64), ("restorer", ctypes.c_uint64), ("mask", ctypes.c_uint64),
    ]  # fmt: skip


_SYS_RT_SIGACTION = 13
_SA_SIGINFO, _SA_RESTORER, _SA_NODEFER = 0x4, 0x0400_0000, 0x4000_0000
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def _trap_handler(handler: int, restorer: int) -> Iterator[None]:
    """SIGTRAP goes straight to `handler`."""
    new, old = _KernelAction(handler, _SA_SIGINFO | _SA_RESTORER | _SA_NODEFER, restorer, 0), _KernelAction()
    if _libc.syscall(_SYS_RT_SIGACTION, SIGTRAP, ctypes.byref(new), ctypes.byref(old), 8):
        raise OSError(ctypes.get_errno(), "sigaction for SIGTRAP")
    try:
        yield
    finally:
        _libc.syscall(_SYS_RT_SIGACTION, SIGTRAP, ctypes.byref(old), None, 8)


def _trampoline(primitive: str, calls: int) -> Callable[[], Sample]:
    def sample() -> Sample:
        known = references()
        run = program.timed_loop(known.module, "work", calls)
        baseline, before = run(), known.counter("hits")
        with known.patched(known.call_to(primitive)):
            probed = run()
        return Sample(baseline, probed, calls, known.counter("hits") - before)

    return sample


def _breakpoint(calls: int) -> Callable[[], Sample]:
    def sample() -> Sample:
        known = references()
        run = program.timed_loop(known.module, "work", calls)
        baseline, before = run(), known.counter("hits")
        with _trap_handler(known.at["trap"], known.at["restorer"]), known.patched(b"\xcc"):
            probed = run()
        return Sample(baseline, probed, calls, known.counter("hits") - before)

    return sample


def _run(target: str, calls: int) -> float:
    """Nanoseconds for each call of one of the targets, in its own loop."""
    return program.timed_loop(references().module, target, calls, _LOOPS[target])()


def _rdtsc2(calls: int) -> Callable[[], Sample]:
    def sample() -> Sample:
        return Sample(_run("work_plain", calls), _run("work_rdtsc2", calls), calls, calls)

    return sample


def _ctypes2(calls: int) -> Callable[[], Sample]:
    def sample() -> Sample:
        known = references()
        callback = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(lambda _x: 1)
        known.callback.value = ctypes.cast(callback, ctypes.c_void_p).value or 0
        baseline, before = _run("work_plain", calls), known.answers.value
        probed = _run("work_callbacks", calls)
        return Sample(baseline, probed, calls, (known.answers.value - before) // 2)

    return sample


def rows(calls: int) -> list[Row]:
    """The reference rows; the slow ones make fewer than `calls` calls a sample."""
    few = max(calls // 100, 10)
    return [
        Row("ref.call_inc", "bare `call` of a trampoline with `inc`", _trampoline("call_inc", calls)),
        Row("ref.swap", "bare classic return swap, counted at both ends", _trampoline("swap", calls)),
        Row("ref.rdtsc2", "two `rdtsc` in the function itself", _rdtsc2(calls)),
        Row("ref.int3", "int3, SIGTRAP to a native handler, on in a copy", _breakpoint(few), rounds=10),
        Row("ref.ctypes2", "two bare ctypes callbacks of one argument", _ctypes2(few), rounds=10),
    ]
