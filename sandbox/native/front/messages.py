"""The front end's messages: the error, and what to write instead."""

from __future__ import annotations

import ast
from typing import Any

from sandbox.native.front.declarations import Zeroed
from sandbox.native.intrinsics import Intrinsic
from sandbox.native.types import LITERAL, NULL, Bool, Function, Int, Literal, Pointer, Type, i64, u64, void

LONGEST_QUOTE = 30
FOREIGN = "is not in the native language"

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
    "JoinedStr": ("an f-string", "there is no text in native code"),
    "TemplateStr": ("a t-string", "there is no text in native code"),
    "Await": ("await", "nothing here waits"),
    "Yield": ("yield", "write a loop, or call a function pointer"),
    "YieldFrom": ("yield from", "write a loop, or call a function pointer"),
    "NamedExpr": (":=", "assign in a line of its own"),
    "Starred": ("*", "write the elements out"),
}
STATEMENTS = {
    "Try": ("try", "nothing here raises"),
    "TryStar": ("try", "nothing here raises"),
    "Raise": ("raise", "return an error code"),
    "With": ("with", "nothing here has a context"),
    "AsyncWith": ("async with", "nothing here waits"),
    "AsyncFor": ("async for", "nothing here waits"),
    "Assert": ("assert", "write `if not ...: trap()`"),
    "FunctionDef": ("a function inside a function", "define it at module level with @native"),
    "AsyncFunctionDef": ("a function inside a function", "define it at module level with @native"),
    "ClassDef": ("a class inside a function", "declare it at module level with @struct"),
    "Import": ("import", "import at module level"),
    "ImportFrom": ("import", "import at module level"),
    "Delete": ("del", "there is nothing to delete"),
    "Nonlocal": ("nonlocal", "use a global_var"),
    "Match": ("match", "write if and elif"),
    "TypeAlias": ("type", "name types at module level"),
}
OPERATORS: dict[type[ast.AST], str] = {
    ast.Div: "/ makes a float: write // for integer division",
    ast.Pow: f"** {FOREIGN}: write a product, or << for a power of two",
    ast.MatMult: f"@ {FOREIGN}",
}
CONSTANTS = {"str": "a string", "bytes": "a bytes constant", "complex": "a complex number", "ellipsis": "..."}


def quote(node: ast.AST) -> str:
    """The source of *node* if it is short, for use in advice; else three dots."""
    text = ast.unparse(node)
    return text if len(text) <= LONGEST_QUOTE and "\n" not in text else "..."


def unsupported(node: ast.AST) -> str:
    """What to say about an expression or a statement that is not in the language."""
    name = type(node).__name__
    what, instead = {**EXPRESSIONS, **STATEMENTS}.get(name, (name, ""))
    return f"{what} {FOREIGN}: {instead}" if instead else f"{what} {FOREIGN}"


def unsupported_constant(value: Any) -> str:
    """What to say about a constant of a type that the language does not have."""
    if value is None:
        return "None is not a value here: write null for a pointer"
    if isinstance(value, float):
        return "there is no floating point in the native language"
    kind = type(value).__name__
    return f"{CONSTANTS.get(kind, kind)} {FOREIGN}: constants are integers, True, False and null"


def condition(node: ast.AST, type_: Type) -> str:
    """What to say about something that decides and is not a bool."""
    if isinstance(type_, Literal):
        return "a condition is a bool, not an integer: write True or False"
    text = quote(node)
    text = text if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript, ast.Call)) else f"({text})"
    zero = "null" if isinstance(type_, (Pointer, Function)) else "0"
    return f"a condition is a bool, not {type_}: write `{text} != {zero}`"


def mismatch(node: ast.AST, found: Type, expected: Type) -> str:
    """What to say about a value of type *found* where *expected* is needed."""
    if found == void:
        return f"this returns nothing, and {expected} is needed"
    if found in (LITERAL, NULL):
        return _mismatched_constant(node, found, expected)
    problem = f"this is {found}, and {expected} is needed"
    if isinstance(expected, Bool):
        return f"{problem}: write `{quote(node)} != {'0' if isinstance(found, Int) else 'null'}`"
    if isinstance(found, Function) or cast_problem(found, expected):
        return problem
    return f"{problem}: write cast({expected}, {quote(node)})"


def _mismatched_constant(node: ast.AST, found: Type, expected: Type) -> str:
    if found == NULL:
        return f"null is a pointer, and {expected} is needed: write {'False' if isinstance(expected, Bool) else '0'}"
    if isinstance(expected, Bool):
        return "an integer is not a bool: write True or False"
    text = quote(node)
    if isinstance(expected, (Pointer, Function)):
        return f"{text} is not {expected}: write null, or cast({expected}, {text})"
    return f"{text} is not {expected}"


def between(what: str, left: Type, right: Type, node: ast.AST) -> str:
    """What to say about two operands of different types; *node* is the right one."""
    if void in (left, right):
        return f"{what} needs a value, and this returns nothing"
    hint = f": write cast({left}, {quote(node)}), or cast the other" if _both_integers(left, right) else ""
    return f"{what} between {left} and {right}{hint}"


def _both_integers(left: Type, right: Type) -> bool:
    return isinstance(left, Int) and isinstance(right, Int)


def cast_problem(source: Type, wanted: Type) -> str:
    """Why cast() cannot make *wanted* of *source*; empty when it can."""
    addresses = (Pointer, Function)
    if isinstance(source, (Int, Bool)) and isinstance(wanted, Int):
        return ""
    if isinstance(wanted, Bool):
        return "cast to bool is ambiguous: write `x != 0`"
    if not wanted.is_scalar:
        return f"cast makes integers and addresses, not {wanted}"
    if source in (u64, i64, *_addresses(source)) and isinstance(wanted, addresses):
        return ""
    if isinstance(source, addresses) and wanted in (u64, i64):
        return ""
    return f"{source} cannot become {wanted}: an address is cast from or to u64 and i64"


def _addresses(source: Type) -> tuple[Type, ...]:
    return (source,) if isinstance(source, (Pointer, Function)) else ()


def not_native(name: str, value: Any) -> str:
    """Why the Python object *value* cannot be used in a native function, and what to write instead."""
    if isinstance(value, Intrinsic):
        return f"{name} is an operation: call it"
    if value is range:
        return "range() is only for loops: write `for i in range(n)`"
    if isinstance(value, type) and value.__module__ == "builtins":
        return f"{name} is a Python type: write cast(u64, ...), or another type of the native language"
    if isinstance(value, Zeroed):
        return "zeroed is only what a local array or struct starts as: write `x: array[T, n] = zeroed`"
    if isinstance(value, type) or (isinstance(value, Type) and not value.is_scalar):
        return f"{name} is a type, not a value: write sizeof({name})"
    if isinstance(value, Type):
        return f"{name} is a type, not a value: write cast({name}, ...) or sizeof({name})"
    if isinstance(value, float):
        return f"{name} is a float: there is no floating point in the native language"
    if callable(value):
        return f"{name} is a Python function: native code calls only @native functions and extern symbols"
    kind = type(value).__name__
    return f"{name} is a Python object ({kind}), which machine code cannot reach: use const() or global_var()"
