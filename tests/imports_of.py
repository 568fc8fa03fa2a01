"""What the text of a module imports, without importing it."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def imports(source: str) -> set[str]:
    """What a text imports anywhere, also in functions and for type checkers: modules, and names that may be modules."""
    found = set()
    for node in statements(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def statements(block: ast.AST) -> Iterator[ast.AST]:
    """The statements in a module, function, class or other block, and in what these contain; expressions are not visited."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        within = getattr(block, field, ())
        for each in within if isinstance(within, list) else ():
            yield each
            yield from statements(each)
