"""Where trace_printk of programs records, and the texts that its records refer to."""

from __future__ import annotations

import ctypes
from typing import Any

from ftrace.core.runtime import runtime
from ftrace.hit.events import printk
from ftrace.tracing.binary_printf import unknown_text
from sandbox.process.once import once

_ESCAPES = str.maketrans({"\n": "\\n", "\t": "\\t", '"': '\\"'})


@once
def _state() -> Any:
    """The native half."""
    return printk.Printk.ctypes()


def has_begun() -> bool:
    """Whether programs record."""
    return bool(runtime().image.variable("printk").value)


def direct_printk(buffer: int, tracing_on: int, dropped: int, enabled: bool) -> None:
    """Have programs record into the buffer at this address. `tracing_on`, `dropped`: addresses; `enabled`: the option."""
    state = _state()
    runtime().image.variable("printk").value = ctypes.addressof(state)
    state.enabled = 0
    state.buffer, state.tracing_on = buffer, tracing_on
    state.filter.dropped, state.filter.is_set = dropped, int(dropped != 0)
    state.enabled = int(enabled)


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
