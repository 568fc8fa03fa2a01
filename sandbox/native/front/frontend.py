"""The front end: checking a function's syntax tree, with the names it sees, to a typed tree."""

from __future__ import annotations

import ast

from sandbox.native.front import access, messages, operators
from sandbox.native.front.annotations import Namespace
from sandbox.native.front.declarations import Declared, Zeroed
from sandbox.native.front.errors import LocatedError, Origin, error_at, position
from sandbox.native.front.expressions import Expressions
from sandbox.native.front.flow import check_flow
from sandbox.native.front.scope import Scope, assigned_names
from sandbox.native.tree import (
    Assign,
    Break,
    Call,
    Constant,
    Continue,
    Evaluate,
    Expression,
    ForRange,
    GlobalPlace,
    If,
    IntrinsicCall,
    LocalPlace,
    Place,
    Return,
    Statement,
    TypedFunction,
    Update,
    While,
    Zero,
)
from sandbox.native.types import LITERAL, NULL, Function, Int, Type, u64, void

MAX_STEP = 1 << 31
"""The greatest step of range(), in either direction."""


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
        raise scope.error(
            node, f"the statements of {node.name} are nested too deeply: split it into functions"
        ) from None


class Statements:
    """Checks the statements of one function; meanwhile the scope records the types of the locals."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.expressions = Expressions(scope)

    def block(self, body: list[ast.stmt]) -> list[Statement]:
        """The statements of *body*, checked in order."""
        return [checked for node in body for checked in self._statement(node)]

    def _statement(self, node: ast.stmt) -> list[Statement]:
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            raise self.scope.error(node, messages.unsupported(node))
        result = method(node)
        return result if isinstance(result, list) else [result]

    # assignments

    def _assign(self, node: ast.Assign) -> Statement:
        if len(node.targets) != 1:
            raise self.scope.error(node, "a chained assignment is not in the native language: write two assignments")
        return self._store(node, node.targets[0], node.value)

    def _store(self, node: ast.stmt, target: ast.expr, value: ast.expr) -> Statement:
        if isinstance(target, (ast.Tuple, ast.List)):
            raise self.scope.error(target, "assign one name at a time: tuples are not in the native language")
        if isinstance(target, ast.Name) and self._is_new(target):
            return self._introduce(node, target, value, None)
        place = self.target(target)
        if not place.type.is_scalar:
            raise self.scope.error(
                node, f"{place.type} cannot be assigned as a whole: write copy(addressof(a), addressof(b))"
            )
        return Assign(position(node), place, self.expressions.value(value, place.type))

    def _is_new(self, target: ast.Name) -> bool:
        return self.scope.is_local(target.id) and target.id not in self.scope.locals

    def target(self, node: ast.expr) -> Place:
        """The place that an assignment to *node* changes."""
        place = self.expressions.place(node)
        if isinstance(node, ast.Name) and isinstance(place, GlobalPlace) and node.id not in self.scope.globals:
            raise self.scope.error(node, f"{node.id} is global: declare `global {node.id}` to assign to it")
        return place

    def _introduce(self, node: ast.stmt, target: ast.Name, value: ast.expr, type_: Type | None) -> Statement:
        if type_ is None:
            checked = self.expressions.infer(value)
            if checked.type == LITERAL:
                message = f"{target.id} has no width yet: write `{target.id}: u64 = ...`"
                raise self.scope.error(target, message)
            if checked.type == NULL:
                raise self.scope.error(target, f"null alone has no type: write `{target.id}: ptr[T] = null`")
            if checked.type == void:
                raise self.scope.error(value, "this returns nothing, so there is nothing to assign")
        else:
            checked = self.expressions.value(value, type_)
        self._declare(target, checked.type)
        return Assign(position(node), LocalPlace(position(target), checked.type, target.id), checked)

    def _annassign(self, node: ast.AnnAssign) -> list[Statement]:
        target, scope = node.target, self.scope
        if not isinstance(target, ast.Name) or not node.simple:
            raise scope.error(node, "only a variable can be declared with a type: remove the annotation")
        type_ = scope.type_of(node.annotation)
        known = scope.locals.get(target.id)
        if known is not None and known != type_:
            raise scope.error(node, f"{target.id} is already {known}: use another name, a variable has one type")
        if not type_.is_scalar:
            return [self._zeroed(node, target, type_)]
        if node.value is not None:
            return [self._introduce(node, target, node.value, type_)]
        self._declare(target, type_)
        return []

    def _declare(self, target: ast.Name, type_: Type) -> None:
        name, visible = target.id, self.scope.namespace
        if name in visible and isinstance(visible[name], Declared):
            raise self.scope.error(target, f"{name} is global: declare `global {name}`, or choose another name")
        self.scope.locals[name] = type_

    def _zeroed(self, node: ast.AnnAssign, target: ast.Name, type_: Type) -> Statement:
        if type_ == void:
            raise self.scope.error(node, "a variable cannot be void: declare another type")
        if node.value is None or not isinstance(self.scope.static(node.value), Zeroed):
            raise self.scope.error(node, f"a local {type_} must start as zero: write `{target.id}: {type_} = zeroed`")
        self._declare(target, type_)
        return Zero(position(node), LocalPlace(position(target), type_, target.id))

    def _augassign(self, node: ast.AugAssign) -> Statement:
        if isinstance(node.target, ast.Name) and self._is_new(node.target):
            raise self.scope.unassigned(node.target, node.target.id)
        place, check = self.target(node.target), self.expressions
        operator = operators.arithmetic(check, node, node.op)
        operators.check_operands(check, node, operator, place.type)
        atomic = access.shared_update(check, node, place, operator)
        if atomic is not None:
            return Evaluate(position(node), atomic)
        if operator in operators.SHIFTS:
            value = operators.shift_count(check, operators.operand(check, node.value)).value
        else:
            value = check.value(node.value, place.type)
        return Update(position(node), place, operator, value)

    # expressions, and what does nothing

    def _expr(self, node: ast.Expr) -> list[Statement]:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return []
        value = self.expressions.infer(node.value)
        if not isinstance(value, (Call, IntrinsicCall)):
            raise self.scope.error(node, "the value of this expression is not used: assign it, or remove it")
        return [Evaluate(position(node), value)]

    def _pass(self, _node: ast.Pass) -> list[Statement]:
        return []

    def _global(self, node: ast.Global) -> list[Statement]:
        for name in node.names:
            found = self.expressions.examine(ast.copy_location(ast.Name(name, ast.Load()), node))
            if not isinstance(found, GlobalPlace):
                raise self.scope.error(node, f"{name} is not a global_var: remove it from `global`")
        return []

    # control flow

    def _return(self, node: ast.Return) -> Statement:
        result, at = self.scope.result, position(node)
        if result == void:
            if node.value is not None:
                raise self.scope.error(
                    node.value, "this function returns void: write `return` alone, or declare a result type"
                )
            return Return(at, None)
        if node.value is None and self.scope.implicit is not None:
            return Return(at, Constant(at, result, self.scope.implicit))
        if node.value is None:
            raise self.scope.error(node, f"this function returns {result}: write `return value`")
        return Return(at, self.expressions.value(node.value, result))

    def _if(self, node: ast.If) -> Statement:
        condition = self.expressions.condition(node.test)
        then = self.block(node.body)
        return If(position(node), condition, then, self.block(node.orelse))

    def _while(self, node: ast.While) -> Statement:
        self._no_else(node)
        condition = self.expressions.condition(node.test)
        return While(position(node), condition, self._loop_body(node.body))

    def _for(self, node: ast.For) -> Statement:
        self._no_else(node)
        if not isinstance(node.target, ast.Name):
            message = f"the variable of a for loop must be a name, not {messages.quote(node.target)}"
            raise self.scope.error(node.target, message)
        start, stop, step = self._range(node.iter, node.target)
        variable = self._loop_variable(node.target, stop.type)
        body = self._loop_body(node.body)
        return ForRange(position(node), variable, start, stop, step, body)

    def _loop_variable(self, target: ast.Name, type_: Type) -> LocalPlace:
        known = self.scope.locals.setdefault(target.id, type_)
        if not self.scope.is_local(target.id):
            raise self.scope.error(target, f"the variable of a for loop must be local: remove `global {target.id}`")
        if known != type_:
            message = f"{target.id} is already {known}, but this range() gives {type_}: use another name, or cast"
            raise self.scope.error(target, message)
        return LocalPlace(position(target), type_, target.id)

    def _range(self, node: ast.expr, target: ast.Name) -> tuple[Expression, Expression, int]:
        if not isinstance(node, ast.Call) or self.scope.static(node.func) is not range:
            raise self.scope.error(node, "a for loop must iterate over range(): write `for i in range(n)`")
        if node.keywords or not 1 <= len(node.args) <= 3:
            raise self.scope.error(node, "write range(stop), range(start, stop) or range(start, stop, step)")
        step = self._step(node.args[2]) if len(node.args) == 3 else 1
        start, stop = self._bounds(node)
        if stop.type == LITERAL:
            type_ = self.scope.locals.get(target.id, u64)
            return self._settled(start, type_), self._settled(stop, type_), step
        return start.value, stop.value, step

    def _settled(self, bound: operators.Operand, type_: Type) -> Expression:
        return self.expressions.coerce(bound.node, bound.value, type_)

    def _bounds(self, node: ast.Call) -> tuple[operators.Operand, operators.Operand]:
        first, last = node.args[0], node.args[min(len(node.args), 2) - 1]
        stop = operators.operand(self.expressions, last)
        if stop.type != LITERAL and not isinstance(stop.type, Int):
            raise self.scope.error(last, f"range() takes integers, not {stop.type}")
        if first is last:
            start = operators.Operand(first, Constant(stop.value.at, LITERAL, 0))
        else:
            start = operators.operand(self.expressions, first)
        return operators.settle(self.expressions, start, stop, "range()")

    def _step(self, node: ast.expr) -> int:
        step = self.expressions.infer(node)
        if not isinstance(step, Constant) or not 0 < abs(step.value) <= MAX_STEP:
            message = f"the step of range() must be a constant from {-MAX_STEP} to {MAX_STEP}, and not 0"
            raise self.scope.error(node, message)
        return step.value

    def _loop_body(self, body: list[ast.stmt]) -> list[Statement]:
        self.scope.loops += 1
        checked = self.block(body)
        self.scope.loops -= 1
        return checked

    def _no_else(self, node: ast.While | ast.For) -> None:
        if node.orelse:
            raise self.scope.error(
                node.orelse[0], "else after a loop is not in the native language: set a bool before break"
            )

    def _break(self, node: ast.Break) -> Statement:
        return Break(position(node))

    def _continue(self, node: ast.Continue) -> Statement:
        return Continue(position(node))
