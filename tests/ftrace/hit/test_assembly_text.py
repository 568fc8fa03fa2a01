"""HAZARDS 1, CFI: directives for assembly text follow the stack."""

from __future__ import annotations

import pytest

from ftrace.hit.x86_64.assembly_text import DepthError, with_call_frames

TEXT = """
    .globl f
f:
    .cfi_startproc
    push %rbx
    sub $32, %rsp
    test %eax, %eax
    jne 7f
    lea 32(%rsp), %rsp
    pop %rbx
    ret
7:  add $32, %rsp
    pop %rbx
    ret
    .globl g
g:
    .cfi_startproc
    .cfi_def_cfa_offset 0
    lea -16(%rsp), %rsp
    jmp f_end
"""


def test_what_moves_the_stack_is_followed_and_a_label_behind_a_return_has_the_depth_of_the_jump() -> None:
    lines = [line.strip() for line in with_call_frames(TEXT).splitlines()]
    assert lines[lines.index("sub $32, %rsp") + 1] == ".cfi_adjust_cfa_offset 32"
    assert lines[lines.index("lea 32(%rsp), %rsp") + 1] == ".cfi_adjust_cfa_offset -32"
    assert lines[lines.index("7:") :][:3] == ["7:", ".cfi_def_cfa_offset 48", "add $32, %rsp"]
    assert lines[lines.index("lea -16(%rsp), %rsp") + 1] == ".cfi_adjust_cfa_offset 16"
    assert lines.count(".cfi_startproc") == lines.count(".cfi_endproc") == 2
    assert lines.index(".cfi_endproc") < lines.index(".globl g")


def test_a_label_reached_at_two_depths_is_refused() -> None:
    with pytest.raises(DepthError, match="7 is reached with the stack 48 and 40 bytes deep"):
        with_call_frames(TEXT.replace("lea 32(%rsp), %rsp\n    pop %rbx\n    ret", "lea 8(%rsp), %rsp"))
