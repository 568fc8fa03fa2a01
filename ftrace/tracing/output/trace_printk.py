"""trace_printk and trace_puts: of Python, and the functions of these names that programs may call."""

from __future__ import annotations

from ftrace.core.runtime import runtime
from ftrace.tracing.binary_printf import packed
from ftrace.tracing.events.builtin import BPRINT, BPUTS, PRINT
from ftrace.tracing.instances.as_task import recording_task
from ftrace.tracing.instances.printk import kept_text
from ftrace.tracing.instances.trace_array import TraceArray, global_trace, trace_arrays
from sandbox.process.once import once

_LONGEST = 1024
_WORD = 8


@once
def _begin() -> None:
    """Have programs record, into the trace array with the option trace_printk_dest."""
    _target().take_printk(begins=True)


def address_of(symbol: str) -> int:
    """The address of a function that programs may call."""
    _begin()
    return runtime().image.address(symbol)


def _target() -> TraceArray:
    top = global_trace()
    return next((array for array in trace_arrays if array.options["trace_printk_dest"]), top)


def trace_printk(fmt: str, *args: int | str | bytes, ip: int = 0) -> int:
    """Record a text, which the file trace shows as `function: text`. Does not fail if nothing is recorded now.

    `fmt` has the directives of printf for integers, characters, texts and pointers, and the kernel's %ps (the symbol of an
    address); a newline is not added. Only the arguments are recorded, and the address of `fmt`, of which one copy is kept: a
    record `bprint`, or `bputs` if there are no arguments. `ip`: the address of the function that the line names, such as a
    handler's `ip`; 0: this one. Returns how many bytes were recorded; 0: none, because the option trace_printk or tracing_on is
    off. Without arguments `fmt` is taken as it is. Raises TypeError for arguments that do not fit the format, ValueError if they
    take more than 1024 bytes or there is no space for another format: 4096 are kept.
    """
    if not args:
        return trace_puts(fmt, ip=ip)
    data = packed(fmt, args)
    if len(data) > _LONGEST:
        raise ValueError(f"the arguments of {fmt!r} take {len(data)} bytes; a record holds {_LONGEST}")
    _begin()
    if not (kept := kept_text(fmt.encode("utf-8", "surrogateescape"))):
        raise ValueError(
            f"the format {fmt[:40]!r} cannot be kept: it is too long, or there are too many; pass what varies as arguments"
        )
    return _record(BPRINT.id, ip, kept.to_bytes(_WORD, "little") + data)


def trace_puts(text: str, *, ip: int = 0) -> int:
    """Record a text as it is: as `bputs`, the address of the kept copy; one that cannot be kept as `print`, itself.

    `ip` and the result are those of `trace_printk`. A text is cut at 1022 bytes if it cannot be kept.
    """
    _begin()
    data = text.encode("utf-8", "surrogateescape").partition(b"\0")[0]
    if kept := kept_text(data):
        return _record(BPUTS.id, ip, kept.to_bytes(_WORD, "little"))
    data = data[: _LONGEST - 2]
    return _record(PRINT.id, ip, data + (b"\0" if data.endswith(b"\n") else b"\n\0"))


def _record(type_id: int, ip: int, data: bytes) -> int:
    array = _target()
    if not (array.options["trace_printk"] and array.tracing_on) or array.dropped_slots.has_this_thread():
        return 0
    head = (ip or runtime().image.address("trace_printk")).to_bytes(_WORD, "little")
    return len(head + data) * array.buffer.write(type_id, head + data, recording_task())
