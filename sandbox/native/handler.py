"""Handlers: native functions whose missing types follow from the role in which they are called."""

from __future__ import annotations

from collections.abc import Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

from sandbox.native.front.declarations import GlobalVariable
from sandbox.native.function import NativeFunction, Options
from sandbox.native.types import Array, Function, Pointer, Type, i32, u8, void
from sandbox.process.once import cached_property

if TYPE_CHECKING:
    import ast

    from sandbox.native.tree import TypedFunction

SCRATCH = 64
"""The least size of the memory that replaces the entry data of calls without any."""


class Fields(NamedTuple):
    """Names of fields of a struct that are read and written."""

    read: frozenset[str] = frozenset()
    written: frozenset[str] = frozenset()


class HandlerFunction(NativeFunction):
    """A handler. Parameters without a type get those of its kind; a missing result type follows from its role.

    *parameters* are its kind's types. A handler whose last parameter, the entry data, has a type never gets null: calls
    without data share scratch memory, unless the handler compares the parameter with null.
    """

    def __init__(
        self,
        function: FunctionType,
        options: Options,
        names: dict[str, Any],
        parameters: Sequence[Type],
        result: Type | None = None,
    ) -> None:
        super().__init__(function, options, names)
        self._parameters = tuple(parameters)
        self._result = result
        self._variants: dict[Type, HandlerFunction] = {}

    def returning(self, result: Type) -> HandlerFunction:
        """This handler in a role that returns *result*, unless it declares its own result type."""
        if self._has_result_type or self._assumed_result == result:
            return self
        if result not in self._variants:
            made = type(self)(self.__wrapped__, self.options, self._names, self._parameters, result)
            made.text = self.text
            self._variants[result] = made
        return self._variants[result]

    @property
    def implied(self) -> tuple[Type, ...]:
        """The types of its kind and role."""
        return (*self._parameters, self._assumed_result)

    @property
    def data_size(self) -> int:
        """Bytes of entry data that the handler expects: the size of what its last parameter points to; 0 if untyped."""
        arguments = self._definition.args.args
        if len(arguments) != len(self._parameters) or arguments[-1].annotation is None:
            return 0
        data = self.signature.parameters[-1]
        return data.target.size if isinstance(data, Pointer) and data.target != void else 0

    @cached_property
    def signature(self) -> Function:
        """The handler's type. Raises NativeError for a type that is wrong."""
        from sandbox.native.front.scope import signature

        return signature(*self._source, self.namespace, self._parameters, self._assumed_result)

    @cached_property
    def typed(self) -> TypedFunction:
        """The checked body. Raises NativeError at the first thing that is not in the language."""
        from sandbox.native.front import frontend

        implicit = None if self._has_result_type else 0
        function = frontend.check(*self._source, self.namespace, self.name, self.signature, implicit)
        if self.data_size and not self.mentions_null_data():
            function.body = [_fallback(function, self._scratch), *function.body]
        return function

    def uses(self, position: int) -> bool:
        """Whether the body mentions parameter number *position*."""
        import ast

        name = self._definition.args.args[position].arg
        return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(self._definition))

    @cached_property
    def returns_a_value(self) -> bool:
        """Whether the body returns a value anywhere; otherwise the result is 0, or nothing."""
        return _returns_a_value(self._definition)

    def mentions_null_data(self) -> bool:
        """Whether the body compares its entry data with null."""
        import ast

        name = self._definition.args.args[-1].arg
        return any(
            {name, "null"} <= {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
            for node in ast.walk(self._definition)
            if isinstance(node, ast.Compare)
        )

    @property
    def _definition(self) -> ast.FunctionDef:
        return self._source[1]

    @property
    def _has_result_type(self) -> bool:
        return self._definition.returns is not None

    @property
    def _assumed_result(self) -> Type:
        if self._result is not None:
            return self._result
        return i32 if self.returns_a_value else void

    @cached_property
    def _scratch(self) -> GlobalVariable:
        return GlobalVariable(Array(u8, max(SCRATCH, self.data_size)), self.namespace)


def _returns_a_value(definition: ast.FunctionDef) -> bool:
    import ast

    returns = (node for node in ast.walk(definition) if isinstance(node, ast.Return))
    return any(node.value is not None for node in returns)


def _fallback(function: TypedFunction, scratch: GlobalVariable) -> Any:
    """`if data == null: data = the scratch memory`"""
    from sandbox.native.tree import (
        BOOL,
        AddressOf,
        Assign,
        Cast,
        Compare,
        GlobalPlace,
        If,
        Load,
        LocalPlace,
        NullPointer,
    )

    at, name = function.at, function.parameters[-1]
    type_ = function.locals[name]
    data, memory = LocalPlace(at, type_, name), GlobalPlace(at, scratch.type, "scratch", scratch)
    missing = Compare(at, BOOL, "==", Load(at, type_, data), NullPointer(at, type_))
    return If(at, missing, [Assign(at, data, Cast(at, type_, AddressOf(at, Pointer(scratch.type), memory)))], [])
