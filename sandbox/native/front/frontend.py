"""The front end: checking a function's syntax tree, with the names it sees, to a typed tree."""

from __future__ import annotations

import ast

from sandbox.native.front.annotations import Namespace
from sandbox.native.front.errors import LocatedError, Origin, error_at, position
from sandbox.native.front.flow import check_flow
from sandbox.native.front.scope import Scope, assigned_names
from sandbox.native.front.statements import Statements
from sandbox.native.tree import Statement, TypedFunction
from sandbox.native.types import Function


def check(
    origin: Origin,
    node: ast.FunctionDef,
    namespace: Namespace,
    name: str,
    type_: Function,
    implicit: int | None = None,
) -> TypedFunction:
    """The typed tree of the function *node*, whose signature is *type_*.

    *implicit* is returned where the source names no value. Raises NativeError at the first construct that is not in the
    language.
    """
    scope = Scope(origin, namespace, type_.result, *assigned_names(node), implicit=implicit)
    parameters = tuple(argument.arg for argument in node.args.args)
    scope.locals.update(zip(parameters, type_.parameters, strict=True))
    body = _body(scope, node)
    function = TypedFunction(name, type_, parameters, scope.locals, body, position(node), origin.filename)
    try:
        check_flow(function, implicit)
    except LocatedError as problem:
        raise error_at(origin, problem.at, str(problem)) from None
    return function


def _body(scope: Scope, node: ast.FunctionDef) -> list[Statement]:
    try:
        return Statements(scope).block(node.body)
    except RecursionError:
        raise scope.error(node, f"{node.name} is nested too deeply: split it into functions") from None
