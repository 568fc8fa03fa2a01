"""The start routine of threads whose creator is followed, as assembly text (AT&T)."""

from __future__ import annotations

THREAD_START = """
# The routine of a new thread, called by libc: joins the lists of its creator, then becomes the thread's own routine.
#   rdi = the Start (ftrace.hit.pid_list)
#   stack inside: 8 bytes of padding, the routine's argument at 8(%rsp), padding, return into libc at 24(%rsp)
# The routine finds the stack that libc gave: nothing of this is left for unwinders, pthread_exit or a debugger to go through.
    .globl ftrace_thread_start
    .type ftrace_thread_start,@function
    .p2align 4
ftrace_thread_start:
    .cfi_startproc
    endbr64
    sub $24, %rsp
    lea 8(%rsp), %rsi
    call followed_thread_begins
    mov 8(%rsp), %rdi
    add $24, %rsp
    jmp *%rax
"""
