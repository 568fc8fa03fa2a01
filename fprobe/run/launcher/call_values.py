"""Arguments and results of recorded calls, as text and for JSON. A value is right, or it is `?`."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from fprobe.calls.values import UNREADABLE, value_text
from fprobe.prototypes import texts
from fprobe.prototypes.described import Argument, Described
from fprobe.run.launcher.names import Names
from sandbox.abi import convention, layout
from sandbox.abi.convention import RESULTS
from sandbox.abi.signatures import Integer, Pointer

_NUMBA = "numba"
"""The image of functions that return a status in ax; the result is in memory."""
_ALL_ONES = (1 << 64) - 1
_VECTOR_BYTES = 128


class Values(NamedTuple):
    """The values in a record. `words`: of an entry di, si, dx, cx, r8, r9; of a return ax, dx, cx, errno.

    `targets`: address and bytes of what pointers lead to; None for what could not be read.
    """

    words: tuple[int, ...]
    vectors: bytes
    stack: bytes
    targets: tuple[tuple[int, bytes | None], ...]

    def image(self, *, is_entry: bool) -> bytes:
        """The image of the call (sandbox.abi.convention); what was not recorded is zero."""
        registers = bytearray(convention.REGISTERS)
        places = convention.ARGUMENTS if is_entry else convention.RESULTS
        for at, word in zip(places, self.words, strict=False):
            struct.pack_into("<Q", registers, at, word)
        return bytes(registers) + (self.vectors or bytes(_VECTOR_BYTES)) + self.stack

    @property
    def errno(self) -> int:
        """The thread's errno at a return."""
        return self.words[3]


class _Value(NamedTuple):
    """An argument or result of a call. `value`: None if it is not known; `data`: what it points to, None if not recorded."""

    argument: Argument
    value: Any
    data: bytes | None = None


class CallValues:
    """The values of calls of a process's functions. `names`: the functions of the process."""

    def __init__(self, names: Names) -> None:
        self._names = names
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
        return {"arguments": {each.argument.name: each.value for each in found}} | _strings("strings", found)

    def result(self, ip: int, ax: int, values: Values | None) -> tuple[str, str]:
        """The result, '' if there is none or its type is not known, and a remark: what the call has stored, or the register."""
        known = self._described(ip)
        if known is None:
            return (UNREADABLE, "") if self._is_status(ip) else ("", f" /* ax={ax:#x} */")
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
            constant = UNREADABLE if known is None and self._is_status(ip) else ""
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
        if found is not None and found.data is not None:
            made["result_string"] = found.data.partition(b"\0")[0].decode("utf-8", "surrogateescape")
        return made | _strings("stored", _stored(known, values), ax)

    def _result_text(self, known: Described, ax: int, values: Values | None) -> str:
        found = _result(known, ax, values)
        if found is None:
            return ""
        if values is not None and (number := _failure(known, found, values)) is not None:
            shown = "-1" if found.value in (-1, _ALL_ONES) else "NULL"
            return f"{shown} {texts.error_text(number)}"
        return _text(found, [])

    def _is_status(self, ip: int) -> bool:
        return self._names.function(ip).library == _NUMBA

    def _described(self, ip: int) -> Described | None:
        if ip not in self._known:
            self._known[ip] = None if self._is_status(ip) else self._names.described(ip)
        return self._known[ip]


def _entry(known: Described, values: Values) -> list[_Value]:
    """The arguments, without those of a variable number that the caller has not passed."""
    image = values.image(is_entry=True)
    targets = iter(values.targets)
    follow = known.followed(at_return=False)
    data = {each.name: _data(next(targets, None), each, image) for each in follow}
    found = [_Value(each, _decoded(each, image), data.get(each.name)) for each in known.arguments]
    numbers = _numbers(found)
    return [each for each in found if not each.argument.is_variable or texts.is_given(each.argument.meaning, numbers)]


def _data(target: tuple[int, bytes | None] | None, argument: Argument, image: bytes) -> bytes | None:
    """What an argument points to, if it is what was recorded."""
    if target is None or argument.place is None or argument.place.indirect:
        return None
    is_it = int.from_bytes(argument.place.gather(image)[:8], "little") == target[0]
    return target[1] if is_it else None


def _decoded(argument: Argument, image: bytes) -> Any:
    place = argument.place
    if place is None or place.indirect:
        return None
    data = place.gather(image)
    return layout.decode(data, argument.type) if len(data) >= place.size else None


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
    argument, value = each.argument, each.value
    target = argument.target
    if not value or each.data is None or target is None:
        return value_text(value, Pointer())
    if argument.record is not None and not argument.meaning:
        return value_text(layout.decode(each.data, argument.record), argument.record)
    length = numbers[target.length] if target.length is not None and target.length >= 0 else len(each.data)
    return _target(each, length or 0) or value_text(value, Pointer())


def _target(each: _Value, full: int) -> str | None:
    """The text of what a pointer leads to. `full`: how many bytes there are."""
    assert each.data is not None and each.argument.target is not None
    if each.argument.target.is_text:
        text, end, _ = each.data.partition(b"\0")
        return texts.data_text(text, is_cut=not end or len(each.data) > each.argument.target.most)
    return texts.target_text(each.argument.meaning, each.data, full)


def _is_in_ax(result: Argument) -> bool:
    place = result.place
    return place is not None and not place.indirect and [at for _, at, _ in place.pieces] == RESULTS[:1]


def _result(known: Described, ax: int, values: Values | None) -> _Value | None:
    if known.result is None:
        return None
    if values is None:
        values = Values((ax,), b"", b"", ())
        if not _is_in_ax(known.result):
            return _Value(known.result, None)
    image = values.image(is_entry=False)
    data = None
    if known.result in known.followed(at_return=True) and values.targets:
        data = _data(values.targets[-1], known.result, image)
    return _Value(known.result, _decoded(known.result, image), data)


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
    if target is not None and (target.is_text or each.argument.meaning.partition(":")[0] in ("in", "out")):
        data = each.data or b""
        return (data.partition(b"\0")[0] if target.is_text else data).decode("utf-8", "surrogateescape")
    return _target(each, _full(each, ax))
