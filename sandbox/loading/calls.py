"""Calling the functions of a module from Python: typed, checked, and with the GIL released."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

from sandbox.abi import layout
from sandbox.abi.layout import parse_word
from sandbox.abi.signatures import (
    Array,
    Complex,
    Floating,
    Form,
    Integer,
    Pointer,
    Record,
    Signature,
    Type,
    Unsupported,
    Void,
)
from sandbox.loading import thunks
from sandbox.loading.gate import Gate
from sandbox.process.fork import ProcessBound
from sandbox.process.once import cached_property
from sandbox.threads import faults

_SIGNED: dict[int, Any] = {
    1: ctypes.c_bool, 8: ctypes.c_int8, 16: ctypes.c_int16, 32: ctypes.c_int32, 64: ctypes.c_int64,
}  # fmt: skip
_UNSIGNED: dict[int, Any] = {
    1: ctypes.c_bool, 8: ctypes.c_uint8, 16: ctypes.c_uint16, 32: ctypes.c_uint32, 64: ctypes.c_uint64,
}  # fmt: skip
_FLOATING: dict[str, Any] = {"float": ctypes.c_float, "double": ctypes.c_double, "x86_fp80": ctypes.c_longdouble}
_WHY = {Array: ": ctypes has no vectors", Complex: ": ctypes has no complex numbers"}
_PLAIN_ATTRIBUTES = {
    "noundef", "nonnull", "noalias", "nocapture", "readonly", "writeonly", "readnone", "signext", "zeroext",
    "returned", "immarg", "nofree", "noext", "dead_on_unwind", "writable",
}  # fmt: skip


class Function(ProcessBound):
    """A function of a loaded module, called like a Python function.

    Integers are checked for range. A pointer is an int, None, bytes, a str (its UTF-8, NUL-terminated), a writable
    buffer, a ctypes object or a Function, each passed as its address. Structs, arrays and vectors are sequences. A
    parameter that receives the result (`sret`) is not given; its contents are returned.

    TypeError names function, parameter and value where they do not fit, OverflowError where a number is out of range.
    The GIL is released while the function runs. Any number of threads may call it.
    """

    def __init__(self, signature: Signature, address: int, size: int, gate: Gate | None = None) -> None:
        self.signature = signature
        """Prints as the source language would write it."""
        self.name = signature.name
        self.address = address
        """The address of the function's first byte."""
        self.size = size
        """In bytes."""
        self._gate = gate or Gate()

    def __repr__(self) -> str:
        return f"<Function {self.signature} at {self.address:#x}>"

    def __copy__(self) -> Function:
        return self

    def __deepcopy__(self, _memo: object) -> Function:
        return self

    def __call__(self, *arguments: Any) -> Any:
        self._check_count(len(arguments), arguments)
        self._gate.enter(self.name)
        try:
            return self._call(*arguments)
        finally:
            self._gate.leave(self.name)

    @cached_property
    def _call(self) -> Callable[..., Any]:
        return self._through_ctypes if is_direct(self.signature) else self._through_thunk

    @cached_property
    def pointer(self) -> Any:
        """The bare ctypes function, without checks or guard. Raises TypeError if ctypes cannot make such calls."""
        return self._pointer_at(self.address)

    @cached_property
    def _guarded(self) -> Any:
        """The ctypes function, called through the installed guard."""
        assert faults.installed is not None
        return self._pointer_at(faults.installed.entry(self.address))

    def _pointer_at(self, address: int) -> Any:
        if not is_direct(self.signature):
            raise TypeError(f"ctypes cannot call {self.signature}")
        try:
            parameters = [c_type(parameter.type) for parameter in self.signature.parameters]
            return ctypes.CFUNCTYPE(c_type(self.signature.returns), *parameters)(address)
        except TypeError as error:
            raise TypeError(f"{self.name}() cannot be called from Python: {error}") from None

    def _through_ctypes(self, *arguments: Any) -> Any:
        kinds = self._kinds
        function = self.pointer if faults.installed is None else self._guarded
        converted = [_for_ctypes(value, kind, where) for value, (kind, where) in zip(arguments, kinds, strict=False)]
        for i, value in enumerate(arguments[len(kinds) :], len(kinds)):
            _, kind, where = self._extra(i, value)
            found = _for_ctypes(value, kind, where)
            # What has no parameter to say its type must say it itself.
            converted.append(found if isinstance(kind, Pointer) else c_type(kind)(found))
        result = function(*converted)
        if faults.installed is not None:
            faults.installed.check()
        if isinstance(self.signature.returns, Record):
            return layout.decode(bytes(result), self.signature.returns)
        return result or 0 if isinstance(self.signature.returns, Pointer) else result

    def _through_thunk(self, *arguments: Any) -> Any:
        kinds = self._kinds
        named = [(value, kind, where) for value, (kind, where) in zip(arguments, kinds, strict=False)]
        extra = [self._extra(i, value) for i, value in enumerate(arguments[len(kinds) :], len(kinds))]
        alive: list[Any] = []
        values = [_in_memory(value, kind, where, alive) for value, kind, where in (*named, *extra)]
        # A guard needs r10, which is where a `nest` parameter is passed.
        nested = any("nest" in parameter.attributes for parameter in self.signature.parameters)
        guard = None if nested else faults.installed
        entry = self.address if guard is None else guard.entry(self.address)
        result = thunks.call(self.signature, entry, values, [kind for _, kind, _ in extra])
        if guard is not None:
            guard.check()
        return result

    def _extra(self, i: int, value: Any) -> tuple[Any, Type, str]:
        kind: Type = Pointer()
        if isinstance(value, float):
            kind = Floating("double")
        elif hasattr(value, "__index__"):
            kind = Integer(64)
        return value, kind, f"{self.name}() argument {i + 1}"

    def _check_count(self, count: int, given: Sequence[Any]) -> None:
        passed = len(self._kinds)
        if count < passed or (count > passed and not self.signature.variadic):
            wanted = f"{'at least ' if self.signature.variadic else ''}{passed} argument{'s' * (passed != 1)}"
            values = ", ".join(map(repr, given))
            raise TypeError(f"{self.name}() takes {wanted}, not {count} ({values}): {self.signature}")

    @cached_property
    def _kinds(self) -> list[tuple[Type, str]]:
        """The conversion of each argument, and its description in errors."""
        names = (f" ({parameter.name})" if parameter.name else "" for parameter in self.signature.passed)
        places = (f"{self.name}() argument {i}{name}" for i, name in enumerate(names, 1))
        return [(p.copied or p.type, place) for p, place in zip(self.signature.passed, places, strict=True)]

    def parse_arguments(self, words: Sequence[str]) -> list[Any]:
        """Python values for arguments written as text, as on a command line, by the signature.

        Raises TypeError if their number is wrong, ValueError naming function, parameter and word if one does not fit.
        """
        self._check_count(len(words), words)
        named = [parse_word(word, kind, where) for word, (kind, where) in zip(words, self._kinds, strict=False)]
        return named + [parse_word(word, Void(), self.name) for word in words[len(named) :]]


def is_direct(signature: Signature) -> bool:
    """Whether ctypes makes such a call as the compiler would."""
    if signature.is_c:
        return True
    scalars = all(_is_scalar(parameter.type) for parameter in signature.parameters)
    plain = all(_is_plain(word) for parameter in signature.parameters for word in parameter.attributes)
    returns = isinstance(signature.returns, Void) or _is_scalar(signature.returns)
    return scalars and plain and returns and not signature.convention


def _is_plain(attribute: str) -> bool:
    return attribute.split(" ")[0] in {*_PLAIN_ATTRIBUTES, "align", "dereferenceable", "captures", "range"}


def _is_scalar(kind: Type) -> bool:
    if isinstance(kind, Integer):
        return kind.bits in _SIGNED
    return isinstance(kind, Pointer) or (isinstance(kind, Floating) and kind.kind in _FLOATING)


@functools.cache
def c_type(kind: Type) -> Any:
    """The ctypes type for `kind`; None for void. Raises TypeError if ctypes has none."""
    if isinstance(kind, Void):
        return None
    if isinstance(kind, Integer) and kind.bits in _SIGNED:
        return (_UNSIGNED if kind.signed is False else _SIGNED)[kind.bits]
    if isinstance(kind, Floating) and kind.kind in _FLOATING:
        return _FLOATING[kind.kind]
    if isinstance(kind, Pointer):
        return ctypes.c_void_p
    if isinstance(kind, Array) and not kind.is_vector:
        return c_type(kind.element) * kind.count
    if isinstance(kind, Record) and not kind.form:
        return _structure(kind)
    reason = kind.form if isinstance(kind, Record) else kind
    why = f": {reason.why}" if isinstance(reason, (Form, Unsupported)) else _WHY.get(type(kind), "")
    raise TypeError(f"values of type {kind} cannot be passed{why}")


def _structure(kind: Record) -> Any:
    body: dict[str, Any] = {"_pack_": 1} if kind.packed else {}
    body["_fields_"] = [(name or f"_{i}", c_type(field)) for i, (name, field) in enumerate(kind.fields)]
    return type(str(kind), (ctypes.Structure,), body)


def _for_ctypes(value: Any, kind: Type, where: str) -> Any:
    if isinstance(kind, Pointer):
        return _address(value, kind, where)
    if isinstance(kind, Integer):
        return layout.checked_integer(value, kind, where)
    if isinstance(kind, Floating):
        return layout.checked_number(value, kind, where)
    if isinstance(value, c_type(kind)):
        return value
    return c_type(kind).from_buffer_copy(layout.encode(value, kind, where))


def _in_memory(value: Any, kind: Type, where: str, alive: list[Any]) -> bytes:
    """The bytes of one argument; objects that they point to are added to `alive`."""
    if isinstance(value, (ctypes.Structure, ctypes.Union, ctypes.Array)) and isinstance(kind, (Record, Array)):
        value = bytes(value)
    if isinstance(kind, Pointer):
        pointer = _address(value, kind, where)
        alive.append((pointer, value))
        value = ctypes.cast(pointer, ctypes.c_void_p).value or 0
    return layout.encode(value, kind, where)


def _address(value: Any, kind: Type, where: str) -> Any:
    """The address that `value` is passed as, in a form that ctypes accepts."""
    if value is None:
        return None
    if isinstance(value, str):
        return ctypes.c_char_p(value.encode())
    if isinstance(value, bytes):
        return ctypes.c_char_p(value)
    if isinstance(value, Function):
        return ctypes.c_void_p(value.address)
    if isinstance(value, (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_wchar_p)) or _is_c_pointer(value):
        return ctypes.cast(value, ctypes.c_void_p)
    if isinstance(value, _C_DATA):
        return ctypes.c_void_p(ctypes.addressof(value))
    if hasattr(value, "__index__"):
        return ctypes.c_void_p(layout.checked_integer(value, Integer(64, name=str(kind)), where))
    try:
        return ctypes.cast((ctypes.c_char * memoryview(value).nbytes).from_buffer(value), ctypes.c_void_p)
    except TypeError:
        raise TypeError(f"{where}: expected an address, a string or a buffer for {kind}, got {value!r}") from None


_C_DATA: Any = ctypes.c_int.__mro__[2]
_C_FUNCTION: Any = ctypes.CFUNCTYPE(None).__mro__[1]
_C_POINTER: Any = ctypes.POINTER(ctypes.c_int).__mro__[1]


def _is_c_pointer(value: Any) -> bool:
    return isinstance(value, (_C_FUNCTION, _C_POINTER))
