"""Arguments and results of recorded calls, as text and for JSON. A value is right, or it is `?`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from fprobe.calls.records import Values
from fprobe.calls.values import FAULT, UNREADABLE, String, string_in, value_text
from fprobe.prototypes import texts
from fprobe.prototypes.described import Argument, Described
from sandbox.abi import layout
from sandbox.abi.convention import RESULTS
from sandbox.abi.signatures import Integer, Pointer

_ALL_ONES = (1 << 64) - 1


class Functions(Protocol):
    """The functions of a process."""

    def described(self, address: int) -> Described | None:
        """The one that starts at an address, with its arguments; None if nothing tells them."""

    def returns_status(self, address: int) -> bool:
        """Whether ax is only a status at its return: its result is in memory."""
        return False


class _Value(NamedTuple):
    """An argument or result of a call. `value`: None if it is not known; `data`: what it points to, None if not recorded."""

    argument: Argument
    value: Any
    data: bytes | None = None
    is_fault: bool = False  # it points to nothing that can be read

    @property
    def string(self) -> String | None:
        """The text that it points to; None if it does not."""
        target = self.argument.target
        if self.data is None or target is None or not target.is_text:
            return None
        return string_in(self.data[: target.most], certain=target.is_certain)


class CallValues:
    """The values of calls of a process's functions."""

    def __init__(self, functions: Functions) -> None:
        self._functions = functions
        self._known: dict[int, Described | None] = {}

    def arguments(self, ip: int, values: Values | None) -> str:
        """The arguments: `file="a", oflag=O_RDONLY`; '' if the function's are not known."""
        known = self._described(ip)
        if known is None or values is None:
            return ""
        found = _entry(known, values)
        listed = [f"{each.argument.name}={text}" for each, text in zip(found, _texts(found), strict=True)]
        return ", ".join(listed + ["..."] * known.is_variadic)

    def arguments_object(self, ip: int, values: Values | None) -> dict[str, Any]:
        """The members of a call for JSON that its entry tells."""
        known = self._described(ip)
        if known is None or values is None:
            return {}
        found = _entry(known, values)
        cut = [each.argument.name for each in found if each.string is not None and each.string.is_cut]
        made = {"arguments": {each.argument.name: each.value for each in found}} | _strings("strings", found)
        return made | ({"cut": cut} if cut else {})

    def result(self, ip: int, ax: int, values: Values | None) -> tuple[str, str]:
        """The result, '' if there is none or its type is not known, and a remark: what the call has stored, or the register."""
        known = self._described(ip)
        if known is None:
            return (UNREADABLE, "") if self._functions.returns_status(ip) else ("", f" /* ax={ax:#x} */")
        stored = ", ".join(
            f"{each.argument.name}={text}"
            for each in _stored(known, values)
            if each.data and (text := _target(each, _full(each, ax)))
        )
        return self._result_text(known, ax, values), f" /* {stored} */" if stored else ""

    def number_result(self, ip: int) -> Integer | None:
        """The type of a result whose text is the number that is in ax; None for another, or if it is not known."""
        known = self._described(ip)
        if known is None or known.result is None or known.sets_errno or known.result.meaning:
            return None
        kind = known.result.type
        if not isinstance(kind, Integer) or kind.bits not in (8, 16, 32, 64) or kind.name == "char":
            return None
        return kind if _is_in_ax(known.result) else None

    def result_of_ax(self, ip: int) -> Callable[[int], str | None] | None:
        """Makes the text of a result from ax; None if more of the record is needed, as for a floating-point number.

        For a value that may be a failure's, whose text has errno, it returns None.
        """
        known = self._described(ip)
        if known is None or known.result is None:
            constant = UNREADABLE if known is None and self._functions.returns_status(ip) else ""
            return lambda _: constant
        if not _is_in_ax(known.result) or known.result in known.followed(at_return=True):
            return None

        def text(ax: int) -> str | None:
            found = _result(known, ax, None)
            return None if found is None or (known.sets_errno and _is_failed(found)) else _text(found, [])

        return text

    def is_address(self, ip: int) -> bool:
        """Whether a result's text is the address that is in ax, unless that is 0 or all ones."""
        known = self._described(ip)
        if known is None or known.result is None or known.result.meaning:
            return False
        return isinstance(known.result.type, Pointer)

    def result_object(self, ip: int, ax: int, values: Values | None) -> dict[str, Any]:
        """The members of a call for JSON that its return tells."""
        known = self._described(ip)
        found = _result(known, ax, values) if known else None
        made: dict[str, Any] = {"result": found.value if found else None, "ax": ax}
        if known is None or values is None:
            return made
        if (number := _failure(known, found, values)) is not None:
            made["errno"] = texts.error_text(number).partition(" ")[0]
        if found is not None and found.string is not None:
            made["result_string"] = found.string.text
        return made | _strings("stored", _stored(known, values), ax)

    def _result_text(self, known: Described, ax: int, values: Values | None) -> str:
        found = _result(known, ax, values)
        if found is None:
            return ""
        if values is not None and (number := _failure(known, found, values)) is not None:
            shown = "-1" if found.value in (-1, _ALL_ONES) else "NULL"
            return f"{shown} {texts.error_text(number)}"
        return _text(found, [])

    def _described(self, ip: int) -> Described | None:
        if ip not in self._known:
            self._known[ip] = None if self._functions.returns_status(ip) else self._functions.described(ip)
        return self._known[ip]


def _entry(known: Described, values: Values) -> list[_Value]:
    """The arguments, without those of a variable number that the caller has not passed."""
    image = values.image(is_entry=True)
    targets = list(values.targets)
    followed = {each.name for each in known.followed(at_return=False)}
    found = [_value(each, image, targets if each.name in followed else []) for each in known.arguments]
    numbers = _numbers(found)
    return [each for each in found if not each.argument.is_variable or texts.is_given(each.argument.meaning, numbers)]


def _value(argument: Argument, image: bytes, targets: list[tuple[int, bytes | None]]) -> _Value:
    """A value of one end of a call. `targets`: what was recorded behind pointers, from which what is behind this one is taken."""
    place = argument.place
    if place is None:
        return _Value(argument, None)
    gathered = place.gather(image)
    address = int.from_bytes(gathered[:8], "little")
    at = next((at for at, target in enumerate(targets) if target[0] == address), None)
    data = targets.pop(at)[1] if at is not None else None
    own = data or b"" if place.indirect else gathered
    value = layout.decode(own, argument.type) if len(own) >= place.size else None
    return _Value(argument, value, data, is_fault=at is not None and data is None)


def _numbers(found: list[_Value]) -> list[int | None]:
    return [each.value if isinstance(each.value, int) else None for each in found]


def _texts(found: list[_Value]) -> list[str]:
    numbers = _numbers(found)
    return [_text(each, numbers) for each in found]


def _text(each: _Value, numbers: list[int | None]) -> str:
    argument, value = each.argument, each.value
    if value is None:
        return UNREADABLE
    if isinstance(argument.type, Pointer):
        return _pointer(each, numbers)
    shown = texts.number_text(argument.meaning, value, numbers) if isinstance(value, int) else None
    return value_text(value, argument.type) if shown is None else shown


def _pointer(each: _Value, numbers: list[int | None]) -> str:
    argument, target, plain = each.argument, each.argument.target, value_text(each.value, Pointer())
    if not each.value or target is None:
        return plain
    if target.is_text:
        if (found := each.string) is None:
            return f"{plain} {FAULT}" if each.is_fault and target.is_certain else plain
        return str(found) if target.is_certain else f"{plain} {found}"
    if each.data is None:
        return plain
    if argument.record is not None and not argument.meaning:
        return value_text(layout.decode(each.data, argument.record), argument.record)
    length = numbers[target.length] if target.length is not None and target.length >= 0 else len(each.data)
    return _target(each, length or 0) or plain


def _target(each: _Value, full: int) -> str | None:
    """The text of what a pointer leads to. `full`: how many bytes there are."""
    assert each.data is not None and each.argument.target is not None
    if each.argument.target.is_text:
        return str(each.string) if each.string is not None else None
    return texts.target_text(each.argument.meaning, each.data, full)


def _is_in_ax(result: Argument) -> bool:
    place = result.place
    return place is not None and not place.indirect and [at for _, at, _ in place.pieces] == RESULTS[:1]


def _result(known: Described, ax: int, values: Values | None) -> _Value | None:
    if known.result is None:
        return None
    if values is None:
        values = Values((ax,))
        if not _is_in_ax(known.result):
            return _Value(known.result, None)
    return _value(
        known.result, values.image(is_entry=False), list(values.targets[-1:]) if known.result.is_followed else []
    )


def _failure(known: Described, result: _Value | None, values: Values) -> int | None:
    """The errno of a call that has failed; None for others."""
    if result is None or not known.sets_errno or not values.errno:
        return None
    return values.errno if _is_failed(result) else None


def _is_failed(result: _Value) -> bool:
    """Whether it is what functions return that set errno."""
    return result.value == -1 if isinstance(result.argument.type, Integer) else result.value in (0, _ALL_ONES)


def _stored(known: Described, values: Values | None) -> Iterator[_Value]:
    """What the call has stored behind its arguments."""
    follow = known.followed(at_return=True)
    for argument, target in zip(follow, values.targets if values else (), strict=False):
        if argument is not known.result and target[1]:
            yield _Value(argument, target[0], target[1])


def _full(each: _Value, ax: int) -> int:
    target = each.argument.target
    return ax if target is not None and target.length == -1 else len(each.data or b"")


def _strings(name: str, found: Any, ax: int = 0) -> dict[str, Any]:
    """A member with the texts of what pointers lead to, by the names of these."""
    shown = {
        each.argument.name: text
        for each in found
        if each.data is not None and (text := _text_for_object(each, ax)) is not None
    }
    return {name: shown} if shown else {}


def _text_for_object(each: _Value, ax: int) -> str | None:
    target = each.argument.target
    if target is not None and target.is_text:
        return each.string.text if each.string is not None else None
    if each.argument.meaning.partition(":")[0] in ("in", "out"):
        return (each.data or b"").decode("utf-8", "surrogateescape")
    return None if each.argument.is_indirect else _target(each, _full(each, ax))
