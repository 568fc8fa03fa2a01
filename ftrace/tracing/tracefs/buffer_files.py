"""Files for a trace array's buffer: sizes, clock, statistics, headers."""

from __future__ import annotations

import errno
from collections.abc import Callable

from ftrace.hit.ring_buffer.layout import DATA_TYPE_MAX, DELTA_BITS, HEADER, PADDING, SLOTS, TIME_EXTEND, TIME_STAMP
from ftrace.ring_buffer import clock
from ftrace.ring_buffer.arena import Cpu
from ftrace.ring_buffer.buffer import DEFAULT_SIZE_KB
from ftrace.tracing.events.registry import event_registry
from ftrace.tracing.files.nodes import Node, TextFile, written_number
from ftrace.tracing.instances.trace_array import TraceArray
from ftrace.tracing.output.context import timestamp
from ftrace.tracing.output.trace import slots_in_use

BOOT_KB = 7
"""Size of a slot in KiB before the first use of a trace array: two sub-buffers, as in the kernel."""
_MAX_PERCENT = 100
_LONGEST_CLOCK = 63
"""Of what is written to trace_clock, as in tracing_clock_write()."""


def settings(array: TraceArray) -> dict[str, Node]:
    """The files of a trace array's buffer, by name."""
    return {
        "buffer_percent": TextFile(lambda: f"{array.buffer_percent}\n", lambda text: _set_percent(array, text)),
        "buffer_size_kb": TextFile(lambda: _sizes(array), _checked(lambda size: _set_size(array, size))),
        "buffer_subbuf_size_kb": TextFile(
            lambda: f"{array.buffer.subbuf_kb}\n", _checked(lambda size: setattr(array.buffer, "subbuf_kb", size))
        ),
        "buffer_total_size_kb": TextFile(lambda: _total(array)),
        "timestamp_mode": TextFile(lambda: "[delta] absolute\n"),
        "trace_clock": TextFile(lambda: _clocks(array), lambda text: _set_clock(array, text)),
    }


def _checked(set_size: Callable[[int], None]) -> Callable[[str], None]:
    """A write function for a number of KiB. It raises OSError(EINVAL) for a size that is out of range."""

    def write(text: str) -> None:
        size = written_number(text)
        try:
            set_size(size)
        except ValueError as wrong:
            raise OSError(errno.EINVAL, str(wrong)) from None

    return write


def _set_size(array: TraceArray, size: int) -> None:
    array.buffer.size_kb = size
    array.is_expanded = True


def slot_size_file(array: TraceArray, slot: int | Cpu) -> TextFile:
    """The file per_cpu/cpuN/buffer_size_kb of a slot, or of those slots of a CPU that are in use."""
    first, step = (slot, SLOTS) if isinstance(slot, int) else slot

    def write(size: int) -> None:
        for each in range(first, max(slots_in_use(), first + 1), step):
            array.buffer.set_slot_size_kb(each, size)
        array.is_expanded = True

    def read() -> str:
        _expand(array)
        return f"{array.buffer.slot_size_kb(first) if array.is_expanded else BOOT_KB}\n"

    return TextFile(read, _checked(write), mode=0o440)


def _sizes(array: TraceArray) -> str:
    sizes = {array.buffer.slot_size_kb(slot) for slot in range(slots_in_use())}
    return "X\n" if len(sizes) > 1 else _shown(array, sizes.pop(), 1)


def _total(array: TraceArray) -> str:
    slots = range(slots_in_use())
    return _shown(array, sum(map(array.buffer.slot_size_kb, slots)), len(slots))


def _shown(array: TraceArray, size: int, slots: int) -> str:
    """The text for a size in KiB. Before the first use: the small size of the kernel, and the size after expansion."""
    _expand(array)
    if array.is_expanded:
        return f"{size}\n"
    return f"{BOOT_KB * slots} (expanded: {DEFAULT_SIZE_KB * slots})\n"


def _expand(array: TraceArray) -> None:
    """Note that the buffer has its full size, if an event has ever been enabled."""
    array.is_expanded = array.is_expanded or any(event.ever_enabled for event in event_registry.events())


def _set_percent(array: TraceArray, text: str) -> None:
    percent = written_number(text)
    if percent > _MAX_PERCENT:
        raise OSError(errno.EINVAL, f"buffer_percent is {percent}; it must be between 0 and {_MAX_PERCENT}")
    array.buffer_percent = percent


def _clocks(array: TraceArray) -> str:
    now = array.buffer.clock
    return " ".join(f"[{each.name}]" if each.name == now else each.name for each in clock.CLOCKS) + "\n"


def _set_clock(array: TraceArray, text: str) -> None:
    if len(text) > _LONGEST_CLOCK:
        raise OSError(errno.EINVAL, f"the clock has {len(text)} characters; the maximum is {_LONGEST_CLOCK}")
    try:
        array.buffer.clock = text.strip()
    except ValueError as wrong:
        raise OSError(errno.EINVAL, str(wrong)) from None
    array.clear()
    array.update_tracing()


def stats_text(array: TraceArray, slot: int | Cpu) -> str:
    """The content of per_cpu/cpuN/stats, as tracing_stats_read() in kernel/trace/trace.c."""
    stats = array.buffer.stats(slot)
    in_ns = clock.find(array.buffer.clock).in_ns
    oldest, now = (timestamp(stamp, True) if in_ns else str(stamp) for stamp in (stats.oldest, stats.now))
    return (
        f"entries: {stats.entries}\n"
        f"overrun: {stats.overrun}\n"
        f"commit overrun: {stats.commit_overrun}\n"
        f"bytes: {stats.bytes}\n"
        f"oldest event ts: {oldest}\n"
        f"now ts: {now}\n"
        f"dropped events: {stats.dropped}\n"
        f"read events: {stats.read}\n"
    )


def header_page(array: TraceArray) -> str:
    """events/header_page, the header of a sub-buffer: ring_buffer_print_page_header() in kernel/trace/ring_buffer.c."""
    fields = (
        ("u64 timestamp", 0, 8, 0),
        ("local_t commit", 8, 8, 1),
        ("int overwrite", 8, 1, 1),
        ("char data", HEADER, array.buffer.subbuf_kb * 1024 - HEADER, 0),
    )
    return "".join(
        f"\tfield: {field};\toffset:{at};\tsize:{size};\tsigned:{sign};\n" for field, at, size, sign in fields
    )


def header_event() -> str:
    """events/header_event, the header of an event: ring_buffer_print_entry_header() in kernel/trace/ring_buffer.c."""
    return (
        "# compressed entry header\n"
        "\ttype_len    :    5 bits\n"
        f"\ttime_delta  :   {DELTA_BITS} bits\n"
        "\tarray       :   32 bits\n"
        "\n"
        f"\tpadding     : type == {PADDING}\n"
        f"\ttime_extend : type == {TIME_EXTEND}\n"
        f"\ttime_stamp : type == {TIME_STAMP}\n"
        f"\tdata max type_len  == {DATA_TYPE_MAX}\n"
    )
