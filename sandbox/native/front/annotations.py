"""Resolving annotations to Types, with the names of the declaration's scope."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from types import CodeType
from typing import Any

from sandbox.native.types import Array, Function, Named, Pointer, Type, as_type, fn, fn_preserve_most


class Namespace(Mapping[str, Any]):
    """The names that a declaration can see: its closure or enclosing frame, its module, the builtins."""

    def __init__(self, globals: Mapping[str, Any], locals: Mapping[str, Any]) -> None:
        self.globals = globals
        self.locals = locals

    def __getitem__(self, name: str) -> Any:
        for names in (self.locals, self.globals, builtins.__dict__):
            if name in names:
                return names[name]
        raise KeyError(name)

    def __iter__(self) -> Any:
        return iter({**self.globals, **self.locals})

    def __len__(self) -> int:
        return len({**self.globals, **self.locals})


def resolve(annotation: Any, namespace: Namespace) -> Type:
    """The type of *annotation*: a Type, its source text, or its code, with every name in it looked up.

    Raises NameError for an unknown name and TypeError for what is not a type.
    """
    if isinstance(annotation, str):
        annotation = compile(annotation.strip(), "<annotation>", "eval")
    if isinstance(annotation, CodeType):
        annotation = eval(annotation, {"__builtins__": {}}, namespace)
    return _complete(as_type(annotation), namespace)


def _complete(type_: Type, namespace: Namespace) -> Type:
    if isinstance(type_, Named):
        return resolve(type_.name, namespace)
    if isinstance(type_, Pointer):
        return Pointer(_complete(type_.target, namespace))
    if isinstance(type_, Array):
        return Array(_complete(type_.element, namespace), type_.count)
    if isinstance(type_, Function):
        parts = (type_.result, *type_.parameters)
        made = fn if type_.cc == "c" else fn_preserve_most
        return made[tuple(_complete(part, namespace) for part in parts)]
    return type_
