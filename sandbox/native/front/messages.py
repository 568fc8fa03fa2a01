"""The front end's messages: the error, and what to write instead."""

from __future__ import annotations

import ast
from typing import Any

from sandbox.native.front.declarations import Zeroed
from sandbox.native.intrinsics import Intrinsic
from sandbox.native.types import LITERAL, NULL, Bool, Function, Int, Literal, Pointer, Type, i64, u64, void

LONGEST_QUOTE = 30
FOREIGN = "is not in the native language"
NO_FLOAT = "the native language has no floating point: use scaled integers"

EXPRESSIONS = {
    "Lambda": ("lambda", "write a @native function"),
    "List": ("a list", "declare `x: array[T, n] = zeroed`"),
    "Tuple": ("a tuple", "use separate names or a struct"),
    "Dict": ("a dict", "use an array or a struct"),
    "Set": ("a set", "use the bits of a u64"),
    "ListComp": ("a comprehension", "write a loop"),
    "SetComp": ("a comprehension", "write a loop"),
    "DictComp": ("a comprehension", "write a loop"),
    "GeneratorExp": ("a generator", "write a loop"),
    "JoinedStr": ("an f-string", "record numbers, and format them in Python"),
    "TemplateStr": ("a t-string", "record numbers, and format them in Python"),
    "Await": ("await", "native code cannot wait"),
    "Yield": ("yield", "write a loop, or call a function pointer"),
    "YieldFrom": ("yield from", "write a loop, or call a function pointer"),
    "NamedExpr": (":=", "assign in a line of its own"),
    "Starred": ("*", "write the elements out"),
}
STATEMENTS = {
    "Try": ("try", "nothing raises in native code, test results instead"),
    "TryStar": ("try", "nothing raises in native code, test results instead"),
    "Raise": ("raise", "return an error code"),
    "With": ("with", "there are no context managers, write the calls out"),
    "AsyncWith": ("async with", "native code cannot wait"),
    "AsyncFor": ("async for", "native code cannot wait"),
    "Assert": ("assert", "write `if not ...: trap()`"),
    "FunctionDef": ("a function inside a function", "define it at module level with @native"),
    "AsyncFunctionDef": ("a function inside a function", "define it at module level with @native"),
    "ClassDef": ("a class inside a function", "declare it at module level with @struct"),
    "Import": ("import", "import at module level"),
    "ImportFrom": ("import", "import at module level"),
    "Delete": ("del", "there are no objects to delete, remove it"),
    "Nonlocal": ("nonlocal", "use a global_var"),
    "Match": ("match", "write if and elif"),
    "TypeAlias": ("type", "name types at module level"),
}
OPERATORS: dict[type[ast.AST], str] = {
    ast.Is: f"`is` {FOREIGN}: write ==",
    ast.IsNot: f"`is not` {FOREIGN}: write !=",
    ast.In: f"`in` {FOREIGN}: compare with each value",
    ast.NotIn: f"`not in` {FOREIGN}: compare with each value",
    ast.Div: "/ makes a float: write // for integer division",
    ast.Pow: f"** {FOREIGN}: write a product, or << for a power of two",
    ast.MatMult: f"@ {FOREIGN}: write a loop over the elements",
}
CONSTANTS = {"str": "a string", "bytes": "a bytes constant", "complex": "a complex number", "ellipsis": "..."}


def quote(node: ast.AST) -> str:
    """The source of *node* if it is short, for use in advice; else three dots."""
    text = ast.unparse(node)
    return text if len(text) <= LONGEST_QUOTE and "\n" not in text else "..."


def unsupported(node: ast.AST) -> str:
    """The message for an expression or a statement that is not in the language."""
    name = type(node).__name__
    what, instead = {**EXPRESSIONS, **STATEMENTS}.get(name, (name, ""))
    return f"{what} {FOREIGN}: {instead}" if instead else f"{what} {FOREIGN}"


def unsupported_constant(value: Any) -> str:
    """The message for a constant of a type that the language does not have."""
    if value is None:
        return "None is not a value here: write null for a pointer"
    if isinstance(value, float):
        return f"{value!r} is a float, and {NO_FLOAT}"
    kind = type(value).__name__
    return f"{CONSTANTS.get(kind, kind)} {FOREIGN}: constants are integers, True, False and null"


def condition(node: ast.AST, type_: Type) -> str:
    """The message for a condition that is not a bool."""
    if isinstance(type_, Literal):
        return "a condition must be a bool, not an integer: write True or False"
    text = quote(node)
    text = text if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript, ast.Call)) else f"({text})"
    zero = "null" if isinstance(type_, (Pointer, Function)) else "0"
    return f"a condition must be a bool, not {type_}: write `{text} != {zero}`"


def mismatch(node: ast.AST, found: Type, expected: Type) -> str:
    """The message for a value of type *found* where *expected* is needed."""
    if found == void:
        return f"this returns nothing, but {expected} is needed"
    if found in (LITERAL, NULL):
        return _mismatched_constant(node, found, expected)
    problem = f"this is {found}, but {expected} is needed"
    if isinstance(expected, Bool):
        return f"{problem}: write `{quote(node)} != {'0' if isinstance(found, Int) else 'null'}`"
    if isinstance(found, Function) or cast_problem(found, expected):
        return problem
    return f"{problem}: write cast({expected}, {quote(node)})"


def _mismatched_constant(node: ast.AST, found: Type, expected: Type) -> str:
    if found == NULL:
        return f"null is a pointer, but {expected} is needed: write {'False' if isinstance(expected, Bool) else '0'}"
    if isinstance(expected, Bool):
        return "an integer is not a bool: write True or False"
    text = quote(node)
    if isinstance(expected, (Pointer, Function)):
        return f"{text} is not {expected}: write null, or cast({expected}, {text})"
    return f"{text} is not {expected}"


def between(what: str, left: Type, right: Type, node: ast.AST) -> str:
    """The message for two operands of different types; *node* is the right one."""
    if void in (left, right):
        return f"{what} needs a value, but this returns nothing"
    hint = "" if cast_problem(right, left) else f": write cast({left}, {quote(node)})"
    other = ", or cast the other" if hint and not cast_problem(left, right) else ""
    return f"{what} needs two values of one type, not {left} and {right}{hint}{other}"


def cast_problem(source: Type, wanted: Type) -> str:
    """Why cast() cannot make *wanted* of *source*; empty when it can."""
    addresses = (Pointer, Function)
    if isinstance(source, (Int, Bool)) and isinstance(wanted, Int):
        return ""
    if isinstance(wanted, Bool):
        return "cast to bool is ambiguous: write `x != 0`"
    if not wanted.is_scalar:
        return f"cast() makes integers and pointers, not {wanted}"
    if source == void:
        return f"this returns nothing, so it cannot be cast to {wanted}"
    if source in (u64, i64, *_addresses(source)) and isinstance(wanted, addresses):
        return ""
    if isinstance(source, addresses) and wanted in (u64, i64):
        return ""
    return f"{source} cannot be cast to {wanted}: cast it to u64 first"


def _addresses(source: Type) -> tuple[Type, ...]:
    return (source,) if isinstance(source, (Pointer, Function)) else ()


def not_native(name: str, value: Any) -> str:
    """Why the Python object *value* cannot be used in a native function, and what to write instead."""
    if isinstance(value, Intrinsic):
        return f"{name} is an intrinsic, not a value: call it"
    if value is range:
        return "range() is only for loops: write `for i in range(n)`"
    if isinstance(value, type) and value.__module__ == "builtins":
        return f"{name} is a Python type: write cast(u64, ...), or another type of the native language"
    if isinstance(value, Zeroed):
        return "zeroed only initialises a local array or struct: write `x: array[T, n] = zeroed`"
    if isinstance(value, type) or (isinstance(value, Type) and not value.is_scalar):
        return f"{name} is a type, not a value: write sizeof({name})"
    if isinstance(value, Type):
        return f"{name} is a type, not a value: write cast({name}, ...) or sizeof({name})"
    if isinstance(value, float):
        return f"{name} is a float, and {NO_FLOAT}"
    if callable(value):
        return f"{name} is a Python function: native code calls only @native functions and extern symbols"
    kind = type(value).__name__
    return f"{name} is a Python object ({kind}), which machine code cannot access: use const() or global_var()"
