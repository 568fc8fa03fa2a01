"""The type of a function, from its definition's annotations."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from sandbox.native.front.annotations import Namespace
from sandbox.native.front.errors import Origin
from sandbox.native.front.scope import Scope
from sandbox.native.types import Function, Type, void


def signature(
    origin: Origin,
    node: ast.FunctionDef,
    namespace: Namespace,
    assumed: Sequence[Type] = (),
    result: Type | None = None,
) -> Function:
    """The type of the function *node*; *assumed* and *result* are the types of parameters and result that give none.

    Raises NativeError for a parameter or result without a type.
    """
    scope = Scope(origin, namespace, void)
    _check_parameters(scope, node)
    arguments = node.args.args
    defaults = assumed if len(assumed) == len(arguments) else [None] * len(arguments)
    parameters = tuple(_parameter_type(scope, *pair) for pair in zip(arguments, defaults, strict=True))
    return Function(_result_type(scope, node, result), parameters)


def _check_parameters(scope: Scope, node: ast.FunctionDef) -> None:
    arguments = node.args
    for extra in (arguments.vararg, arguments.kwarg, *arguments.kwonlyargs, *arguments.posonlyargs):
        if extra is not None:
            raise scope.error(extra, "only plain positional parameters are in the native language")
    for default in arguments.defaults:
        raise scope.error(default, "defaults are not in the native language: the caller passes every argument")
    for parameter in getattr(node, "type_params", ()):
        raise scope.error(parameter, "type parameters are not in the native language")


def _parameter_type(scope: Scope, argument: ast.arg, assumed: Type | None) -> Type:
    if argument.annotation is None and assumed is not None:
        return assumed
    if argument.annotation is None:
        raise scope.error(argument, f"parameter {argument.arg} has no type: write `{argument.arg}: u64`")
    type_ = scope.type_of(argument.annotation)
    if not type_.is_scalar:
        hint = "leave it out" if type_ == void else "pass a pointer"
        raise scope.error(argument, f"a parameter cannot be {type_}: {hint}")
    return type_


def _result_type(scope: Scope, node: ast.FunctionDef, assumed: Type | None) -> Type:
    if node.returns is None and assumed is not None:
        return assumed
    if node.returns is None:
        raise scope.error(node, f"{node.name} has no result type: write `-> void` or another type")
    type_ = scope.type_of(node.returns)
    if type_ != void and not type_.is_scalar:
        raise scope.error(node.returns, f"a function cannot return {type_}: fill one through a pointer")
    return type_
