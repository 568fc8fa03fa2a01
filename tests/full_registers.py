"""A library without stubs whose functions fill every register and flag on both sides of a call."""

from __future__ import annotations

import ctypes
import random
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import NamedTuple

_GENERAL = (
    "rax", "rcx", "rdx", "rbx", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
)  # fmt: skip
_STATUS = 0x8D5
_OTHERS = 0x202
_VECTOR, _VECTORS = 32, 16
_FLAGS = 8 * len(_GENERAL)
_VECTORS_AT = _FLAGS + 8
_SIZE = _VECTORS_AT + _VECTOR * _VECTORS
ENTRIES = ("target_long", "target_short", "target_flags")
"""Functions that begin with an instruction that is longer than a jump, with short ones, and with one that writes flags."""


def _has_ymm() -> bool:
    return " avx " in Path("/proc/cpuinfo").read_text()


def _move(state: str, store: bool) -> str:
    lines = []
    for index, name in enumerate(_GENERAL):
        pair = (f"%{name}", f"{state}+{8 * index}(%rip)")
        lines.append(f"mov {pair[0]}, {pair[1]}" if store else f"mov {pair[1]}, {pair[0]}")
    return "\n".join(lines)


def _move_flags(state: str, store: bool) -> str:
    where = f"{state}+{_FLAGS}(%rip)"
    return f"pushfq\npopq {where}" if store else f"pushq {where}\npopfq"


def _move_vectors(state: str, store: bool) -> str:
    move, name = ("vmovups", "ymm") if _has_ymm() else ("movups", "xmm")
    lines = []
    for index in range(_VECTORS):
        pair = (f"%{name}{index}", f"{state}+{_VECTORS_AT + _VECTOR * index}(%rip)")
        lines.append(f"{move} {pair[0]}, {pair[1]}" if store else f"{move} {pair[1]}, {pair[0]}")
    return "\n".join(lines)


def _load(state: str) -> str:
    return "\n".join([_move_vectors(state, False), _move_flags(state, False), _move(state, False)])


def _store(state: str) -> str:
    return "\n".join([_move(state, True), _move_flags(state, True), _move_vectors(state, True)])


def _function(name: str, body: str) -> str:
    head = f".globl {name}\n.type {name},@function\n.p2align 4\n{name}:\n.cfi_startproc"
    return f"{head}\n{body}\n.cfi_endproc\n.size {name}, .-{name}\n"


def _call(name: str) -> str:
    kept = ("rbx", "rbp", "r12", "r13", "r14", "r15")
    body = [
        *(f"push %{register}" for register in kept),
        "lea -8(%rsp), %rsp",
        _load("before"),
        f"call {name}",
        _store("after"),
        "lea 8(%rsp), %rsp",
        *(f"pop %{register}" for register in reversed(kept)),
        "vzeroupper" if _has_ymm() else "",
        "cld",
        "ret",
    ]
    return _function(f"call_{name}", "\n".join(body))


def _source() -> str:
    body = f"{_store('seen')}\n{_load('result')}\nret"
    states = "\n".join(f".globl {s}\n{s}: .zero {_SIZE}" for s in ("before", "seen", "result", "after"))
    texts = [
        ".data", ".p2align 6", states, ".text",
        _function("target_long", body),
        _function("target_short", "push %rax\npop %rax\njmp target_long"),
        # The carry is an argument, and the first instruction reads and writes it.
        _function("target_flags", "cmc\ncmc\njmp target_long"),
        *map(_call, ENTRIES),
        ".section .note.GNU-stack,\"\",@progbits",
    ]  # fmt: skip
    return "\n".join([*texts, ""])


HANDLERS = """
#include <string.h>
static volatile char waste[4096];
volatile long calls;
typedef long vector __attribute__((vector_size(16)));
int c_handler(void *ri, void *regs)
{
    calls++;
    for (unsigned i = 0; i < sizeof waste; i++) waste[i] = (char)(i * calls);
    memset((void *)waste, 7, sizeof waste);
    asm volatile("pcmpeqd %%xmm0,%%xmm0; pcmpeqd %%xmm5,%%xmm5; pcmpeqd %%xmm11,%%xmm11; pcmpeqd %%xmm15,%%xmm15"
                 ::: "xmm0", "xmm5", "xmm11", "xmm15");
    asm volatile("mov $1,%%r10; mov $2,%%r11; mov $3,%%r8; mov $4,%%r9" ::: "r8", "r9", "r10", "r11");
    return 0;
}
"""


@cache
def library() -> ctypes.CDLL:
    """The library, compiled by gcc and not made for probes at all."""
    directory = Path(mkdtemp(prefix="full-registers-"))
    assembly, c, output = directory / "full.s", directory / "handlers.c", directory / "libfullregs.so"
    assembly.write_text(_source())
    c.write_text(HANDLERS)
    command = ["gcc", "-O2", "-shared", "-fPIC", "-Wl,-Bsymbolic", "-o", str(output), str(assembly), str(c)]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(output))


class Difference(NamedTuple):
    """A register that a probe has changed: on which side of the call, what it was and what it is."""

    side: str
    register: str
    was: int
    now: int

    def __str__(self) -> str:
        return f"{self.register} at the {self.side}: {self.was:#x} became {self.now:#x}"


def differences(entry: str, seed: int) -> list[Difference]:
    """Call `entry` with registers that are all different; those that did not come through, at entry and at return."""
    states = {name: (ctypes.c_char * _SIZE).in_dll(library(), name) for name in ("before", "seen", "result", "after")}
    generator = random.Random(seed)
    for name in ("before", "result"):
        states[name].raw = _filled(generator)
    ctypes.CDLL.__getattr__(library(), f"call_{entry}")()
    found = []
    for side, was, now in (("entry", "before", "seen"), ("return", "result", "after")):
        pairs = zip(_values(states[was].raw), _values(states[now].raw), strict=True)
        found += [Difference(side, name, old, new) for (name, old), (_, new) in pairs if old != new]
    return found


def _filled(generator: random.Random) -> bytes:
    general = generator.randbytes(_FLAGS)
    flags = generator.choice((0, _STATUS, generator.getrandbits(12) & _STATUS))
    return general + (flags | _OTHERS).to_bytes(8, "little") + generator.randbytes(_VECTOR * _VECTORS)


def _values(state: bytes) -> Iterator[tuple[str, int]]:
    for index, name in enumerate(_GENERAL):
        yield name, int.from_bytes(state[8 * index : 8 * index + 8], "little")
    flags = int.from_bytes(state[_FLAGS : _FLAGS + 8], "little")
    yield "flags", flags & (_STATUS | 0x400)
    size = _VECTOR if _has_ymm() else 16
    for index in range(_VECTORS):
        at = _VECTORS_AT + _VECTOR * index
        yield f"vector register {index}", int.from_bytes(state[at : at + size], "little")
