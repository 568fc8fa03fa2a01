"""Views of functions: what to record of their calls (fprobe.calls.capture), and how to decode it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fprobe.calls.capture import CaptureParts, CapturePlan, Event, Followed, Images
from fprobe.calls.capture_handlers import MAX_FOLLOWED
from fprobe.calls.values import UNREADABLE, value_text
from fprobe.cli import values
from sandbox.abi import convention as x86_64
from sandbox.abi import layout
from sandbox.abi.signatures import Pointer, Signature, Type, Void
from sandbox.symbols.table import Symbol

_ANY_STACK = 64
_SPACE = 3600
"""Bytes of a record besides the registers: a record is in one page of the buffer."""
_ANYTHING = (
    CaptureParts(True, _ANY_STACK, tuple(Followed(at, values.STRING_LIMIT) for at in x86_64.ARGUMENTS)),
    CaptureParts(True, 0, (Followed(x86_64.RESULTS[0], values.STRING_LIMIT),)),
)
_ONLY_VALUES = CaptureParts(True, _ANY_STACK, ()), CaptureParts(True, 0, ())


@dataclass(frozen=True)
class Value:
    """A named value of a call. `place`: None if it cannot be read. `followed`: its index among followed pointers."""

    name: str
    kind: Type
    place: x86_64.Place | None
    followed: int = -1

    def decode(self, images: Images) -> Any:
        """The Python value; None if it cannot be read."""
        image, found = images
        if self.place is None:
            return None
        data = found[self.followed] if self.place.indirect else self.place.gather(image)
        return layout.decode(data, self.kind) if data is not None and len(data) >= self.place.size else None

    def text(self, images: Images) -> str:
        """The value in the syntax of the source."""
        value = self.decode(images)
        if value is None:
            return UNREADABLE
        if isinstance(self.kind, Pointer) and self.followed >= 0:
            return values.pointer_text(value, self.kind, images[1][self.followed])
        return value_text(value, self.kind)

    def string(self, images: Images) -> values.String | None:
        """The string that it points to; None if it does not."""
        if self.followed < 0 or not isinstance(self.kind, Pointer):
            return None
        return values.string_in(images[1][self.followed], certain=values.is_character_pointer(self.kind))


@dataclass(frozen=True)
class CallEnd:
    """The values at one end of a call, its entry or its return, with the bytes of stack and the pointers that they need."""

    values: tuple[Value, ...]
    stack: int = 0
    follow: tuple[Followed, ...] = ()

    @property
    def parts(self) -> CaptureParts:
        """The parts to record for these values."""
        vectors = any(value.place is not None and value.place.in_vectors for value in self.values)
        return CaptureParts(vectors, self.stack, self.follow)

    def of(self, images: Images, parts: CaptureParts) -> Images:
        """The images of a call, with followed pointers numbered as on this end. `parts`: what was recorded."""
        found = {followed.offset: target for followed, target in zip(parts.follow, images[1], strict=False)}
        return images[0], tuple(found.get(followed.offset) for followed in self.follow)


@dataclass(frozen=True)
class FunctionView:
    """A function, its arguments and its result. `known`: the source gives its signature."""

    symbol: Symbol
    entry: CallEnd = field(default_factory=lambda: CallEnd(()))
    leave: CallEnd = field(default_factory=lambda: CallEnd(()))
    variadic: bool = False
    known: bool = False

    @property
    def name(self) -> str:
        """The function's name, for people."""
        return self.symbol.readable


class FunctionViews(dict[int, FunctionView]):
    """Entry address -> view. For a very large number of functions, each view is made at the first call.

    `symbols`: entry address -> function; `signature_of`: function -> signature, None if that is not known. `strings`: what
    pointers lead to is recorded, too.
    """

    AT_ONCE = 2000

    def __init__(
        self, symbols: Mapping[int, Symbol], signature_of: Callable[[Symbol], Signature | None], strings: bool = True
    ) -> None:
        super().__init__()
        self._strings = strings
        self.anything = _ANYTHING if strings else _ONLY_VALUES
        """The parts recorded for functions without a view."""
        self._symbols = symbols
        self._signature_of = signature_of
        if len(symbols) <= self.AT_ONCE:
            for ip in symbols:
                self[ip]

    def __missing__(self, ip: int) -> FunctionView:
        symbol = self._symbols[ip]
        view = self[ip] = view_of(symbol, self._signature_of(symbol), self._strings)
        return view

    def plans(self) -> dict[int, CapturePlan]:
        """The parts to record for each function that has a view."""
        return {ip: (view.entry.parts, view.leave.parts) for ip, view in self.items()}

    def seen(self, event: Event) -> Event:
        """An event, adapted to the function's view."""
        if len(self._symbols) <= self.AT_ONCE:
            return event
        view = self[event.ip]
        end = view.entry if event.is_entry else view.leave
        return event._replace(images=end.of(event.images, self.anything[not event.is_entry]))


def view_of(symbol: Symbol, signature: Signature | None, strings: bool = True) -> FunctionView:
    """The view of a function. `signature`: None if it is not known. `strings`: with what pointers lead to."""
    if signature is None:
        return FunctionView(symbol)
    places, _ = x86_64.argument_places(signature)
    arguments = [
        (parameter.name or f"arg{number}", parameter.copied or parameter.type, place)
        for number, (parameter, place) in enumerate(places, 1)
    ]
    kind = signature.result
    result = [] if isinstance(kind, Void) else [("", kind, x86_64.result_place(signature))]
    return FunctionView(symbol, _call_end(arguments, strings), _call_end(result, strings), signature.variadic, True)


def _call_end(described: list[tuple[str, Type, x86_64.Place | None]], strings: bool) -> CallEnd:
    """The values of one end. Those that a record has no space for cannot be read, and pointers are not followed then."""
    stack, follow, found = 0, list[Followed](), []
    for name, kind, where in described:
        place = where if where is not None and layout.is_decodable(kind) else None
        above = max(stack, place.stack) if place is not None else stack
        size = _size_to_follow(kind, place, strings)
        followed = [Followed(place.pieces[0][1], size, not place.indirect)] if place is not None and size else []
        if not _fits(above, follow + followed):
            place = None if place is None or place.indirect or not _fits(above, follow) else place
            followed = []
        stack = above if place is not None else stack
        found.append(Value(name, kind, place, len(follow) if followed else -1))
        follow += followed
    return CallEnd(tuple(found), stack, tuple(follow))


def _fits(stack: int, follow: list[Followed]) -> bool:
    """Whether a record has space for so many bytes of stack, and for the targets of these pointers."""
    return len(follow) <= MAX_FOLLOWED and stack + sum(8 + each.space + 7 & ~7 for each in follow) <= _SPACE


def _size_to_follow(kind: Type, place: x86_64.Place | None, strings: bool) -> int:
    if place is None:
        return 0
    if place.indirect:
        return place.size
    is_text = values.is_character_pointer(kind) or values.is_untyped_pointer(kind)
    return values.STRING_LIMIT if strings and is_text else 0


def entry_text(view: FunctionView, images: Images) -> str:
    """The arguments: `file=0x7f.., count=64`; with `...` if there may be more."""
    if not view.known:
        return "?"
    listed = [f"{value.name}={value.text(images)}" for value in view.entry.values]
    return ", ".join(listed + ["..."] * view.variadic)


def result_text(view: FunctionView, images: Images) -> str:
    """The result; '' if the function has none, or if that is not known."""
    return view.leave.values[0].text(images) if view.leave.values else ""
