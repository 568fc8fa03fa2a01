"""Verification: what compiled native code may not contain is found in it, and is not in ours."""

from __future__ import annotations

import pytest
from native_programs import ALL, unit
from sampled import in_stress

from sandbox.native.back.compile import compile_ir, compile_unit
from sandbox.native.back.module import TRIPLE
from sandbox.native.back.verify import verify_object


@pytest.mark.parametrize("opt", [0, in_stress(1), in_stress(2), 3])
@pytest.mark.parametrize("checked", [False, True])
def test_loops_and_copies_stay_free_of_calls_and_vectors(opt: int, checked: bool) -> None:
    assert verify_object(compile_unit(unit(*ALL, checked=checked), opt)) == []


@pytest.mark.parametrize(
    ("instruction", "complaint"),
    [
        ("movaps %xmm0, %xmm1", "`movaps xmm1, xmm0` touches vector or floating-point state"),
        ("vzeroupper", "`vzeroupper` touches vector or floating-point state"),
        ("fld1", "`fld1` touches vector or floating-point state"),
        ("emms", "`emms` touches vector or floating-point state"),
        ("movq %mm0, %rax", "`movq rax, mm0` touches vector or floating-point state"),
        ("kmovq %k1, %rax", "`kmovq rax, k1` touches vector or floating-point state"),
        ("vpaddd %zmm1, %zmm2, %zmm3", "`vpaddd zmm3, zmm2, zmm1` touches vector or floating-point state"),
        ("ldmxcsr (%rsp)", "`ldmxcsr dword ptr [rsp]` touches vector or floating-point state"),
        ("fxsave (%rdi)", "`fxsave [rdi]` touches vector or floating-point state"),
        ("cvtsi2sd %rax, %xmm3", "`cvtsi2sd xmm3, rax` touches vector or floating-point state"),
        ("sub $8192, %rsp", "`sub rsp, 0x2000` takes more than 4352 bytes of stack"),
    ],
)
def test_verification_finds(instruction: str, complaint: str) -> None:
    text = f'target triple = "{TRIPLE}"\nmodule asm ".type f,@function\\0Af: nop\\0A{instruction}\\0Aret"'
    assert verify_object(compile_ir(text)) == [f"f+0x1: {complaint}"]


def test_verification_passes_what_only_looks_alike() -> None:
    lines = "verr %ax; mov %fs:0, %rax; xadd %rax, (%rdi); sub $64, %rsp; mov %rax, %rbp; lock incq (%rdi)"
    text = f'target triple = "{TRIPLE}"\nmodule asm "f: {lines}; ret"'
    assert verify_object(compile_ir(text)) == []


def test_verification_finds_foreign_symbols() -> None:
    text = 'm = extern("memset", fn[void, ptr[u8]])\n@native\ndef f(p: ptr[u8]) -> void:\n    m(p)\n'
    data = compile_unit(unit("f", text=text))
    assert verify_object(data) == ["it refers to memset, which native code may not use"]
    assert verify_object(data, ["memset"]) == []


def test_verification_finds_what_is_no_code() -> None:
    text = f'target triple = "{TRIPLE}"\nmodule asm "f: nop; .byte 6, 7, 0, 0"'
    assert verify_object(compile_ir(text)) == [".text+0x1: these bytes are no instruction: 06 07 00 00"]
