"""Continuing in a direct function, as assembly text (AT&T)."""

from __future__ import annotations

DIRECT_CALL = """
# A site's registers have been restored, and nothing is on the stack that was not there; r10 and r11 are free at a site.
#   r10 = the direct function, r11 = site+5
#   stack        rsp -> what lay on top at the site (the parent's return address, but after a prologue)
# The direct function finds what a `call` at the site would have left: site+5 on top. Its `ret` continues in the function.
    .text
    .globl ftrace_direct_call
    .type ftrace_direct_call,@function
    .p2align 4
ftrace_direct_call:
    .cfi_startproc
    push %r11
    .cfi_adjust_cfa_offset 8
    jmp *%r10
    .cfi_endproc
    .size ftrace_direct_call, .-ftrace_direct_call
"""
