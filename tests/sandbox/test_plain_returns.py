"""Hazard: functions that move their return address, or their stack, told natively: never one that the thorough walk refuses."""

from __future__ import annotations

import ctypes
import random
from functools import cache
from itertools import product

import capstone
import pytest
from return_slots import REFUSED, assembled
from sampled import in_stress, sampled

from sandbox.images import process_text
from sandbox.native import Unit, addressof, cast, native, ptr, u8, u64, zeroed
from sandbox.native.native_image import NativeImage
from sandbox.native.x86_64.plain_returns import are_plain, plain_functions
from sandbox.native.x86_64.reading import Read, read
from sandbox.x86_64.decoding import decoded
from sandbox.x86_64.return_slot import uses_its_return

PLAIN = (
    "ret",
    "push %rbx; sub $16, %rsp; mov %rdi, %rbx; lea 8(%rsp), %rsi; call 1f; 1: mov 8(%rsp), %rax; add $16, %rsp; pop %rbx; ret",
    "push %rbp; mov %rsp, %rbp; sub $32, %rsp; and $-32, %rsp; mov %rax, (%rsp); leave; ret",
    "push %rbp; mov %rsp, %rbp; push %rbx; sub %rdi, %rsp; mov %rax, (%rsp); lea -8(%rbp), %rsp; pop %rbx; pop %rbp; ret",
    "sub $24, %rsp; mov %rsp, %rdi; mov %rax, 16(%rdi); call 1f; 1: mov %rax, 24(%rdi); add $24, %rsp; ret",
    "test %edi, %edi; je 1f; push %rbx; pop %rbx; ret; 1: mov 8(%rsp), %rax; jmp *%rax",
    "test %edi, %edi; je 1f; mov %rsp, %rbp; 1: mov 8(%rbp), %rax; ret",
    "push %rbp; mov %rsp, %rbp; test %edi, %edi; je 1f; xor %ebp, %ebp; 1: pop %rbp; ret",
    "mov %rsp, %rbp; add %rdi, %rbp; bextr %rbp, %rax, %rbp; ret",
    "add $-128, %rsp; mov %rax, (%rsp); sub $-128, %rsp; ret",
    "sub $512, %rsp; " + "".join(f"lea {8 * n}(%rsp), %rdi; call 1f; 1: " for n in range(40)) + "add $512, %rsp; ret",
    "movzbl %ah, %eax; vpaddd %ymm4, %ymm5, %ymm4; vzeroupper; ret",
)
KNOWN_TO_THE_WALK = (
    "sub $24, %rsp; mov %rsp, %rdi; mov 24(%rdi), %rax; add $24, %rsp; ret",
    "test %edi, %edi; je 1f; push %rbx; 1: ret",
    "push %rdi; mov %rsp, %rdi; push %rdi; pop %rcx; mov %rax, 8(%rcx); pop %rdi; ret",
    "push %rdi; lea 8(%rsp), %rdi; stosq; pop %rdi; ret",
    "mov $39, %eax; syscall; ret",
    "sub $-128, %rsp; ret",
    "test %edi, %edi; je 1f; mov %rsp, %rbp; 1: mov (%rbp), %rax; ret",
    "push %rbp; mov %rsp, %rbp; test %edi, %edi; je 1f; lea (%rsp), %rbp; push %rax; lea -8(%rbp), %rsp; 1: leave; ret",
    "push %rbp; mov %rsp, %rbp; test %edi, %edi; je 1f; lea -8(%rbp), %rbp; 1: leave; ret",
)
POOL = """
    push %rbx; push %rdi; pop %rbx; pop %rdi; pop %rax; push %rbp; pop %rbp; leave; mov %rsp, %rbp; mov %rsp, %rdi;
    mov %rdi, %rax; mov %rax, %rbx; lea 8(%rsp), %rdi; lea 16(%rdi), %rbx; lea -8(%rbp), %rsp; sub $8, %rsp; add $8, %rsp;
    add $-8, %rsp; and $-16, %rsp; mov %rax, (%rsp); mov %rax, 8(%rsp); mov %rax, 16(%rsp); mov %rax, 8(%rdi);
    mov (%rdi), %rax; mov %rax, 8(%rbp); mov %rax, 16(%rbx); mov %rbp, %rsp; mov %rdi, %rsp; xor %edi, %edi; add $8, %rdi;
    cmp %rsp, %rdi; xchg %rax, %rdi; mov 8(%rsp), %rbp; movzbl %al, %edi; cmove %rdi, %rbx; stosq; call *%rax; pushfq;
    pop (%rdi); movl $1, 8(%rsp); mov %rsp, %rax; movw $1, 8(%rdi); mov %ax, %di; xor %ebp, %ebp; push 8(%rsp); ret; jmp *%rax
"""


@native(bounded=False)
def read_all(code: ptr[u8], size: u64, found: ptr[u8]) -> u64:
    """Note the length of each instruction at its offset; how far they are read."""
    insn: Read = zeroed
    at: u64 = 0
    while at < size:
        if not read(cast(ptr[u8], cast(u64, code) + at), addressof(insn)):
            return at
        found[at] = cast(u8, insn.length)
        at += insn.length
    return at


@cache
def image():
    return NativeImage.of(Unit("plain-returns", (plain_functions, read_all), bounded=False))


def lengths(code):
    """As they are read natively, up to the first that is not."""
    text = ctypes.create_string_buffer(code, len(code) + 32)
    found = ctypes.create_string_buffer(len(code) + 1)
    end = image().call("read_all", ctypes.addressof(text), len(code), ctypes.addressof(found))
    return [found.raw[at] for at in range(end) if found.raw[at]]


def functions_of(library):
    ctypes.CDLL(library)
    return [
        (start, ctypes.string_at(start, end - start)) for start, end in process_text.library_called(library).functions()
    ]


@pytest.mark.stress
@pytest.mark.parametrize("library", ["libz.so.1", in_stress("libm.so.6")])
def test_lengths_of_instructions_are_capstones(library):
    seen = 0
    for start, code in functions_of(library)[::4]:
        expected = [insn.size for insn in decoded(code, start)]
        found = lengths(code)
        assert found == expected[: len(found)], hex(start)
        seen += len(found)
    assert seen > 2000


def test_lengths_of_instructions_with_prefixes_are_capstones():
    """Calls of __tls_get_addr have prefixes that mean nothing, 66 66 48, before a distance of four bytes."""
    engine, seen = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64), 0
    prefixes = map(bytes.fromhex, ("", "66", "f2", "6666", "48", "6648", "664c", "666648", "f348", "64"))
    for prefix, escape, opcode in product(prefixes, (b"", b"\x0f"), range(256)):
        for modrm in (0x05, 0x84, 0xC8):
            code = (prefix + escape + bytes((opcode, modrm)) + bytes(range(1, 11))).ljust(15, b"\x01")
            expected, found = next(engine.disasm(code, 0), None), lengths(code)
            if expected is not None and found:
                assert found[0] == expected.size, code.hex()
                seen += 1
    assert seen > 10_000


@pytest.mark.stress
@pytest.mark.parametrize("text", sampled(PLAIN, 4))
def test_code_of_compilers_is_plain(text):
    code = assembled(text)
    assert uses_its_return(code, 0x1000) == ""
    assert are_plain(image(), [code]) == [True]


@pytest.mark.parametrize("text", sampled([*REFUSED, *KNOWN_TO_THE_WALK], 12))
def test_code_that_uses_its_return_slot_or_is_not_understood_is_not_plain(text):
    assert are_plain(image(), [assembled(text)]) == [False]


@pytest.mark.parametrize("library", ["libz.so.1", "libm.so.6", "libffi.so.8"])
def test_no_plain_function_of_a_library_is_refused_by_the_walk(library):
    found = functions_of(library)[::3]
    plain = are_plain(image(), [code for _start, code in found])
    assert sum(plain) > len(plain) * 0.7
    assert [hex(start) for (start, code), is_plain in zip(found, plain, strict=True)
            if is_plain and uses_its_return(code, start)] == []  # fmt: skip


def pool():
    """The bytes of each instruction of POOL."""
    code = assembled("; ".join(f".balign 16, 0x90; {text}" for text in POOL.split(";")))
    return [code[at : at + next(decoded(code[at:])).size] for at in range(0, len(code), 16)]


def program(rng, instructions):
    """Some of these, with short jumps over some of them."""
    chosen = [rng.choice(instructions) for _ in range(rng.randrange(2, 12))]
    code = b""
    for insn in reversed(chosen):
        code = insn + code
        if rng.random() < 0.2:
            code = bytes([0x74, rng.choice((0, len(insn), len(code)))]) + code
    return code + b"\xc3"


def test_no_plain_program_is_refused_by_the_walk():
    rng, instructions = random.Random(5), pool()
    programs = [program(rng, instructions) for _ in range(4000)]
    plain = are_plain(image(), programs)
    assert sum(plain) > 200
    refused = [
        code.hex() for code, is_plain in zip(programs, plain, strict=True) if is_plain and uses_its_return(code, 0)
    ]
    assert refused == []


def test_functions_of_any_number_and_size():
    assert are_plain(image(), []) == []
    assert are_plain(image(), [b"\xc3", b"", b"\x90" * (1 << 17) + b"\xc3", b"\x5b\xc3"]) == [True, True, False, False]
