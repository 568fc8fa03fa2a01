"""The interface of the expression checker that the checks of operators, calls and containers use."""

from __future__ import annotations

import ast
from typing import Protocol

from sandbox.native.front.scope import Scope
from sandbox.native.tree import Constant, Expression
from sandbox.native.types import Type


class Checker(Protocol):
    """Turns syntax into typed expressions. `Expressions` is the one there is; each method raises NativeError."""

    scope: Scope

    def value(self, node: ast.expr, expected: Type) -> Expression:
        """*node* as a value of the type *expected*."""

    def condition(self, node: ast.expr) -> Expression:
        """*node* as a bool that decides something."""

    def infer(self, node: ast.expr, wish: Type | None = None) -> Expression:
        """*node* as a value of its own type; *wish* gives a width to a literal."""

    def coerce(self, node: ast.expr, value: Expression, expected: Type) -> Expression:
        """*value*, its type settled by *expected*."""

    def literal(self, node: ast.expr, value: int, complement: bool = False) -> Constant:
        """The integer *value*, which has no width yet."""

    def address(self, node: ast.expr) -> Expression:
        """The address of the place *node*."""
