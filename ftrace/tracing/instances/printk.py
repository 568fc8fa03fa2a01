"""Where trace_printk of programs records, and the texts that its records refer to."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from ftrace.core.runtime import runtime
from ftrace.hit.events import printk
from ftrace.tracing.binary_printf import unknown_text
from sandbox.process.once import once

if TYPE_CHECKING:
    from ftrace.tracing.instances.trace_array import TraceArray

_ESCAPES = str.maketrans({"\n": "\\n", "\t": "\\t", '"': '\\"'})


@once
def _state() -> Any:
    """The native half."""
    return printk.Printk.ctypes()


def direct_printk(array: TraceArray, *, begins: bool = False) -> None:
    """Have programs record into this trace array, as its options and switches say: update_printk_trace().

    Does nothing before it is first called with `begins`.
    """
    variable = runtime().image.variable("printk")
    if not (begins or variable.value):
        return
    state = _state()
    variable.value = ctypes.addressof(state)
    state.enabled = 0
    state.buffer = array.buffer.address
    state.tracing_on = array.switch
    state.filter.dropped = array.dropped_slots.address
    state.filter.is_set = int(array.dropped_slots.address != 0)
    state.enabled = int(array.options["trace_printk"])


def kept_text(text: bytes) -> int:
    """The address of the kept copy of a text; 0 if it is too long, or there is no space."""
    copy = ctypes.create_string_buffer(text)
    return runtime().image.call("printk_format", ctypes.addressof(copy))


def printk_formats() -> str:
    """The file printk_formats: t_show() in kernel/trace/trace_printk.c."""
    return "".join(
        f'{address:#x} : "{text_at(address).translate(_ESCAPES)}"\n'
        for address in sorted(filter(None, _state().formats))
    )


def text_at(address: int) -> str:
    """The kept text at an address; one that says so if there is none."""
    start = ctypes.addressof(_state()) + printk.Printk.offset("texts")
    if not start <= address < start + printk.TEXTS:
        return unknown_text(address)
    return ctypes.string_at(address).decode("utf-8", "surrogateescape")
