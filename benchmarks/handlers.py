"""Native handlers that the rows attach."""

# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from ftrace import pt_regs
from sandbox.native import global_var, i32, native, null, ptr, u64, void

mismatches = global_var(u64, 0)
total = global_var(u64, 0)


@native(cc="preserve_most")
def nothing(fp: u64, ip: u64, ret_ip: u64, regs: u64, data: ptr[u64]) -> i32:
    return 0


@native(cc="preserve_most")
def decline(fp: u64, ip: u64, ret_ip: u64, regs: u64, data: ptr[u64]) -> i32:
    """No exit handler for this call, as every filter says."""
    return 1


@native(cc="preserve_most")
def remember(fp: u64, ip: u64, ret_ip: u64, regs: u64, data: ptr[u64]) -> i32:
    """Keep where this call returns to."""
    data[0] = ip ^ ret_ip
    return 0


@native(cc="preserve_most")
def remember_if_hooked(fp: u64, ip: u64, ret_ip: u64, regs: u64, data: ptr[u64]) -> i32:
    """`remember`, where there may be no return node and so no data."""
    if data != null:
        data[0] = ip ^ ret_ip
    return 0


@native(cc="preserve_most")
def compare(fp: u64, ip: u64, ret_ip: u64, regs: u64, data: ptr[u64]) -> void:
    """Count the calls that do not return to there."""
    global mismatches
    if data[0] != ip ^ ret_ip:
        mismatches += 1


@native(cc="preserve_most")
def read_argument(fp: u64, ip: u64, ret_ip: u64, regs: ptr[pt_regs], data: u64) -> i32:
    """Add up the first arguments."""
    global total
    total += regs.di
    return 0


@native(cc="preserve_most")
def read_two_arguments(fp: u64, ip: u64, ret_ip: u64, regs: ptr[pt_regs], data: u64) -> i32:
    """Add up the first two arguments."""
    global total
    total += regs.di + regs.si
    return 0


@native(cc="preserve_most")
def read_result(fp: u64, ip: u64, ret_ip: u64, regs: ptr[pt_regs], data: u64) -> void:
    """Add up the results."""
    global total
    total += regs.ax
