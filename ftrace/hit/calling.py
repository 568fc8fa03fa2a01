"""Calling a handler; errno is preserved around foreign code."""

from __future__ import annotations

from ftrace.hit.records import FOREIGN, Handler, ProbeList
from sandbox.native import extern, fn, i32, native, ptr, u32, u64, void
from sandbox.threads.tasks import Task

call_foreign = extern("ftrace_call_foreign", fn[i32, Handler, u64, u64, u64, u64, u64])
call_foreign_return = extern("ftrace_call_foreign_return", fn[i32, Handler, u64, u64, u64, u64, u64])
call_foreign_keeping = extern("ftrace_call_foreign_keeping", fn[i32, Handler, u64, u64, u64, u64, u64])


@native
def call_handler(
    task: ptr[Task],
    probes: ptr[ProbeList],
    kind: u32,
    handler: Handler,
    fp: u64,
    ip: u64,
    ret: u64,
    regs: u64,
    data: u64,
) -> i32:
    """A handler at the entry of a function."""
    if kind & FOREIGN == 0:
        return handler(fp, ip, ret, regs, data)
    saved = task.errno[0]
    result: i32 = 0
    if probes.keeping != 0:
        result = call_foreign_keeping(handler, fp, ip, ret, regs, data)
    else:
        result = call_foreign(handler, fp, ip, ret, regs, data)
    task.errno[0] = saved
    return result


@native
def call_return_handler(
    task: ptr[Task],
    probes: ptr[ProbeList],
    kind: u32,
    handler: Handler,
    fp: u64,
    ip: u64,
    ret: u64,
    regs: u64,
    data: u64,
) -> void:
    """A handler at the return, where a long double may be on the x87 stack."""
    if kind & FOREIGN == 0:
        handler(fp, ip, ret, regs, data)
        return
    saved = task.errno[0]
    if probes.keeping != 0:
        call_foreign_keeping(handler, fp, ip, ret, regs, data)
    else:
        call_foreign_return(handler, fp, ip, ret, regs, data)
    task.errno[0] = saved
