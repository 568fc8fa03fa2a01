"""trace_printk and trace_puts of programs: records with the address of a kept text, and the arguments. Native.

A program's format may be gone when the record is read. So each different text is kept, once, in memory that is never freed, and
records have the address of the copy, as the kernel does with the formats of modules: kernel/trace/trace_printk.c. The table of
texts only grows; a text that is known is found without a lock, and a new one takes its place by one exchange.
"""

from __future__ import annotations

from ftrace.hit.events.builtin_records import PRINT
from ftrace.hit.recursion import pause_within, resume_within
from ftrace.hit.ring_buffer.records import RingBuffer
from ftrace.hit.ring_buffer.writer import write
from ftrace.hit.task_filter import TaskFilter, is_dropped
from sandbox.native import *
from sandbox.threads.tasks import task_get

BPRINT, BPUTS = 6, 14
"""The types of the records (TRACE_BPRINT, TRACE_BPUTS)."""
LONGEST = 1024
"""Bytes of a text with its NUL, or of the arguments of one record, at most: TRACE_BUF_SIZE."""
FORMATS = 4096
"""Texts that can be kept."""
TEXTS = 1 << 19
"""Bytes that they can take together."""
REGISTERS = 6
_TRIES = 64
_MINUS, _PLUS, _BLANK, _HASH, _ZERO, _NINE, _STAR, _DOT, _PERCENT = b"-+ #09*.%"
_C, _H, _L, _LL, _P, _S, _T, _Z = b"chlLpstz"
_AT = 64
_NUMBERS = sum(1 << letter - _AT for letter in b"diouxX")
"""The letters of integers: bit n is the letter n + 64."""
_NO_PRECISION = (1 << 64) - 1


@struct
class Printk(Structure):
    """Where the records go, and the kept texts."""

    buffer: ptr[RingBuffer]
    tracing_on: ptr[u64]
    enabled: u64  # the option trace_printk
    filter: TaskFilter
    used: u64  # bytes of `texts`
    formats: array[u64, 4096]  # addresses in `texts`, by the hash of the text
    texts: array[u8, 524288]


printk = global_var(u64, 0, name="printk")  # address of the Printk; 0: nobody records


@struct
class Text(Structure):
    """A text without its NUL."""

    address: ptr[u8]
    length: u64
    hash: u64


@struct
class BputsRecord(Structure):
    """struct bputs_entry, after the common fields."""

    ip: u64
    text: u64


@struct
class Packed(Structure):
    """struct bprint_entry, after the common fields; then how far it is filled."""

    ip: u64
    text: u64
    data: array[u8, 1024]
    used: u64
    registers: ptr[u64]
    stack: ptr[u64]
    next: u64  # number of the next argument


@struct
class Directive(Structure):
    """A place in a format; of the directive before it the precision, the size and the letter."""

    at: u64
    precision: u64
    value_size: u64
    letter: u8


@native
def state() -> ptr[Printk]:
    return cast(ptr[Printk], volatile_load(addressof(printk)))


@native
def is_enabled() -> bool_:
    return state() != null and volatile_load(addressof(state().enabled)) != 0


@native
def measured(address: ptr[u8], text: ptr[Text]) -> bool_:
    """Find the length and the hash of a text. Returns False if it is too long."""
    text.address = address
    text.hash = 5381
    for length in range(LONGEST):
        if address[length] == 0:
            text.length = length
            return True
        text.hash = text.hash * 33 ^ cast(u64, address[length])
    return False


@native
def is_kept(at: u64, text: ptr[Text]) -> bool_:
    kept = cast(ptr[u8], at)
    for index in range(text.length):
        if kept[index] != text.address[index]:
            return False
    return kept[text.length] == 0


@native
def keep(target: ptr[Printk], text: ptr[Text]) -> u64:
    """Copy a text. Returns the address of the copy; 0: there is no space."""
    size = text.length + 1
    if load(addressof(target.used)) + size > TEXTS:
        return 0
    start = atomic_add(addressof(target.used), size, "relaxed")
    if start + size > TEXTS:
        return 0
    copied = addressof(target.texts[start])
    for index in range(text.length):
        copied[index] = text.address[index]
    copied[text.length] = 0
    return cast(u64, copied)


@native(name="printk_format", export=True)
def kept_text(address: ptr[u8]) -> u64:
    """The address of the kept copy of a text; 0 if it is too long, or there is no space."""
    target = state()
    text: Text = zeroed
    if target == null or not measured(address, addressof(text)):
        return 0
    for step in range(_TRIES):
        place = addressof(target.formats[(text.hash + step) & FORMATS - 1])
        found: u64 = load(place, "acquire")
        if found == 0:
            made = keep(target, addressof(text))
            if made == 0 or atomic_cas(place, 0, made, "acq_rel"):
                return made
            found = load(place, "acquire")
        if is_kept(found, addressof(text)):
            return found
    return 0


@native
def record(type_id: u64, data: ptr[u8], size: u64) -> i32:
    """Record for the running thread. Returns the size; 0 if recording is off or the record is lost."""
    target = state()
    if task_get() == null:
        return 0
    before = pause_within()  # an instance is removed only when no thread is within
    result: i32 = 0
    is_on = is_enabled() and volatile_load(target.tracing_on) != 0 and not is_dropped(addressof(target.filter))
    if is_on and write(target.buffer, type_id, data, size, 0):
        result = cast(i32, size)
    resume_within(before)
    return result


@native(name="__trace_puts", export=True)
def trace_puts_copied(ip: u64, text: ptr[u8], size: i32) -> i32:
    """A text of `size` bytes as a record `print`, which has a copy; a newline is added. Returns how many were recorded."""
    if not is_enabled():
        return 0
    packed: Packed = zeroed
    packed.ip = ip
    at = cast(ptr[u8], addressof(packed.text))
    length = min(cast(u64, max(size, 0)), LONGEST - 2)
    for index in range(length):
        at[index] = text[index]
    end = length
    if length == 0 or text[length - 1] != 10:
        at[length] = 10
        end += 1
    at[end] = 0
    return cast(i32, length) if record(PRINT, cast(ptr[u8], addressof(packed)), 8 + end + 1) != 0 else 0


@native(name="__trace_bputs", export=True)
def trace_bputs(ip: u64, text: ptr[u8]) -> i32:
    """A text as a record `bputs`; one that cannot be kept as `__trace_puts` does. Returns the size; 0 if it is lost."""
    if not is_enabled():
        return 0
    data: BputsRecord = zeroed
    data.ip = ip
    data.text = kept_text(text)
    if data.text != 0:
        return record(BPUTS, cast(ptr[u8], addressof(data)), sizeof(BputsRecord))
    length: u64 = 0
    while length < LONGEST and text[length] != 0:
        length += 1
    return trace_puts_copied(ip, text, cast(i32, length))


@native(name="trace_puts", export=True, noinline=True)
def trace_puts(text: ptr[u8]) -> i32:
    """`__trace_bputs` of the caller."""
    return trace_bputs(return_address(), text)


@native
def next_argument(packed: ptr[Packed]) -> u64:
    number = packed.next
    packed.next = number + 1
    return packed.registers[number] if number < REGISTERS else packed.stack[number - REGISTERS]


@native
def pack(packed: ptr[Packed], value: u64, size: u64) -> void:
    """Append a number as vbin_printf() does: aligned to its size, to 4 if that is 8."""
    align = min(size, 4)
    start = packed.used + align - 1 & ~(align - 1)
    packed.used = start + size
    if packed.used <= LONGEST:
        for index in range(min(size, 8)):
            packed.data[start + index] = cast(u8, value >> index * 8)


@native
def pack_text(packed: ptr[Packed], text: ptr[u8], precision: u64) -> void:
    """Append a text with its NUL, at most `precision` bytes of it; of null, nothing."""
    length: u64 = 0
    while text != null and length < precision and packed.used < LONGEST and text[length] != 0:
        packed.data[packed.used] = text[length]
        packed.used += 1
        length += 1
    pack(packed, 0, 1)


@native
def number(packed: ptr[Packed], format: ptr[u8], directive: ptr[Directive]) -> u64:
    """Pass a width or a precision; `*` takes an argument."""
    value: u64 = 0
    if format[directive.at] == _STAR:
        directive.at += 1
        value = cast(u64, cast(i64, cast(i32, next_argument(packed))))
        pack(packed, value, 4)
        return value
    while format[directive.at] >= _ZERO and format[directive.at] <= _NINE:
        value = value * 10 + cast(u64, format[directive.at] - _ZERO)
        directive.at += 1
    return value


@native
def pass_size(format: ptr[u8], directive: ptr[Directive]) -> void:
    """Pass hh, h, l, ll, L, z or t."""
    directive.value_size = 4
    while True:
        letter = format[directive.at]
        if letter == _H:
            directive.value_size >>= 1
        elif letter == _L or letter == _LL or letter == _Z or letter == _T:  # noqa: SIM109
            directive.value_size = 8
        else:
            return
        directive.at += 1


@native
def next_directive(packed: ptr[Packed], format: ptr[u8], directive: ptr[Directive]) -> bool_:
    """Go behind the next directive, packing its width and precision. Returns False at the end of the format."""
    while format[directive.at] != _PERCENT:
        if format[directive.at] == 0:
            return False
        directive.at += 1
    directive.at += 1
    letter = format[directive.at]
    while letter == _MINUS or letter == _PLUS or letter == _BLANK or letter == _HASH or letter == _ZERO:  # noqa: SIM109
        directive.at += 1
        letter = format[directive.at]
    number(packed, format, directive)
    directive.precision = _NO_PRECISION
    if format[directive.at] == _DOT:
        directive.at += 1
        directive.precision = number(packed, format, directive)
    pass_size(format, directive)
    directive.letter = format[directive.at]
    if directive.letter == 0:
        return False
    directive.at += 1
    return True


@native
def is_number(letter: u8) -> bool_:
    return cast(u64, _NUMBERS) >> cast(u64, letter - _AT) & 1 != 0


@native
def pack_arguments(packed: ptr[Packed], format: ptr[u8]) -> bool_:
    """Append all arguments that a format names. Returns False if they are too long. As vbin_printf() of lib/vsprintf.c."""
    directive: Directive = zeroed
    while packed.used <= LONGEST and next_directive(packed, format, addressof(directive)):
        letter = directive.letter
        if is_number(letter):
            pack(packed, next_argument(packed), directive.value_size)
        elif letter == _S:
            pack_text(packed, cast(ptr[u8], next_argument(packed)), directive.precision)
        elif letter == _P:
            pack(packed, next_argument(packed), 8)
        elif letter == _C:
            pack(packed, next_argument(packed), 1)
        elif letter != _PERCENT:
            return True  # what it takes is not known
    return packed.used <= LONGEST


@native(name="trace_vbprintk", export=True)
def trace_vbprintk(registers: ptr[u64], stack: ptr[u64], ip: u64, first: u64) -> i32:
    """The format and the arguments of a variadic function as a record `bprint`; a format without `%` as `bputs`.

    `registers`: its six integer arguments in registers, `stack`: those on the stack. `first`: the number of the argument after
    the format. Returns the size; 0 if the record is lost: the text is too long or cannot be kept, or its arguments are too long.
    """
    format = cast(ptr[u8], registers[first - 1])
    if format == null or not is_enabled():
        return 0
    length: u64 = 0
    while format[length] != 0 and format[length] != _PERCENT:
        length += 1
    if format[length] == 0:
        return trace_bputs(ip, format)
    packed: Packed = zeroed
    packed.ip = ip
    packed.text = kept_text(format)
    packed.registers = registers
    packed.stack = stack
    packed.next = first
    if packed.text == 0 or not pack_arguments(addressof(packed), format):
        return 0
    size = packed.used + 3 & ~3
    return record(BPRINT, cast(ptr[u8], addressof(packed)), offsetof(Packed, "data") + size)


FUNCTIONS = (kept_text, trace_puts_copied, trace_bputs, trace_puts, trace_vbprintk)
