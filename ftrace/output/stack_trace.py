"""stack_trace: the deepest stack, as t_show() of kernel/trace/trace_stack.c."""

from __future__ import annotations

from ftrace.output.symbols import with_offset
from ftrace.tracers.stack import stack_tracer

_DISABLED = """\
#
#  Stack tracer disabled
#
# To enable the stack tracer, either add 'stacktrace' to the
# kernel command line
# or 'echo 1 > /proc/sys/kernel/stack_tracer_enabled'
#
"""


def stack_trace_text() -> str:
    """The table: depth and frame size of each function in bytes, innermost first."""
    frames = stack_tracer.frames()
    head = f"        Depth    Size   Location    ({len(frames)} entries)\n        -----    ----   --------\n"
    if not stack_tracer.enabled and not stack_tracer.max_size:
        head += _DISABLED
    outer = [frame.depth for frame in frames[1:]] + [0]
    rows = (
        f"{number:3}) {frame.depth:8}   {frame.depth - next_depth:5}   {with_offset(frame.address)}\n"
        for number, (frame, next_depth) in enumerate(zip(frames, outer, strict=False))
    )
    return head + "".join(rows)
