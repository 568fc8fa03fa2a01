"""Docstrings name the kernel's functions and documents, without statement numbers, and say more than the name does."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NUMBER = re.compile(r"\b(FP|FT|KP|RH|RB|PE|TE)-\d|\bHAZARDS\b|\b[Ss]ection [A-Z]\b")


@cache
def _nodes(package: str) -> list[tuple[Path, list[ast.AST]]]:
    """All that each file of the package consists of."""
    paths = sorted((ROOT / package).rglob("*.py"))
    return [(path.relative_to(ROOT), list(ast.walk(ast.parse(path.read_text())))) for path in paths]


def _docstrings(nodes: Iterable[ast.AST]) -> list[tuple[int, str]]:
    """Strings that are statements: docstrings of modules, classes, functions and attributes, with their lines."""
    found = (node.value for node in nodes if isinstance(node, ast.Expr))
    return [(it.lineno, it.value) for it in found if isinstance(it, ast.Constant) and isinstance(it.value, str)]


@pytest.mark.parametrize("package", ["sandbox", "ftrace", "kprobes", "fprobe"])
def test_docstrings_cite_no_statement_numbers(package):
    citing = [
        f"{path}:{line}" for path, nodes in _nodes(package) for line, text in _docstrings(nodes) if NUMBER.search(text)
    ]
    assert citing == []


def test_numbers_are_found_in_every_kind_of_docstring():
    source = 'class C:\n    """One (FP-1)."""\n    x = 1\n    """Two (PE-1.2)."""\n\ndef f():\n    """HAZARDS 6."""\n'
    assert [line for line, text in _docstrings(ast.walk(ast.parse(source))) if NUMBER.search(text)] == [2, 4, 7]


_EMPTY = re.compile(
    r"\b(?:an?|all|any|at|by|each|every|for|from|has|have|i[nst]|its|now|o[fnr]|one|th[eo]s?e?|this|to|was|whether|with)\b"
)


def _stem(word: str) -> str:
    return re.sub(r"(?<=..)(?:ies|e?s|ed|ing|e)$", "", word)


def _repeats(name: str, text: str) -> bool:
    """Whether the docstring has no word that the name has not."""
    parts = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())
    words = re.findall(r"[a-z]+", _EMPTY.sub("", text.lower()))
    return {*map(_stem, words)} <= {*map(_stem, parts)}


@pytest.mark.parametrize("package", ["sandbox", "ftrace", "kprobes", "fprobe"])
def test_docstrings_do_not_repeat_the_name(package):
    kinds = (ast.FunctionDef, ast.ClassDef)
    repeating = [
        f"{path}:{node.lineno}: {node.name}"
        for path, nodes in _nodes(package)
        for node in nodes
        if isinstance(node, kinds) and (text := ast.get_docstring(node)) and _repeats(node.name, text)
    ]
    assert repeating == []


def test_a_docstring_that_repeats_the_name_is_found():
    assert _repeats("registered", "Whether it is registered now.") and _repeats(
        "InstancesDirectory", "The instances directory."
    )
    assert not _repeats("registered", "Whether register_fprobe() was the last call.")
