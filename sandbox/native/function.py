"""Native functions: the decorator, the signature, and the typed tree made at first need."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from types import FunctionType
from typing import Any

from . import bounds, source
from .annotations import Namespace
from .errors import Origin, error_at
from .flow import Flow, FlowError
from .scope import Scope, assigned_names
from .statements import Statements
from .tree import At, Callee, TypedFunction
from .types import Function, Type, void

CONVENTIONS = ("c", "preserve_most", "preserve_all")


@dataclass(frozen=True)
class Options:
    """How a function is compiled: see `native`."""

    name: str = ""
    export: bool = False
    inline: bool = False
    noinline: bool = False
    bounded: bool = True
    cc: str = "c"


class NativeFunction(Callee):
    """A function of the native language. Its checks run at first need; they raise NativeError."""

    def __init__(self, function: FunctionType, options: Options, names: dict[str, Any]) -> None:
        self.__wrapped__ = function
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self.options = options
        self._names = names

    def __repr__(self) -> str:
        return f"<native function {self.name}>"

    @property
    def name(self) -> str:
        """The name that the function is exported under."""
        return self.options.name or self.__wrapped__.__name__

    @property
    def cc(self) -> str:
        """The calling convention."""
        return self.options.cc

    @property
    def filename(self) -> str:
        """The file that the function was written in."""
        return self.__wrapped__.__code__.co_filename

    @property
    def namespace(self) -> Namespace:
        """The names that the function can see."""
        function = self.__wrapped__
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        closure = {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}
        return Namespace(function.__globals__, {**self._names, **closure})

    @cached_property
    def signature(self) -> Function:
        """The function's type. Raises NativeError for a parameter without a type."""
        scope, node = self._scope(void), self._source[1]
        _check_parameters(scope, node)
        parameters = tuple(_parameter_type(scope, argument) for argument in node.args.args)
        return Function(_result_type(scope, node), parameters)

    @cached_property
    def typed(self) -> TypedFunction:
        """The checked body. Raises NativeError at the first thing that is not in the language."""
        origin, node = self._source
        scope = self._scope(self.signature.result)
        names = tuple(argument.arg for argument in node.args.args)
        scope.locals.update(zip(names, self.signature.parameters, strict=True))
        body = Statements(scope).block(node.body)
        try:
            end = Flow().block(body, frozenset(names))
        except FlowError as error:
            raise error_at(origin, located(error.at), str(error)) from None
        if end is not None and self.signature.result != void:
            raise scope.error(node, f"{node.name} may end without returning {self.signature.result}")
        return TypedFunction(self.name, self.signature, names, scope.locals, body, scope.at(node), origin.filename)

    def check_bounds(self) -> None:
        """Raises NativeError at a loop without a visible bound, unless the function opted out."""
        if self.options.bounded:
            try:
                bounds.check(self.typed.body)
            except FlowError as error:
                raise error_at(self.origin, located(error.at), str(error)) from None

    @property
    def origin(self) -> Origin:
        """The file that the function was written in, with its lines."""
        return self._source[0]

    @cached_property
    def _source(self) -> tuple[Origin, ast.FunctionDef]:
        return source.find(self.__wrapped__)

    def _scope(self, result: Type) -> Scope:
        origin, node = self._source
        return Scope(origin, self.namespace, result, *assigned_names(node))


def native(
    function: Callable[..., Any] | None = None,
    *,
    name: str = "",
    export: bool = False,
    inline: bool = False,
    noinline: bool = False,
    bounded: bool = True,
    cc: str = "c",
) -> Any:
    """Decorator: compile a function of restricted Python to machine code (docs/native.md has the language).

    `name` is its symbol, `export` makes it visible to assembly and to the linker under that name, `inline` and
    `noinline` force and forbid inlining, `bounded=False` allows loops without a visible bound, `cc` is the calling
    convention (`c`, `preserve_most`, `preserve_all`). Raises TypeError for what is not a plain function,
    ValueError for options that do not go together.
    """
    if inline and noinline:
        raise ValueError("inline and noinline exclude each other")
    if cc not in CONVENTIONS:
        raise ValueError(f"cc is one of {', '.join(CONVENTIONS)}, not {cc!r}")
    options = Options(name, export or bool(name), inline, noinline, bounded, cc)
    names = _enclosing_names(sys._getframe(1))

    def decorate(target: Callable[..., Any]) -> NativeFunction:
        if not isinstance(target, FunctionType):
            raise TypeError(f"@native takes a plain function, not {target!r}")
        return NativeFunction(target, options, names)

    return decorate(function) if function is not None else decorate


def _enclosing_names(frame: Any) -> dict[str, Any]:
    return {} if frame.f_locals is frame.f_globals else dict(frame.f_locals)


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _check_parameters(scope: Scope, node: ast.FunctionDef) -> None:
    arguments = node.args
    for extra in (arguments.vararg, arguments.kwarg, *arguments.kwonlyargs, *arguments.posonlyargs):
        if extra is not None:
            raise scope.error(extra, "only plain positional parameters are in the native language")
    for default in arguments.defaults:
        raise scope.error(default, "defaults are not in the native language")


def _parameter_type(scope: Scope, argument: ast.arg) -> Type:
    if argument.annotation is None:
        raise scope.error(argument, f"parameter {argument.arg} has no type: write `{argument.arg}: u64`")
    type_ = scope.type_of(argument.annotation)
    if not type_.is_scalar:
        raise scope.error(argument, f"a parameter cannot be {type_}: pass a pointer")
    return type_


def _result_type(scope: Scope, node: ast.FunctionDef) -> Type:
    if node.returns is None:
        raise scope.error(node, f"{node.name} has no result type: write `-> void` or another type")
    type_ = scope.type_of(node.returns)
    if type_ != void and not type_.is_scalar:
        raise scope.error(node.returns, f"a function cannot return {type_}: fill one through a pointer")
    return type_


def located(at: At) -> ast.AST:
    """A syntax node at the position *at*, for errors that are found in the typed tree."""
    node = ast.Pass()
    node.lineno, node.col_offset = at.line, at.column - 1
    node.end_lineno, node.end_col_offset = at.end_line, at.end_column - 1
    return node
