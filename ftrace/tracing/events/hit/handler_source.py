"""Generate an event's handlers as native-language source from its definition.

A handler fetches the arguments into variables, and text into the thread's scratch memory. Then, for each buffer that
records the event, it reserves a record, stores and commits. The source does not depend on the process or on the event's
id, so that events of the same shape share one compiled handler.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ftrace.core.handlers.registers import REGISTER_ARGUMENTS
from ftrace.tracing.probe_args.fetch import (
    Argument,
    Comm,
    Dereference,
    EntryArgument,
    Immediate,
    ImmediateString,
    Register,
    ReturnValue,
    SavedArgument,
    Source,
    StackPointer,
    StackWord,
    Store,
    SymbolAddress,
)
from ftrace.tracing.probe_args.layout import ArgumentField, RecordLayout

_MASK = (1 << 64) - 1
_TEXT_CLAIM = 4104
"""Bytes of scratch memory for a string: the longest text, and the excess of a store of whole words."""
_WHOLE = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}


class InexpressibleError(Exception):
    """A function of this kind cannot do this."""


@dataclass(frozen=True)
class Shape:
    """How a kind of probe calls its handlers.

    `parameters`: the handler's parameters with their types. `result`: its return value. The others are expressions: `state`
    is the address of the EventState; `addresses`, each address field of the record; `saved`, the address of the words saved
    at entry; `shortcut`, a call of the event's shortcut at address {} with the handler's arguments, empty if there is none.
    `early`: how hits are handled before registers are saved, if they can be.
    """

    parameters: str
    state: str
    addresses: tuple[str, ...]
    saved: str = "0"
    result: str = ""
    shortcut: str = ""
    early: EarlyShape | None = None

    def register(self, name: str) -> str:
        """The value of a register. Raises InexpressibleError if it is not at hand."""
        return f"regs.{name}"


@dataclass(frozen=True)
class EarlyShape(Shape):
    """How hits are handled early: Early in ftrace.hit.records.

    `registers`: those that are parameters. `cc`: the calling convention. `task`: the thread's task. `unless`: an expression
    that is true if the hit has to go to the handler.
    """

    registers: tuple[str, ...] = ()
    cc: str = "c"
    task: str = "current()"
    unless: str = ""

    def register(self, name: str) -> str:
        if name not in self.registers:
            raise InexpressibleError
        return name


EARLY_ENTRY = EarlyShape(
    "di, si, dx, cx, r8, r9, state, ax, stub",
    "state",
    ("ip_of(stub)",),
    registers=(*REGISTER_ARGUMENTS, "ax"),
    cc="preserve_most",
)
EARLY_RETURN = EarlyShape(
    "state, ip, parent, ax, data, own", "state", ("ip", "parent"), "data", registers=("ax",), task="own"
)


def hit_source(layout: RecordLayout, shape: Shape, name: str = "record") -> str:
    """Source of the handler that records."""
    return definition(name, shape.parameters, [*_Writer(layout, shape).lines(), *_result(shape)])


def entry_source(parameters: Sequence[int], shape: Shape, name: str = "save") -> str:
    """Source of a return probe's entry handler, which saves these parameters (counted from 0)."""
    lines = [f"words = cast(ptr[u64], {shape.saved})"]
    for slot, index in enumerate(parameters):
        lines += _entry_argument(shape, index, f"v{slot}")
        lines.append(f"words[{slot}] = v{slot}")
    return definition(name, shape.parameters, [*lines, *_result(shape)])


def constants_of(layout: RecordLayout) -> list[SymbolAddress]:
    """The symbols whose addresses are in the handler's state, in order."""
    sources = (field.argument.fetch.source for field in layout.arguments)
    return list(dict.fromkeys(source for source in sources if isinstance(source, SymbolAddress)))


def fetch_lines(layout: RecordLayout, shape: Shape, wanted: Iterable[int]) -> Iterator[str]:
    """The lines that fetch the arguments with these indices, all of them numbers, into v0, v1, ..."""
    writer = _Writer(layout, shape)
    yield from writer.saved_words()
    for index in wanted:
        yield from writer.fetch(index, layout.arguments[index])


def record_lines(layout: RecordLayout, shape: Shape) -> Iterator[str]:
    """The lines that record a hit of the thread's `task` in `target`, which judges nothing."""
    writer = _Writer(layout, shape)
    yield from writer.fetched("scratch_of(state, task)")
    yield "mark: Mark = zeroed"
    yield "place: Reservation = zeroed"
    yield "if begin_plain_record(state, target, task, addressof(mark), addressof(place), size):"
    yield from writer.stores("size")
    yield "    commit(addressof(mark), addressof(place))"
    yield from writer.released()


def passing_lines(
    layout: RecordLayout, shape: Shape, *, is_filtered: bool = True, text: int | None = None
) -> Iterator[str]:
    """The lines that set `is_met` to whether a record of the hit passes the filter at the address `condition`.

    `is_filtered`: whether there is a filter. `text`: offset of the text whose number is stored if it passes.
    """
    writer = _Writer(layout, shape)
    yield from writer.fetched("scratch_of(state, current())")
    yield "place: Reservation = zeroed"
    yield "place.event = begin_judged(state, size)"
    yield "is_met = False"
    yield "if place.event != null:"
    yield from writer.stores("size")
    yield f"    is_met = {'passes(state, condition, entry, size) != 0' if is_filtered else 'True'}"
    if text is not None:
        yield "    if is_met:"
        yield f"        by[0] = text_number(by[1], entry, cast(u64, cast(ptr[u32], addressof(entry[{text}]))[0]))"
    yield from writer.released()


def definition(name: str, parameters: str, lines: Iterable[str]) -> str:
    """A function definition."""
    body = "".join(f"    {line}\n" for line in lines)
    return f"def {name}({parameters}):\n{body}"


def _result(shape: Shape) -> list[str]:
    return [shape.result] if shape.result else []


class _Writer:
    """Writes the body of one handler."""

    def __init__(self, layout: RecordLayout, shape: Shape) -> None:
        self._layout, self._shape = layout, shape
        self._constants = constants_of(layout)
        self._texts = sum(field.argument.type.is_string * max(field.argument.count, 1) for field in layout.arguments)

    def lines(self) -> Iterator[str]:
        yield f"state = cast(ptr[EventState], {self._shape.state})"
        if self._shape.shortcut:
            yield "shortcut = volatile_load(addressof(state.shortcut))"
            yield f"if shortcut != 0 and {self._shape.shortcut.format('shortcut')} != 0:"
            yield f"    {self._shape.result or 'return'}"
        yield "count_hit(state)"
        yield from self.fetched("scratch_of(state, current())")
        if self._texts:
            yield "total: u64 = size"
        yield "for number in range(state.count):"
        yield from ("    " + line for line in self._record())
        yield from self.released()

    def fetched(self, scratch: str) -> Iterator[str]:
        """The lines that fetch all arguments, and text into `scratch`; `size` is then the record's."""
        yield from self.saved_words()
        yield f"size: u64 = {self._layout.size}"
        if self._texts:
            yield f"scratch = {scratch}"
            yield "start = scratch.used"
            yield f"end = claim(scratch, {self._texts * _TEXT_CLAIM})"
            yield "at = start"
        for index, field in enumerate(self._layout.arguments):
            yield from self.fetch(index, field)

    def saved_words(self) -> Iterator[str]:
        """The line that finds the words saved at entry, if there are any."""
        if any(isinstance(field.argument.fetch.source, SavedArgument) for field in self._layout.arguments):
            yield f"words = cast(ptr[u64], {self._shape.saved})"

    def released(self) -> Iterator[str]:
        """The line that releases the scratch memory."""
        if self._texts:
            yield "release(scratch, start)"

    # -- the record -----------------------------------------------------------------------------------------------

    def _record(self) -> Iterator[str]:
        size = "length" if self._texts else "size"
        if self._texts:  # read for each target: what the compiler computes of it before the loop would lie on the stack
            yield "length = volatile_load(addressof(total))"
        yield "target = addressof(state.targets[0])[number]"
        yield "judged = is_judged(target)"
        yield "mark: Mark = zeroed"
        yield "place: Reservation = zeroed"
        yield f"if begin_record(state, target, judged, addressof(mark), addressof(place), {size}):"
        yield from self.stores(size)
        ip = self._shape.addresses[-1]
        yield f"    end_record(state, target, judged, addressof(mark), addressof(place), {size}, {ip}, regs.sp, regs.bp)"

    def stores(self, size: str) -> Iterator[str]:
        """The lines that store all fields of a record of `size` bytes at place.event, in a block."""
        yield "    entry = place.event"
        for field, value in zip(self._layout.addresses, self._shape.addresses, strict=True):
            yield "    " + _store(field.offset, 8, value)
        for index, argument in enumerate(self._layout.arguments):
            yield from ("    " + line for line in self._put(index, argument))
        if self._texts:
            rest = f"{size} - {self._layout.size}"
            yield f"    copy_words(addressof(entry[{self._layout.size}]), addressof(scratch.text[start]), {rest})"

    def _put(self, index: int, field: ArgumentField) -> Iterator[str]:
        argument, width = field.argument, field.argument.type.size
        if argument.store is Store.MEMORY and argument.count:
            yield from self._put_elements(index, field)
            return
        for element in range(max(argument.count, 1)):
            variable = f"v{index}_{element}" if argument.type.is_string else f"v{index}"
            yield _store(field.offset + element * width, width, variable)

    def _put_elements(self, index: int, field: ArgumentField) -> Iterator[str]:
        """An array is read straight into the record: at once or, if that fails, each element; zeros where it cannot be read."""
        argument, width = field.argument, field.argument.type.size
        place = f"addressof(entry[{field.offset}])"
        yield f"if ok{index} <= 0:"
        for offset in range(0, field.size, width):
            yield "    " + _store(field.offset + offset, width, "0")
        yield f"elif probe_read({place}, a{index}, {field.size}) < 0:"
        yield f"    for element in range({argument.count}):"
        each = f"addressof(entry[{field.offset} + element * {width}])"
        yield f"        probe_read({each}, a{index} + element * {width}, {width})"
        if argument.bits is not None:
            for offset in range(field.offset, field.offset + field.size, argument.type.size):
                whole = f"cast(ptr[{_WHOLE[argument.type.size]}], addressof(entry[{offset}]))[0]"
                yield _store(offset, argument.type.size, _bits(f"cast(u64, {whole})", argument))

    # -- fetching -------------------------------------------------------------------------------------------------

    def fetch(self, index: int, field: ArgumentField) -> Iterator[str]:
        """Fetch the argument into vI; for an array, its address into aI."""
        argument = field.argument
        if argument.type.is_string:
            yield from self._fetch_texts(index, argument)
            return
        variable = f"v{index}"
        if argument.store is not Store.MEMORY:
            yield from self._source(argument.fetch.source, variable)
        else:
            yield from self._address(index, argument)
            if argument.count:
                return
            yield f"{variable}: u64 = 0"
            yield f"if ok{index} > 0:"
            yield f"    if probe_read(addressof({variable}), a{index}, {argument.type.size}) < 0:"
            yield f"        {variable} = 0"
        if argument.bits is not None:
            yield f"{variable} = {_bits(variable, argument)}"

    def _fetch_texts(self, index: int, argument: Argument) -> Iterator[str]:
        if argument.store is Store.STRING_POINTERS:
            yield from self._address(index, argument)
            for element in range(argument.count):
                yield f"p{index}: u64 = 0" if element == 0 else f"p{index} = 0"
                yield f"n{index}_{element}: u64 = 0"
                place = f"a{index} + {element * 8}"
                yield f"if ok{index} > 0 and probe_read(addressof(p{index}), {place}, 8) > 0:"
                yield f"    n{index}_{element} = fetch_text(scratch, at, end, p{index})"
                yield from self._placed(f"{index}_{element}")
            return
        yield from self._fetch_text(index, argument)
        yield from self._placed(f"{index}_0")

    def _fetch_text(self, index: int, argument: Argument) -> Iterator[str]:
        """Fetch text; its length with the NUL goes into nI_0."""
        source, length = argument.fetch.source, f"n{index}_0"
        if argument.store is Store.COMM or isinstance(source, Comm):
            yield f"{length} = fetch_comm(scratch, at, end)"
        elif isinstance(source, ImmediateString):
            text = source.text.encode("utf-8", "surrogateescape") + b"\0"
            for offset in range(0, len(text), 8):
                word = int.from_bytes(text[offset : offset + 8], "little")
                yield f"put_text(scratch, at + {offset}, end, {word})"
            yield f"{length}: u64 = {len(text)}"
        elif argument.store is Store.SYMBOL_TEXT:
            yield from self._value(index, argument)
            yield f"{length} = fetch_symbol(scratch, at, end, s{index})"
        elif argument.store is Store.STRING_AT_VALUE:
            yield from self._source(source, f"s{index}")
            yield f"{length} = fetch_text(scratch, at, end, s{index})"
        else:
            yield from self._address(index, argument)
            yield f"{length}: u64 = 0"
            yield f"if ok{index} > 0:"
            yield f"    {length} = fetch_text(scratch, at, end, a{index})"

    def _placed(self, name: str) -> Iterator[str]:
        """Make the word with the text's offset and length, and move the offset for the next text."""
        yield f"v{name}: u64 = n{name} << 16 | size"
        yield f"size += n{name}"
        yield f"at += n{name}"

    def _address(self, index: int, argument: Argument) -> Iterator[str]:
        """aI: the address that the last dereference reads; okI: positive unless an earlier one failed."""
        yield from self._source(argument.fetch.source, f"a{index}")
        yield f"ok{index}: i64 = 1"
        *before, last = argument.fetch.dereferences or (Dereference(0),)
        yield from self._follow(index, before)
        if last.offset:
            yield f"a{index} += {last.offset & _MASK}"

    def _follow(self, index: int, steps: Sequence[Dereference]) -> Iterator[str]:
        for step in steps:
            place = f"a{index} + {step.offset & _MASK}" if step.offset else f"a{index}"
            yield f"if ok{index} > 0:"
            yield f"    ok{index} = probe_read(addressof(a{index}), {place}, 8)"

    def _value(self, index: int, argument: Argument) -> Iterator[str]:
        """sI: the value after all dereferences, 0 if one failed."""
        yield from self._source(argument.fetch.source, f"a{index}")
        yield f"ok{index}: i64 = 1"
        yield from self._follow(index, argument.fetch.dereferences)
        yield f"s{index}: u64 = a{index} if ok{index} > 0 else 0"

    def _source(self, source: Source, variable: str) -> Iterator[str]:
        match source:
            case Register(name):
                yield f"{variable} = {self._shape.register(name)}"
            case StackPointer():
                yield f"{variable} = {self._shape.register('sp')}"
            case ReturnValue():
                yield f"{variable} = {self._shape.register('ax')}"
            case StackWord(index):
                yield from _stack_word(self._shape, index, variable)
            case EntryArgument(index):
                yield from _entry_argument(self._shape, index, variable)
            case SavedArgument(_, slot):
                yield f"{variable} = words[{slot}]"
            case Immediate(value):
                yield f"{variable}: u64 = {value}"
            case SymbolAddress():
                yield f"{variable} = state.constants[{self._constants.index(source)}]"
            case _:
                raise TypeError(f"the source is {source!r}; it must be one of those in ftrace.tracing.probe_args.fetch")


def _entry_argument(shape: Shape, index: int, variable: str) -> Iterator[str]:
    """As regs_get_kernel_argument(): parameters beyond the registers are on the stack, above the return address."""
    if index < len(REGISTER_ARGUMENTS):
        yield f"{variable} = {shape.register(REGISTER_ARGUMENTS[index])}"
    else:
        yield from _stack_word(shape, index - len(REGISTER_ARGUMENTS) + 1, variable)


def _stack_word(shape: Shape, index: int, variable: str) -> Iterator[str]:
    yield f"{variable}: u64 = 0"
    yield f"if probe_read(addressof({variable}), {shape.register('sp')} + {index * 8}, 8) < 0:"
    yield f"    {variable} = 0"


def _bits(value: str, argument: Argument) -> str:
    assert argument.bits is not None
    return f"{value} >> {argument.bits.offset} & {(1 << argument.bits.width) - 1}"


def _store(offset: int, width: int, value: str) -> str:
    """The low `width` bytes of a value, at an offset of the record."""
    kind = _WHOLE[width]
    stored = value if width == 8 or value.isdigit() else f"cast({kind}, {value})"
    return f"cast(ptr[{kind}], addressof(entry[{offset}]))[0] = {stored}"
