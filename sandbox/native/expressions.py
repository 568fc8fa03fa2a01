"""Checking expressions: from Python's syntax tree to typed expressions and places."""

from __future__ import annotations

import ast
from typing import Any

from . import calls
from .declarations import Const, Extern, GlobalVariable
from .errors import position
from .intrinsics import Intrinsic
from .scope import MISSING, Scope, similar
from .structs import Struct
from .tree import (
    BOOL,
    AddressOf,
    Binary,
    Callee,
    Compare,
    Conditional,
    Constant,
    Dereference,
    ElementPlace,
    Expression,
    FieldPlace,
    FunctionAddress,
    GlobalPlace,
    Load,
    LocalPlace,
    Logic,
    NullPointer,
    OffsetPlace,
    Place,
    Unary,
)
from .types import LITERAL, NULL, Array, Bool, Function, Int, Pointer, Type, u64, void

OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%",
    ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>",
}  # fmt: skip
COMPARISONS: dict[type[ast.AST], str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip
SHIFTS = ("<<", ">>")
MAX_LITERAL_BITS = 128


class NullObject:
    """The value of the name `null`: the pointer to nothing."""

    def __repr__(self) -> str:
        return "null"


class Zeroed:
    """The value of the word `zeroed`: what a local array or struct starts as."""

    def __repr__(self) -> str:
        return "zeroed"


null: Any = NullObject()
zeroed: Any = Zeroed()


class Expressions:
    """Checks the expressions of one function; each method returns a node or raises NativeError."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    def value(self, node: ast.expr, expected: Type) -> Expression:
        """*node* as a value of the type *expected*."""
        return self.coerce(node, self.infer(node, expected), expected)

    def condition(self, node: ast.expr) -> Expression:
        """*node* as a bool that decides something."""
        value = self.infer(node)
        if value.type == BOOL:
            return value
        hint = "x != null" if isinstance(value.type, (Pointer, Function)) else "x != 0"
        raise self.scope.error(node, f"a condition is a bool, not {value.type}: write `{hint}`")

    def infer(self, node: ast.expr, expected: Type | None = None) -> Expression:
        """*node* as a value of the type that it has by itself (perhaps a literal without a width).

        *expected* is only a wish: it gives literals inside a conditional or a call a type to take.
        """
        found = self.examine(node, expected)
        if isinstance(found, Expression):
            return found
        if not found.type.is_scalar:
            raise self.scope.error(
                node, f"{found.type} does not fit a register: name an element or a field, or use addressof()"
            )
        return Load(found.at, found.type, found)

    def place(self, node: ast.expr) -> Place:
        """*node* as something that has an address."""
        found = self.examine(node)
        if isinstance(found, Place):
            return found
        raise self.scope.error(node, "this has no address: use a variable, p.field or p[i]")

    def examine(self, node: ast.expr, expected: Type | None = None) -> Expression | Place:
        """*node* as whatever it is."""
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            raise self.scope.error(node, unsupported(node))
        if method in (self._ifexp, self._call):
            return method(node, expected)  # type: ignore[no-any-return]
        return method(node)  # type: ignore[no-any-return]

    def coerce(self, node: ast.expr, value: Expression, expected: Type) -> Expression:
        """*value*, with its type settled by the context *expected*; NativeError when they do not go together."""
        if value.type == expected:
            return value
        if value.type == LITERAL and isinstance(value, Constant):
            return self._settle(node, value, expected)
        if value.type == NULL and isinstance(expected, (Pointer, Function)):
            return NullPointer(value.at, expected)
        raise self.scope.error(node, _mismatch(value.type, expected))

    # names and constants

    def _constant(self, node: ast.Constant) -> Expression:
        if isinstance(node.value, bool):
            return Constant(position(node), BOOL, int(node.value))
        if isinstance(node.value, int):
            return self._literal(node, node.value)
        raise self.scope.error(node, _unsupported_constant(node.value))

    def _name(self, node: ast.Name) -> Expression | Place:
        scope = self.scope
        if not scope.is_local(node.id):
            return self._object(node, node.id, scope.static(node))
        if node.id not in scope.locals:
            raise scope.error(node, f"{node.id!r} is read before anything is assigned to it")
        return LocalPlace(position(node), scope.locals[node.id], node.id)

    def _object(self, node: ast.expr, name: str, value: Any) -> Expression | Place:
        at = position(node)
        if isinstance(value, bool):
            return Constant(at, BOOL, int(value))
        if isinstance(value, int):
            return self._literal(node, int(value))
        if isinstance(value, Const):
            return Constant(at, value.type, value.value)
        if isinstance(value, NullObject):
            return NullPointer(at, NULL)
        if isinstance(value, (GlobalVariable, Extern)):
            return self._declared(node, name, value)
        if isinstance(value, Callee):
            return FunctionAddress(at, value.signature, value)
        raise self.scope.error(node, not_native(name, value))

    def _declared(self, node: ast.expr, name: str, value: GlobalVariable | Extern) -> Expression | Place:
        try:
            type_ = value.type
        except (TypeError, NameError) as error:
            raise self.scope.error(node, f"the declaration of {name!r}: {error}") from None
        if isinstance(value, Extern) and isinstance(type_, Function):
            return FunctionAddress(position(node), type_, value)
        return GlobalPlace(position(node), type_, name, value)

    def _literal(self, node: ast.expr, value: int, complement: bool = False) -> Constant:
        if value.bit_length() > MAX_LITERAL_BITS:
            raise self.scope.error(node, "this constant needs more than 64 bits")
        return Constant(position(node), LITERAL, value, complement)

    def _settle(self, node: ast.expr, value: Constant, expected: Type) -> Constant:
        if not isinstance(expected, Int):
            raise self.scope.error(node, _mismatch(LITERAL, expected, value.value))
        number = expected.wrap(value.value) if value.complement else value.value
        if not expected.holds(number):
            limits = f"{expected.minimum} to {expected.maximum}"
            raise self.scope.error(node, f"{number} does not fit {expected} ({limits})")
        return Constant(value.at, expected, number)

    # places

    def _attribute(self, node: ast.Attribute) -> Expression | Place:
        static = self.scope.static(node)
        if static is not MISSING:
            return self._object(node, ast.unparse(node), static)
        base = self._pointee(node.value)
        if not isinstance(base.type, Struct):
            raise self.scope.error(node, f"{base.type} has no fields, so no {node.attr!r}")
        return self.field(node, base, base.type, node.attr)

    def field(self, node: ast.expr, base: Place, struct: Struct, name: str) -> FieldPlace:
        """The field *name* of *base*."""
        try:
            fields = struct.fields
        except (TypeError, NameError) as error:
            raise self.scope.error(node, str(error)) from None
        if name not in fields:
            known = similar(name, set(fields)) or f"; it has {', '.join(fields)}"
            raise self.scope.error(node, f"struct {struct} has no field {name!r}{known}")
        return FieldPlace(position(node), fields[name], base, struct, name)

    def _pointee(self, node: ast.expr) -> Place:
        found = self.examine(node)
        if isinstance(found, Place) and not isinstance(found.type, Pointer):
            return found
        value = found if isinstance(found, Expression) else Load(found.at, found.type, found)
        if isinstance(value.type, Pointer):
            return Dereference(value.at, value.type.target, value)
        raise self.scope.error(node, f"{value.type} has no fields and no elements")

    def _subscript(self, node: ast.Subscript) -> Place:
        if isinstance(node.slice, (ast.Slice, ast.Tuple)):
            raise self.scope.error(node, "slices are not in the native language: index one element")
        base = self.examine(node.value)
        index, at = self._index(node.slice), position(node)
        if isinstance(base, Place) and isinstance(base.type, Array):
            self._check_bound(node.slice, index, base.type)
            return ElementPlace(at, base.type.element, base, index)
        pointer = base if isinstance(base, Expression) else Load(base.at, base.type, base)
        if not isinstance(pointer.type, Pointer):
            raise self.scope.error(node.value, f"{pointer.type} cannot be indexed")
        if pointer.type.target == void:
            raise self.scope.error(node.value, "ptr[void] points to nothing known: cast it to a typed pointer")
        return OffsetPlace(at, pointer.type.target, pointer, index)

    def _index(self, node: ast.expr) -> Expression:
        index = self.infer(node)
        if isinstance(index, Constant) and index.type == LITERAL:
            signed = Int(64, signed=index.value < 0)
            return self._settle(node, index, signed)
        if not isinstance(index.type, Int):
            raise self.scope.error(node, f"an index is an integer, not {index.type}")
        return index

    def _check_bound(self, node: ast.expr, index: Expression, type_: Array) -> None:
        if isinstance(index, Constant) and not 0 <= index.value < type_.count:
            raise self.scope.error(node, f"index {index.value} is outside {type_}")

    # operators

    def _unaryop(self, node: ast.UnaryOp) -> Expression:
        if isinstance(node.op, ast.Not):
            return Unary(position(node), BOOL, "not", self.condition(node.operand))
        operand = self.infer(node.operand)
        if operand.type == LITERAL and isinstance(operand, Constant):
            return self._fold_unary(node, operand.value)
        if not isinstance(operand.type, Int):
            word = {ast.Invert: "~", ast.USub: "-", ast.UAdd: "+"}[type(node.op)]
            raise self.scope.error(node, f"{word} needs an integer, not {operand.type}")
        if isinstance(node.op, ast.UAdd):
            return operand
        operator = "~" if isinstance(node.op, ast.Invert) else "-"
        return Unary(position(node), operand.type, operator, operand)

    def _fold_unary(self, node: ast.UnaryOp, value: int) -> Constant:
        if isinstance(node.op, ast.Invert):
            return self._literal(node, ~value, complement=True)
        return self._literal(node, -value if isinstance(node.op, ast.USub) else value)

    def _binop(self, node: ast.BinOp) -> Expression:
        return self.binary(node, node.op, node.left, self.infer(node.left), node.right)

    def binary(
        self, node: ast.AST, op: ast.operator, left_node: ast.expr, left: Expression, right_node: ast.expr
    ) -> Expression:
        """`left op right`, both operands checked against each other."""
        operator = self.operator(node, op)
        right = self.infer(right_node)
        if isinstance(left, Constant) and isinstance(right, Constant) and left.type == right.type == LITERAL:
            return self._fold(node, operator, left, right)
        if operator in SHIFTS:
            return self._shift(node, operator, left_node, left, right_node, right)
        left, right = self.settle_pair(left_node, left, right_node, right, operator)
        self.check_operand(node, operator, left.type)
        return Binary(position(node), left.type, operator, left, right)

    def operator(self, node: ast.AST, op: ast.operator) -> str:
        """The name of *op*, or NativeError for one that the language does not have."""
        if type(op) in OPERATORS:
            return OPERATORS[type(op)]
        if isinstance(op, ast.Div):
            raise self.scope.error(node, "/ makes a float: write // for integer division")
        if isinstance(op, ast.Pow):
            raise self.scope.error(node, "** is not in the native language: write << or a product")
        raise self.scope.error(node, "@ is not in the native language")

    def check_operand(self, node: ast.AST, operator: str, type_: Type) -> None:
        """NativeError unless *operator* works on operands of *type_*."""
        if isinstance(type_, Pointer):
            raise self.scope.error(node, "no arithmetic on pointers: write addressof(p[i])")
        if not isinstance(type_, Int) and not (isinstance(type_, Bool) and operator in "&|^"):
            raise self.scope.error(node, f"{operator} needs integers, not {type_}")

    def _shift(
        self,
        node: ast.AST,
        operator: str,
        left_node: ast.expr,
        left: Expression,
        right_node: ast.expr,
        right: Expression,
    ) -> Expression:
        if left.type == LITERAL:
            raise self.scope.error(left_node, "this literal has no width: write cast(u64, ...) around it")
        self.check_operand(node, operator, left.type)
        right = self.shift_count(right_node, right)
        return Binary(position(node), left.type, operator, left, right)

    def shift_count(self, node: ast.expr, count: Expression) -> Expression:
        """*count*, an unsigned number of bits."""
        if count.type == LITERAL and isinstance(count, Constant):
            if count.value < 0:
                raise self.scope.error(node, "a negative shift count: shift the other way")
            return self._settle(node, count, u64)
        if not isinstance(count.type, Int) or count.type.signed:
            raise self.scope.error(node, f"a shift count is unsigned, not {count.type}: write cast(u32, ...)")
        return count

    def _fold(self, node: ast.AST, operator: str, left: Constant, right: Constant) -> Constant:
        assert isinstance(node, ast.expr)
        a, b = left.value, right.value
        if operator in ("//", "%") and b == 0:
            raise self.scope.error(node, "division by zero")
        if operator in SHIFTS and not 0 <= b <= MAX_LITERAL_BITS:
            raise self.scope.error(node, f"a shift by {b} bits")
        return self._literal(node, fold(operator, a, b), left.complement or right.complement)

    def settle_pair(
        self, left_node: ast.expr, left: Expression, right_node: ast.expr, right: Expression, what: str
    ) -> tuple[Expression, Expression]:
        """Both operands with one type: a literal or null takes the other's."""
        if left.type in (LITERAL, NULL) and right.type not in (LITERAL, NULL):
            return self.coerce(left_node, left, right.type), right
        if right.type in (LITERAL, NULL) and left.type not in (LITERAL, NULL):
            return left, self.coerce(right_node, right, left.type)
        if left.type != right.type:
            hint = "; cast one of them" if isinstance(left.type, Int) and isinstance(right.type, Int) else ""
            raise self.scope.error(right_node, f"{what} between {left.type} and {right.type}{hint}")
        return left, right

    def _compare(self, node: ast.Compare) -> Expression:
        operands = [node.left, *node.comparators]
        values = [self.infer(operand) for operand in operands]
        for middle, value in zip(operands[1:-1], values[1:-1], strict=True):
            if not isinstance(value, Constant) and not isinstance(middle, ast.Name):
                raise self.scope.error(middle, "the middle of a chained comparison must be a name or a constant")
        links = [
            self._link(node, op, operands[i], values[i], operands[i + 1], values[i + 1])
            for i, op in enumerate(node.ops)
        ]
        result = links[-1]
        for link in reversed(links[:-1]):
            result = Logic(link.at, BOOL, "and", link, result)
        return result

    def _link(
        self,
        node: ast.Compare,
        op: ast.cmpop,
        left_node: ast.expr,
        left: Expression,
        right_node: ast.expr,
        right: Expression,
    ) -> Expression:
        operator = COMPARISONS.get(type(op))
        if operator is None:
            raise self.scope.error(node, "`is` and `in` are not in the native language: write == or !=")
        left, right = self.settle_pair(left_node, left, right_node, right, operator)
        if isinstance(left, Constant) and isinstance(right, Constant) and left.type == LITERAL:
            result = compare(operator, left.value, right.value)
            return Constant(position(node), BOOL, int(result))
        if not isinstance(left.type, Int) and operator not in ("==", "!=") and left.type != BOOL:
            raise self.scope.error(node, f"{operator} needs integers, not {left.type}: cast both to u64")
        return Compare(position(node), BOOL, operator, left, right)

    def _boolop(self, node: ast.BoolOp) -> Expression:
        operator = "and" if isinstance(node.op, ast.And) else "or"
        *first, result = [self.condition(value) for value in node.values]
        for value in reversed(first):
            result = Logic(position(node), BOOL, operator, value, result)
        return result

    def _ifexp(self, node: ast.IfExp, expected: Type | None) -> Expression:
        condition = self.condition(node.test)
        then, otherwise = self.infer(node.body, expected), self.infer(node.orelse, expected)
        if expected is not None and then.type in (LITERAL, NULL):
            then = self.coerce(node.body, then, expected)
        then, otherwise = self.settle_pair(node.body, then, node.orelse, otherwise, "if-else")
        if then.type in (LITERAL, NULL):
            raise self.scope.error(node, "neither value has a type: write `x: u64 = ...`")
        return Conditional(position(node), then.type, condition, then, otherwise)

    # calls

    def _call(self, node: ast.Call, expected: Type | None) -> Expression:
        return calls.check(self, node, expected)

    def address(self, node: ast.expr) -> Expression:
        """The address of the place *node*."""
        found = self.place(node)
        return AddressOf(position(node), Pointer(found.type), found)


def fold(operator: str, a: int, b: int) -> int:
    """Python's result of `a operator b` on unbounded integers."""
    match operator:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
        case "//":
            return a // b
        case "%":
            return a % b
        case "&":
            return a & b
        case "|":
            return a | b
        case "^":
            return a ^ b
        case "<<":
            return a << b
    return a >> b  # fmt: skip


def compare(operator: str, a: int, b: int) -> bool:
    """Python's result of the comparison `a operator b`."""
    orders = {"==": a == b, "!=": a != b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}
    return orders[operator]


def not_native(name: str, value: Any) -> str:
    """Why the Python object *value* cannot be used in a native function, and what to write instead."""
    if isinstance(value, Intrinsic):
        return f"{name} is an operation: call it"
    if isinstance(value, (Type, type)):
        return f"{name} is a type, not a value: write cast({name}, ...) or sizeof({name})"
    if isinstance(value, float):
        return f"{name} is a float: there is no floating point in the native language"
    if callable(value):
        return f"{name} is a Python function: native code calls only @native functions and extern symbols"
    kind = type(value).__name__
    return f"{name} is a Python object ({kind}), which machine code cannot reach: use const() or global_var()"


def unsupported(node: ast.AST) -> str:
    """What to say about an expression that is not in the language."""
    instead = {
        "Lambda": "lambda: write a @native function",
        "List": "a list: declare `x: array[T, n]`",
        "Tuple": "a tuple: use separate names or a struct",
        "Dict": "a dict",
        "Set": "a set",
        "ListComp": "a comprehension: write a loop",
        "SetComp": "a comprehension: write a loop",
        "DictComp": "a comprehension: write a loop",
        "GeneratorExp": "a generator: write a loop",
        "JoinedStr": "an f-string",
        "Await": "await",
        "Yield": "yield",
        "YieldFrom": "yield",
        "NamedExpr": ":=, assign in a line of its own",
        "Starred": "*: write the arguments out",
    }
    return f"not in the native language: {instead.get(type(node).__name__, type(node).__name__)}"


def _unsupported_constant(value: Any) -> str:
    if value is None:
        return "None is not a value here: write null for a pointer"
    if isinstance(value, float):
        return "there is no floating point in the native language"
    return f"not in the native language: a {type(value).__name__} constant"


def _mismatch(found: Type, expected: Type, number: int | None = None) -> str:
    if isinstance(expected, Bool) and isinstance(found, (Int, type(LITERAL))):
        return "an integer is not a bool: write `x != 0`"
    if isinstance(expected, (Pointer, Function)) and found == LITERAL:
        return f"{number} is not {expected}: write null, or cast({expected}, ...)"
    if found == void:
        return f"this returns nothing, and {expected} is needed"
    return f"this is {found}, and {expected} is needed: write cast({expected}, ...)"
