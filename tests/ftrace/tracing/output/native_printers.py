"""A program and a handler in the native language that print."""

import fprobe
import sandbox
from sandbox.native import addressof, array, extern, fn, global_var, i32, ptr, u8, u64

form = global_var(array[u8, 16], b"size %lu\n\0")
trace_printk = extern("trace_printk", fn[i32, ptr[u8], u64])
bprintk = extern("__trace_bprintk", fn[i32, u64, ptr[u8], u64])


@sandbox.function
def printing(size: u64) -> u64:
    trace_printk(addressof(form[0]), size)
    return size


@fprobe.native
def entry(fp, ip, ret_ip, regs, data):
    bprintk(ip, addressof(form[0]), regs.di)
