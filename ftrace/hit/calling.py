"""Calling a handler; errno is preserved around foreign code."""

from __future__ import annotations

from ftrace.hit.records import FOREIGN, Handler, Probe, ProbeList
from sandbox.native import bool_, extern, fn, i32, native, ptr, u64
from sandbox.threads.tasks import Task

call_foreign = extern("ftrace_call_foreign", fn[i32, Handler, u64, u64, u64, u64, u64])
call_foreign_return = extern("ftrace_call_foreign_return", fn[i32, Handler, u64, u64, u64, u64, u64])
call_foreign_keeping = extern("ftrace_call_foreign_keeping", fn[i32, Handler, u64, u64, u64, u64, u64])


@native(inline=True)
def call_handler(
    task: ptr[Task],
    probes: ptr[ProbeList],
    probe: ptr[Probe],
    at_return: bool_,
    fp: u64,
    ip: u64,
    ret: u64,
    regs: u64,
    data: u64,
) -> i32:
    """A probe's handler of entries or, `at_return`, of returns, where a long double may be on the x87 stack."""
    handler = probe.exit if at_return else probe.entry
    if probe.kind & FOREIGN == 0:
        return handler(fp, ip, ret, regs, data)
    saved = task.errno[0]
    result: i32 = 0
    if probes.keeping != 0:
        result = call_foreign_keeping(handler, fp, ip, ret, regs, data)
    elif at_return:
        result = call_foreign_return(handler, fp, ip, ret, regs, data)
    else:
        result = call_foreign(handler, fp, ip, ret, regs, data)
    task.errno[0] = saved
    return result
