"""The fetch of an argument: a source, dereferences, and the storage of the result.

The grammar makes these values; handlers are generated from them.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ftrace.tracing.probe_args.types import Bitfield, FetchType


@dataclass(frozen=True)
class Source:
    """Base of all sources: the first word that an argument reads."""


@dataclass(frozen=True)
class Register(Source):
    """A register of the probed context; `name` is a field of pt_regs."""

    name: str


@dataclass(frozen=True)
class StackPointer(Source):
    """`$stack`: the stack pointer itself."""


@dataclass(frozen=True)
class StackWord(Source):
    """`$stackN`: the 8-byte word at `$stack + 8 * index`; 0 if it cannot be read."""

    index: int


@dataclass(frozen=True)
class EntryArgument(Source):
    """`$argN` or a parameter at a function's entry; `index` counts from 0."""

    index: int


@dataclass(frozen=True)
class SavedArgument(Source):
    """A parameter in a return probe, with its value at entry. `slot`: its index among the words of the call's entry data."""

    index: int
    slot: int


@dataclass(frozen=True)
class ReturnValue(Source):
    """`$retval`."""


@dataclass(frozen=True)
class Comm(Source):
    """`$comm`: the name of the current task."""


@dataclass(frozen=True)
class Immediate(Source):
    """A constant, or the address of `@ADDR`: an unsigned 64-bit word."""

    value: int


@dataclass(frozen=True)
class ImmediateString(Source):
    r"""`\"text"`."""

    text: str


@dataclass(frozen=True)
class SymbolAddress(Source):
    """The address of `SYMBOL[+|-OFFSET]` as written; resolved when the probe is registered."""

    expression: str


@dataclass(frozen=True)
class Dereference:
    """A read of memory at the present value plus `offset`. `user`: written with `u`, which makes no difference here."""

    offset: int
    user: bool = False


class Store(enum.Enum):
    """How the result is stored in the record."""

    VALUE = "the low bytes of the value"
    MEMORY = "`size` bytes from the address that the last dereference reads; with a count, that many elements"
    STRING = "the text at the address that the last dereference reads"
    STRING_AT_VALUE = "the text whose address is the value"
    STRING_POINTERS = (
        "the text at each of `count` pointers, which start at the constant or where the last dereference reads"
    )
    COMM = "the task's name"
    LITERAL = "the constant text of the source"
    SYMBOL_TEXT = "the value as `symbol+0xoffset/0xsize`"


@dataclass(frozen=True)
class Fetch:
    """A source, and the dereferences in the order in which they are made."""

    source: Source
    dereferences: tuple[Dereference, ...] = ()

    @property
    def reads_memory(self) -> bool:
        """Whether the last step is a dereference."""
        return bool(self.dereferences)


@dataclass(frozen=True)
class Argument:
    """An argument of a probe event.

    `body`: the text after `NAME=`, as written. `count`: elements of an array, 0 if it is none. `bits`: of a bitfield.
    """

    name: str
    body: str
    type: FetchType
    count: int
    fetch: Fetch
    store: Store
    bits: Bitfield | None = None

    @property
    def size(self) -> int:
        """Size of the field in the record, without the text of strings, in bytes."""
        return self.type.size * max(self.count, 1)

    def __str__(self) -> str:
        return f"{self.name}={self.body}"
