"""Stack traces, with the real return addresses of probed calls."""

from ftrace.core.unwind.stacktrace import is_rethook_trampoline as is_rethook_trampoline
from ftrace.core.unwind.stacktrace import rethook_find_ret_addr as rethook_find_ret_addr
from ftrace.core.unwind.stacktrace import stack_trace as stack_trace
from ftrace.core.unwind.stacktrace import stack_trace_save as stack_trace_save
from ftrace.core.unwind.stacktrace import stack_trace_save_regs as stack_trace_save_regs
