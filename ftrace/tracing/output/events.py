"""The text of an event, by its type: in trace, and with the options raw, hex and fields."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from itertools import takewhile
from typing import NamedTuple

from ftrace.hit.events.builtin_records import FTRACE_TRAMPOLINE_MARKER, TRACING_MARK_WRITE
from ftrace.ring_buffer.formatters import Memo, Number, Piece, Show, compiled
from ftrace.tracing.binary_printf import printed
from ftrace.tracing.events.builtin import (
    BPRINT,
    BPUTS,
    BUILTIN_EVENTS,
    FUNC_REPEATS,
    FUNCTION,
    KERNEL_STACK,
    MODULE_FREE,
    MODULE_LOAD,
    PRINT,
    RAW_DATA,
    USER_STACK,
)
from ftrace.tracing.events.probe_event import ProbeEvent
from ftrace.tracing.events.registry import TraceEvent, event_registry
from ftrace.tracing.events.triggers.interfaces import SYNTHETIC
from ftrace.tracing.instances.options import Options
from ftrace.tracing.instances.printk import text_at
from ftrace.tracing.output.addresses import in_object, ip_sym
from ftrace.tracing.probe_args.layout import Field, record_pieces
from ftrace.tracing.symbols import with_offset

_TWO_WORDS = struct.Struct("<QQ")
_REPEATS = struct.Struct("<QQHHI")
_NUMBER = struct.Struct("<I")
_OWN = 8
"""Offset of an event's own fields."""
_CALLERS = 16
"""Offset of the addresses in a stack record."""

Printer = Callable[[TraceEvent, bytes, Options], str]
Maker = Callable[[TraceEvent, Options], Show]


def text_of(data: bytes) -> str:
    """Text up to its NUL."""
    return data.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def events_by_id() -> dict[int, TraceEvent]:
    """The events that records may belong to, by id."""
    return {event.id: event for event in (*BUILTIN_EVENTS, *event_registry.events())}


# -- as trace ---------------------------------------------------------------------------------------------------------


def _each(printer: Printer) -> Maker:
    """The maker of a formatter that decides at every record."""
    return lambda event, options: lambda data: printer(event, data, options)


def _probe(event: TraceEvent, options: Options) -> Show:
    assert isinstance(event, ProbeEvent)
    places, names = (Memo(partial(ip_sym, options=options, offset=offset)) for offset in (True, False))
    return compiled([f"{event.name}: ", *record_pieces(event.layout, places, names, Memo(with_offset)), "\n"])


def _function(_event: TraceEvent, options: Options) -> Show:
    has_parent = options["print-parent"]
    callers: Memo[int, str] = Memo(lambda parent: f" <-{ip_sym(parent, options)}" if parent and has_parent else "")
    functions = Memo(partial(ip_sym, options=options))
    return compiled([Number(_OWN, 8, False, "%s", functions), Number(_OWN + 8, 8, False, "%s", callers), "\n"])


def _stack(_event: TraceEvent, data: bytes, options: Options) -> str:
    return "<stack trace>\n" + "".join(f" => {_frame(address, options)}\n" for address in _callers(data))


def _frame(address: int, options: Options) -> str:
    return "[FTRACE TRAMPOLINE]" if address == FTRACE_TRAMPOLINE_MARKER else ip_sym(address, options)


def _user_stack(_event: TraceEvent, data: bytes, options: Options) -> str:
    frames = takewhile(bool, struct.unpack_from("<8Q", data, _CALLERS))
    return "<user stack trace>\n" + "".join(f" => {in_object(address, options)}\n" for address in frames)


def _callers(data: bytes) -> tuple[int, ...]:
    """The addresses of a stack record."""
    count = min(_NUMBER.unpack_from(data, _OWN)[0], (len(data) - _CALLERS) // 8)
    return struct.unpack_from(f"<{count}Q", data, _CALLERS)


def printed_text(event: TraceEvent, data: bytes) -> str:
    """The text of a record of ftrace.tracing.events.builtin.PRINTS, without the function that printed it."""
    if event is PRINT:
        return text_of(data[_OWN + 8 :])
    address = _TWO_WORDS.unpack_from(data, _OWN)[1]
    text = text_at(address)
    return printed(text, data[_OWN + _TWO_WORDS.size :], with_offset) if event is BPRINT else text


def _print(event: TraceEvent, data: bytes, options: Options) -> str:
    ip = int.from_bytes(data[_OWN : _OWN + 8], "little")
    return f"{ip_sym(ip, options) if ip else TRACING_MARK_WRITE}: {printed_text(event, data)}"


def _raw_data(_event: TraceEvent, data: bytes, _options: Options) -> str:
    number = _NUMBER.unpack_from(data, _OWN)[0]
    return f"# {number:x} buf:" + "".join(f" {byte:02x}" for byte in data[_OWN + 4 :]) + "\n"


def _module(event: TraceEvent, data: bytes, _options: Options, end: str) -> str:
    return f"{event.name}: {_value(event.fields[-1], data)}{end}"


def _synthetic(event: TraceEvent, _options: Options) -> Show:
    """print_synth_event() in kernel/trace/trace_events_synth.c."""
    pieces: list[Piece] = [f"{event.name}: "]
    for field in event.fields:
        is_last = field is event.fields[-1]
        pieces += [f"{field.name}=", *_value_pieces(field, "\n" if is_last else " ", is_last)]
    return compiled(pieces if event.fields else [*pieces, "\n"])


def _value_pieces(field: Field, end: str, is_last: bool) -> list[Piece]:
    """The pieces of a field's value and what follows it: no blank after a stack, which ends with a newline."""
    if "[" in field.type or field.size not in (1, 2, 4, 8):
        return [
            lambda data: (value := _plain_value(field, data)) + ("" if value.endswith("\n") and not is_last else end)
        ]
    # The kernel widens one and two bytes without their sign.
    is_signed = field.signed and field.size >= _NUMBER.size
    return [Number(field.offset, field.size, is_signed, "%x" if field.type == "gfp_t" else "%d"), end]


def _plain_value(field: Field, data: bytes) -> str:
    """A text, a stack, or a number of an unusual size."""
    if "char[" in field.type:
        return (
            _value(field, data) if field.type.startswith("__data_loc") else text_of(data[field.offset :][: field.size])
        )
    if "long[" in field.type:
        # The first word is their number.
        return "STACK:\n" + "".join(f"=> {with_offset(address)}\n" for address in _dynamic_words(field, data)[1:])
    return str(int.from_bytes(data[field.offset : field.offset + field.size], "little", signed=field.signed))


def _dynamic_words(field: Field, data: bytes) -> tuple[int, ...]:
    word = _word(data, field)
    count = min(word >> 16, max(len(data) - (word & 0xFFFF), 0)) // 8
    return struct.unpack_from(f"<{count}Q", data, word & 0xFFFF)


# -- as raw and hex ---------------------------------------------------------------------------------------------------


def _type(event: TraceEvent, _data: bytes, _options: Options) -> str:
    return f"type: {event.id}\n"


def _addresses(_event: TraceEvent, data: bytes, _options: Options) -> str:
    ip, parent = _TWO_WORDS.unpack_from(data, _OWN)
    return f"{ip:x} {parent:x}\n"


def _addresses_in_hex(_event: TraceEvent, data: bytes, _options: Options) -> str:
    ip, parent = _TWO_WORDS.unpack_from(data, _OWN)
    return f"{ip:016x} {parent:016x} "


def _addresses_in_binary(_event: TraceEvent, data: bytes, _options: Options) -> str:
    return data[_OWN : _OWN + _TWO_WORDS.size].decode("utf-8", "surrogateescape")


def _repeats_raw(_event: TraceEvent, data: bytes, _options: Options) -> str:
    ip, parent, count, top, bottom = _REPEATS.unpack_from(data, _OWN)
    return f"{ip} {parent} {count} {top << 32 | bottom}\n"


def _print_raw(event: TraceEvent, data: bytes, _options: Options) -> str:
    ip = int.from_bytes(data[_OWN : _OWN + 8], "little")
    return f"# {ip:x} {printed_text(event, data)}" if event is PRINT else f": {ip:x} : {printed_text(event, data)}"


# -- as fields --------------------------------------------------------------------------------------------------------


def _fields(event: TraceEvent, data: bytes, _options: Options) -> str:
    return f"{event.name}:" + "".join(f" {field.name}={_value(field, data)}" for field in event.fields) + "\n"


def _value(field: Field, data: bytes) -> str:
    raw = data[field.offset : field.offset + field.size]
    if "long[" in field.type:
        return "<INVALID-TYPE>"
    if field.type.startswith("char["):
        return text_of(raw)
    if field.type.startswith("__data_loc"):
        word = int.from_bytes(raw[:4], "little")
        return text_of(data[word & 0xFFFF :][: word >> 16])
    if field.size not in (1, 2, 4, 8):
        return "<INVALID-SIZE>"
    number = int.from_bytes(raw, "little")
    if field.size == 1:
        return f"'{chr(number)}'({number})" if 0x20 <= number < 0x7F else f"({number})"
    return f"{number:#x} ({int.from_bytes(raw, 'little', signed=True)})"


def _unknown(event: TraceEvent, _data: bytes, _options: Options) -> str:
    return f"UNKNOWN TYPE {event.id}\n"


class Printers(NamedTuple):
    """The functions that print an event of one kind: struct trace_event_functions. `trace` makes one for an event."""

    trace: Maker
    raw: Printer = _type
    hex: Printer = _type
    fields: Printer = _unknown
    binary: Printer = _type


_BUILTIN = {
    FUNCTION.id: Printers(_function, _addresses, _addresses_in_hex, binary=_addresses_in_binary),
    FUNC_REPEATS.id: Printers(_function, _repeats_raw),
    KERNEL_STACK.id: Printers(_each(_stack)),
    **dict.fromkeys((PRINT.id, BPRINT.id, BPUTS.id), Printers(_each(_print), _print_raw)),
    USER_STACK.id: Printers(_each(_user_stack)),
    RAW_DATA.id: Printers(_each(_raw_data), _raw_data),
}
_PROBE = Printers(_probe, fields=_fields)
_SYNTHETIC = Printers(_synthetic, fields=_fields)
_OTHER = Printers(_each(_fields), fields=_fields)
STATIC_PRINTERS = {
    (MODULE_LOAD.group, MODULE_LOAD.name): Printers(_each(partial(_module, end=" \n")), fields=_fields),
    (MODULE_FREE.group, MODULE_FREE.name): Printers(_each(partial(_module, end="\n")), fields=_fields),
}


def printers(event: TraceEvent) -> Printers:
    """The printers of an event's type."""
    if isinstance(event, ProbeEvent):
        return _PROBE
    if event.group == SYNTHETIC:
        return _SYNTHETIC
    return _BUILTIN.get(event.id) or STATIC_PRINTERS.get((event.group, event.name), _OTHER)


def _word(data: bytes, field: Field) -> int:
    return int.from_bytes(data[field.offset : field.offset + field.size], "little")
