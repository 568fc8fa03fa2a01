"""Docstrings name the kernel's functions and documents. Statement numbers are for comments and tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NUMBER = re.compile(r"\b(FP|FT|KP|RH|RB|PE|TE)-\d|\bHAZARDS\b|\b[Ss]ection [A-Z]\b")


def _docstrings(source: str) -> list[tuple[int, str]]:
    """Strings that are statements: docstrings of modules, classes, functions and attributes, with their lines."""
    found = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Expr))
    return [(it.lineno, it.value) for it in found if isinstance(it, ast.Constant) and isinstance(it.value, str)]


@pytest.mark.parametrize("package", ["sandbox", "ftrace", "kprobes", "fprobe"])
def test_docstrings_cite_no_statement_numbers(package):
    citing = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, text in _docstrings(path.read_text())
        if NUMBER.search(text)
    ]
    assert citing == []


def test_numbers_are_found_in_every_kind_of_docstring():
    source = 'class C:\n    """One (FP-1)."""\n    x = 1\n    """Two (PE-1.2)."""\n\ndef f():\n    """HAZARDS 6."""\n'
    assert [line for line, text in _docstrings(source) if NUMBER.search(text)] == [2, 4, 7]
