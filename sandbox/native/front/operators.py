"""Checking operators: arithmetic, shifts, comparisons, logic; constants fold as Python's unbounded integers."""

from __future__ import annotations

import ast
import operator as op
from typing import NamedTuple

from sandbox.native.front import messages
from sandbox.native.front.checker import Checker
from sandbox.native.front.errors import position
from sandbox.native.tree import BOOL, Binary, Compare, Constant, Expression, Extreme, Logic, Unary
from sandbox.native.types import LITERAL, NULL, Bool, Function, Int, Pointer, Type, u64

ARITHMETIC: dict[type[ast.AST], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%",
    ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>",
}  # fmt: skip
COMPARISONS: dict[type[ast.AST], str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip
UNARY: dict[type[ast.AST], str] = {ast.Invert: "~", ast.USub: "-", ast.UAdd: "+"}
FOLD = {
    "+": op.add, "-": op.sub, "*": op.mul, "//": op.floordiv, "%": op.mod,
    "&": op.and_, "|": op.or_, "^": op.xor, "<<": op.lshift, ">>": op.rshift,
    "==": op.eq, "!=": op.ne, "<": op.lt, "<=": op.le, ">": op.gt, ">=": op.ge,
}  # fmt: skip
SHIFTS = ("<<", ">>")
MAX_LITERAL_BITS = 128


class Operand(NamedTuple):
    """An operand: its syntax node and its typed expression."""

    node: ast.expr
    value: Expression

    @property
    def type(self) -> Type:
        """The type of the value."""
        return self.value.type

    @property
    def constant(self) -> Constant | None:
        """The value, if it is a constant that has no width yet."""
        return self.value if isinstance(self.value, Constant) and self.type == LITERAL else None


def operand(checker: Checker, node: ast.expr, wish: Type | None = None) -> Operand:
    """The operand *node*; *wish* is the type that the context prefers."""
    return Operand(node, checker.infer(node, wish))


def unary(checker: Checker, node: ast.UnaryOp, wish: Type | None) -> Expression:
    """`not x`, `-x`, `~x`, `+x`."""
    if isinstance(node.op, ast.Not):
        return Unary(position(node), BOOL, "not", checker.condition(node.operand))
    given, operator = operand(checker, node.operand, wish), UNARY[type(node.op)]
    if given.constant:
        return _fold_unary(checker, node, operator, given.constant)
    if not isinstance(given.type, Int):
        raise checker.scope.error(node, f"{operator} needs an integer, not {given.type}")
    return given.value if operator == "+" else Unary(position(node), given.type, operator, given.value)


def binary(checker: Checker, node: ast.BinOp, wish: Type | None) -> Expression:
    """`a + b` and its like."""
    operator = arithmetic(checker, node, node.op)
    left = operand(checker, node.left, wish)
    right = operand(checker, node.right, None if operator in SHIFTS else wish)
    if left.constant and right.constant:
        return _fold(checker, node, operator, left.constant, right.constant)
    if operator in SHIFTS:
        left, right = _shifted(checker, left, wish), shift_count(checker, right)
    else:
        for each in (left, right):
            check_arithmetic(checker, node, operator, each.type)
        left, right = settle(checker, left, right, operator)
    check_operands(checker, node, operator, left.type)
    return Binary(position(node), left.type, operator, left.value, right.value)


def arithmetic(checker: Checker, node: ast.AST, sign: ast.operator) -> str:
    """The spelling of *sign*; NativeError for an operator that the language does not have."""
    if type(sign) not in ARITHMETIC:
        raise checker.scope.error(node, messages.OPERATORS[type(sign)])
    return ARITHMETIC[type(sign)]


def check_arithmetic(checker: Checker, node: ast.AST, operator: str, type_: Type) -> None:
    """NativeError if *type_* is an address: there is no arithmetic on those."""
    if isinstance(type_, Pointer):
        raise checker.scope.error(node, "pointers have no arithmetic: write addressof(p[i]), or cast them to u64")
    if isinstance(type_, Function):
        raise checker.scope.error(node, f"{operator} needs integers, not {type_}")


def check_operands(checker: Checker, node: ast.AST, operator: str, type_: Type) -> None:
    """NativeError unless *operator* works on operands of *type_*."""
    check_arithmetic(checker, node, operator, type_)
    if not isinstance(type_, Int) and not (isinstance(type_, Bool) and operator in ("&", "|", "^")):
        raise checker.scope.error(node, f"{operator} needs integers, not {type_}")


def shift_count(checker: Checker, count: Operand) -> Operand:
    """*count*, an unsigned number of bits."""
    if count.constant:
        if count.constant.value < 0:
            raise checker.scope.error(count.node, f"the shift count is {count.constant.value}: shift the other way")
        return Operand(count.node, checker.coerce(count.node, count.value, u64))
    if not isinstance(count.type, Int) or count.type.signed:
        hint = f": write cast(u32, {messages.quote(count.node)})" if isinstance(count.type, Int) else ""
        raise checker.scope.error(count.node, f"a shift count must be an unsigned integer, not {count.type}{hint}")
    return count


def settle(checker: Checker, left: Operand, right: Operand, what: str) -> tuple[Operand, Operand]:
    """Both operands with one type: a literal or null takes the other's."""
    open_types = (LITERAL, NULL)
    if left.type in open_types and right.type not in open_types:
        return Operand(left.node, checker.coerce(left.node, left.value, right.type)), right
    if right.type in open_types and left.type not in open_types:
        return left, Operand(right.node, checker.coerce(right.node, right.value, left.type))
    if left.type != right.type:
        raise checker.scope.error(right.node, messages.between(what, left.type, right.type, right.node))
    return left, right


def compare(checker: Checker, node: ast.Compare, _wish: Type | None) -> Expression:
    """`a < b`, and `a < b < c` as `a < b and b < c`."""
    operands = [operand(checker, each) for each in (node.left, *node.comparators)]
    for middle in operands[1:-1]:
        if not isinstance(middle.value, Constant) and not isinstance(middle.node, ast.Name):
            message = "the middle of a chained comparison must be a name or a constant: assign it to a variable first"
            raise checker.scope.error(middle.node, message)
    links = [_link(checker, node, sign, *operands[i : i + 2]) for i, sign in enumerate(node.ops)]
    result = links[-1]
    for link in reversed(links[:-1]):
        result = Logic(link.at, BOOL, "and", link, result)
    return result


def logic(checker: Checker, node: ast.BoolOp, _wish: Type | None) -> Expression:
    """`a and b`, `a or b`."""
    operator = "and" if isinstance(node.op, ast.And) else "or"
    *first, result = [checker.condition(value) for value in node.values]
    for value in reversed(first):
        result = Logic(position(node), BOOL, operator, value, result)
    return result


def extreme(checker: Checker, node: ast.Call, name: str, wish: Type | None) -> Expression:
    """`min(a, b)` or `max(a, b)`; the arguments are two."""
    left, right = (operand(checker, each, wish) for each in node.args)
    if left.constant and right.constant:
        chosen = (min if name == "min" else max)(left.constant.value, right.constant.value)
        return checker.literal(node, chosen)
    left, right = settle(checker, left, right, f"{name}()")
    if not isinstance(left.type, Int):
        raise checker.scope.error(node, f"{name}() takes integers, not {left.type}")
    return Extreme(position(node), left.type, name, left.value, right.value)


def _shifted(checker: Checker, left: Operand, wish: Type | None) -> Operand:
    if not left.constant:
        return left
    if not isinstance(wish, Int):
        text = messages.quote(left.node)
        raise checker.scope.error(left.node, f"{text} has no width here: write cast(u64, {text})")
    return Operand(left.node, checker.coerce(left.node, left.value, wish))


def _link(checker: Checker, node: ast.Compare, sign: ast.cmpop, left: Operand, right: Operand) -> Expression:
    operator = COMPARISONS.get(type(sign))
    if operator is None:
        raise checker.scope.error(node, messages.OPERATORS[type(sign)])
    if left.constant and right.constant:
        return Constant(position(node), BOOL, int(FOLD[operator](left.constant.value, right.constant.value)))
    left, right = settle(checker, left, right, operator)
    if operator not in ("==", "!=") and not isinstance(left.type, (Int, Bool)):
        raise checker.scope.error(node, f"{operator} needs integers, not {left.type}: cast both to u64")
    return Compare(position(node), BOOL, operator, left.value, right.value)


def _fold_unary(checker: Checker, node: ast.UnaryOp, operator: str, given: Constant) -> Constant:
    if operator == "~":
        return checker.literal(node, ~given.value, complement=True)
    return checker.literal(node, -given.value if operator == "-" else given.value)


def _fold(checker: Checker, node: ast.BinOp, operator: str, left: Constant, right: Constant) -> Constant:
    a, b = left.value, right.value
    if operator in ("//", "%") and b == 0:
        raise checker.scope.error(node, f"{messages.quote(node)} divides by zero")
    if operator in SHIFTS and not 0 <= b <= MAX_LITERAL_BITS:
        raise checker.scope.error(node, f"a constant is shifted by {b} bits; the count must be 0 to {MAX_LITERAL_BITS}")
    return checker.literal(node, FOLD[operator](a, b), left.complement or right.complement)
