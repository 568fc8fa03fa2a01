"""The names that a function sees while it is checked, and the type that its annotations give it."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from sandbox.native.front.annotations import Namespace, resolve
from sandbox.native.front.declarations import GlobalVariable
from sandbox.native.front.errors import NativeError, Origin, error_at, position
from sandbox.native.front.source import statements
from sandbox.native.types import Function, Type, void
from sandbox.process.near import did_you_mean

MISSING = object()


@dataclass
class Scope:
    """The names of one function: its locals as they get their types, then what its module declares."""

    origin: Origin
    namespace: Namespace
    result: Type
    assigned: frozenset[str] = frozenset()
    globals: frozenset[str] = frozenset()
    locals: dict[str, Type] = field(default_factory=dict)
    loops: int = 0
    implicit: int | None = None  # returned by a `return` without a value, if the result is not void

    def error(self, node: ast.AST, message: str) -> NativeError:
        """The error *message* at *node*, to be raised by the caller."""
        return error_at(self.origin, position(node), message)

    def unknown(self, node: ast.AST, kind: str, name: str) -> NativeError:
        """The error that nothing is known of *name*, to be raised by the caller."""
        error = self.error(node, f"unknown {kind} {name!r}{did_you_mean(name, sorted(self._known()))}")
        error.unknown = name
        return error

    def unassigned(self, node: ast.AST, name: str) -> NativeError:
        """The error that the local *name* is used before it has a value, to be raised by the caller."""
        advice = "assign it first"
        if isinstance(self.namespace.get(name), GlobalVariable):
            advice = f"declare `global {name}`"
        elif name in self.namespace:
            advice = "it is local here, because the function assigns to it; rename it"
        return self.error(node, f"{name!r} is used before a value is assigned to it: {advice}")

    def undeclared(self, node: ast.AST, message: str, cause: Exception) -> NativeError:
        """The error *message* about a declaration that *cause* keeps from being understood."""
        error = self.error(node, message)
        error.unknown = str(getattr(cause, "name", None) or "")
        return error

    def is_local(self, name: str) -> bool:
        """Whether *name* is a local variable by Python's rule: assigned somewhere in the function."""
        return name in self.assigned

    def static(self, node: ast.AST) -> Any:
        """The Python object that a name or a dotted name denotes, MISSING when it starts with a local."""
        if isinstance(node, ast.Name):
            return MISSING if self.is_local(node.id) else self._lookup(node)
        if isinstance(node, ast.Attribute):
            owner = self.static(node.value)
            if isinstance(owner, (ModuleType, type)):
                return self._member(node, owner)
        return MISSING

    def type_of(self, node: ast.expr) -> Type:
        """The type that the annotation *node* denotes."""
        code = compile(ast.Expression(node), self.origin.filename, "eval")
        try:
            return resolve(code, self.namespace)
        except NameError as error:
            raise self._unknown_type(node, str(error.name)) from None
        except (TypeError, AttributeError, SyntaxError) as error:
            raise self.error(node, str(error)) from None

    def _unknown_type(self, node: ast.expr, name: str) -> NativeError:
        places = (part for part in ast.walk(node) if isinstance(part, ast.Name) and part.id == name)
        at = next(places, node)
        if self.is_local(name):
            return self.error(at, f"{name} is a variable, not a type")
        return self.unknown(at, "type", name)

    def _lookup(self, node: ast.Name) -> Any:
        try:
            return self.namespace[node.id]
        except KeyError:
            raise self.unknown(node, "name", node.id) from None

    def _member(self, node: ast.Attribute, owner: Any) -> Any:
        try:
            return getattr(owner, node.attr)
        except AttributeError:
            raise self.error(
                node, f"{owner.__name__} has no {node.attr!r}{did_you_mean(node.attr, dir(owner))}"
            ) from None

    def _known(self) -> set[str]:
        return set(self.locals) | set(self.namespace)


def assigned_names(function: ast.FunctionDef) -> tuple[frozenset[str], frozenset[str]]:
    """The names that *function* binds (parameters included), and those that it declares `global`."""
    bound = {argument.arg for argument in function.args.args}
    declared: set[str] = set()
    for statement in statements(function):
        bound.update(target.id for target in _targets(statement) if isinstance(target, ast.Name))
        if isinstance(statement, ast.Global):
            declared.update(statement.names)
    return frozenset(bound - declared), frozenset(declared)


def _targets(statement: ast.AST) -> list[ast.expr]:
    if isinstance(statement, ast.Assign):
        return statement.targets
    if isinstance(statement, (ast.AugAssign, ast.AnnAssign, ast.For)):
        return [statement.target]
    return []


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
    fits = len(assumed) == len(arguments)
    untyped = next((argument for argument in arguments if argument.annotation is None), None)
    if assumed and not fits and untyped is not None:
        what = f"a handler of this kind has {len(assumed)} parameters, not {len(arguments)}; another function must type them all"
        raise scope.error(untyped, f"parameter {untyped.arg} has no type: {what}")
    defaults = assumed if fits else [None] * len(arguments)
    parameters = tuple(_parameter_type(scope, *pair) for pair in zip(arguments, defaults, strict=True))
    return Function(_result_type(scope, node, result), parameters)


def _check_parameters(scope: Scope, node: ast.FunctionDef) -> None:
    arguments = node.args
    for extra in (arguments.vararg, arguments.kwarg, *arguments.kwonlyargs, *arguments.posonlyargs):
        if extra is not None:
            raise scope.error(extra, "only plain parameters are in the native language: write `name: type`")
    for default in arguments.defaults:
        raise scope.error(default, "defaults are not in the native language: the caller passes every argument")
    for parameter in getattr(node, "type_params", ()):
        raise scope.error(parameter, "type parameters are not in the native language: write a function for each type")


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
        raise scope.error(node.returns, f"a function cannot return {type_}: take a pointer and fill what it points to")
    return type_
