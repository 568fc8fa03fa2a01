"""Native: the running thread's name."""

from __future__ import annotations

from sandbox.native import cast, native, ptr, syscall, u8, u64
from sandbox.x86_64.syscalls import SYS_PRCTL

TASK_COMM_LEN = 16
"""Bytes of a name, with its final 0."""
_PR_GET_NAME = 16


@native
def get_task_comm(name: ptr[u8]) -> u64:
    """Store the name, TASK_COMM_LEN bytes, and return that length."""
    syscall(SYS_PRCTL, _PR_GET_NAME, cast(u64, name), 0, 0, 0, 0)
    return TASK_COMM_LEN
