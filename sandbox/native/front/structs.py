"""Structs: declared as classes, laid out as C does."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from typing import Any, ClassVar

from sandbox.native.front.annotations import Namespace, resolve
from sandbox.native.types import Array, Bool, Function, Int, Pointer, Type, void
from sandbox.process.once import cached_property


class Struct(Type):
    """A record of named fields at the offsets that a C compiler gives them.

    The field types are looked up at first use, so a struct may refer to itself and to later ones.
    """

    def __init__(self, name: str, annotations: Mapping[str, Any], namespace: Namespace) -> None:
        self.name = name
        self._annotations = dict(annotations)
        self._namespace = namespace

    __eq__, __hash__ = object.__eq__, object.__hash__

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<struct {self.name}>"

    @cached_property
    def fields(self) -> dict[str, Type]:
        """Field name -> type, in order. Raises TypeError or NameError that names the field at fault."""
        return {name: self._field(name, value) for name, value in self._annotations.items()}

    @cached_property
    def offsets(self) -> dict[str, int]:
        """Field name -> offset in bytes."""
        offsets, end = {}, 0
        for name, type_ in self.fields.items():
            offsets[name] = end = -(-end // type_.align) * type_.align
            end += type_.size
        return offsets

    @cached_property
    def size(self) -> int:
        """Bytes, padding at the end included."""
        last = list(self.fields)[-1]
        return -(-(self.offsets[last] + self.fields[last].size) // self.align) * self.align

    @cached_property
    def align(self) -> int:
        """Bytes."""
        return max(type_.align for type_ in self.fields.values())

    @cached_property
    def ctypes(self) -> type[ctypes.Structure]:
        """A ctypes.Structure of the same layout; pointers and functions are c_void_p."""
        fields = [(name, ctypes_type(type_)) for name, type_ in self.fields.items()]
        return type(self.name, (ctypes.Structure,), {"_fields_": fields})

    def offset(self, field: str) -> int:
        """The offset of *field* in bytes. Raises AttributeError when there is no such field."""
        self.index(field)
        return self.offsets[field]

    def index(self, field: str) -> int:
        """The position of *field* among the fields. Raises AttributeError when there is no such field."""
        if field not in self.fields:
            raise AttributeError(f"{self.name} has no field {field!r}; it has {', '.join(self.fields)}")
        return list(self.fields).index(field)

    def _field(self, name: str, value: Any) -> Type:
        try:
            type_ = resolve(value, self._namespace)
        except NameError as error:
            raise NameError(f"field {name!r} of struct {self.name}: {error}", name=error.name) from None
        except TypeError as error:
            raise TypeError(f"field {name!r} of struct {self.name}: {error}") from None
        if type_ == void or _contains(type_, self):
            raise TypeError(f"field {name!r} of struct {self.name} cannot be {type_}: use a pointer")
        return type_


class Structure:
    """A base that a @struct class may name, so that type checkers know what the decorator adds."""

    size: ClassVar[int]
    ctypes: ClassVar[Any]

    @classmethod
    def offset(cls, field: str) -> int:
        """The offset of *field* in bytes."""
        raise TypeError(f"{cls.__name__} has no field {field!r}: it is not decorated with @struct")


def struct(cls: type) -> Any:
    """Class decorator: the annotations of *cls*, in order, become the fields of a `Struct`.

    Raises TypeError when the class has no annotations, has values for them, or has bases.
    """
    if not isinstance(cls, type):
        raise TypeError(f"@struct takes a class, not {cls!r}")
    annotations = cls.__annotations__
    if not annotations:
        raise TypeError(f"struct {cls.__name__} declares no fields: write `name: type` lines")
    if cls.__bases__ not in ((object,), (Structure,)):
        raise TypeError(f"struct {cls.__name__} has a base class: declare its fields here instead")
    for name in annotations:
        if name in cls.__dict__:
            raise TypeError(f"field {name!r} of struct {cls.__name__} has a value: remove it, fields start as zero")
    frame = sys._getframe(1)
    return Struct(cls.__name__, annotations, Namespace(frame.f_globals, frame.f_locals))


def ctypes_type(type_: Type) -> Any:
    """The ctypes type with the layout of *type_*; None for void."""
    if isinstance(type_, Int):
        return getattr(ctypes, f"c_{'' if type_.signed else 'u'}int{type_.bits}")
    if isinstance(type_, Bool):
        return ctypes.c_bool
    if isinstance(type_, (Pointer, Function)):
        return ctypes.c_void_p
    if isinstance(type_, Array):
        return ctypes_type(type_.element) * type_.count
    return type_.ctypes if isinstance(type_, Struct) else None


def _contains(type_: Type, struct_: Struct) -> bool:
    while isinstance(type_, Array):
        type_ = type_.element
    return type_ is struct_
