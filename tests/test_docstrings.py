"""Docstrings name the kernel's functions and documents, without statement numbers, and say more than the name does."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.imports_of import statements

ROOT = Path(__file__).parent.parent
NUMBER = re.compile(r"\b(FP|FT|KP|RH|RB|PE|TE)-\d|\bHAZARDS\b|\b[Ss]ection [A-Z]\b")


class _Documented(NamedTuple):
    """What a file says: strings that are statements, with their lines, and what has a docstring, with its line and name.

    Not the nodes, which the garbage collector would look at again and again.
    """

    path: Path
    strings: list[tuple[int, str]]
    named: list[tuple[int, str, str]]


@cache
def _documented(package: str) -> list[_Documented]:
    return [
        _Documented(path.relative_to(ROOT), *_of(path.read_text())) for path in sorted((ROOT / package).rglob("*.py"))
    ]


def _of(source: str) -> tuple[list[tuple[int, str]], list[tuple[int, str, str]]]:
    strings, named = [], []
    for node in statements(ast.parse(source)):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            strings.append((value.lineno, value.value))
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and (text := ast.get_docstring(node)):
            named.append((node.lineno, node.name, text))
    return strings, named


@pytest.mark.parametrize("package", ["sandbox", "ftrace", "kprobes", "fprobe"])
def test_docstrings_cite_no_statement_numbers(package):
    citing = [
        f"{file.path}:{line}" for file in _documented(package) for line, text in file.strings if NUMBER.search(text)
    ]
    assert citing == []


def test_numbers_are_found_in_every_kind_of_docstring():
    source = 'class C:\n    """One (FP-1)."""\n    x = 1\n    """Two (PE-1.2)."""\n\ndef f():\n    """HAZARDS 6."""\n'
    assert [line for line, text in _of(source)[0] if NUMBER.search(text)] == [2, 4, 7]


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
    repeating = [
        f"{file.path}:{line}: {name}"
        for file in _documented(package)
        for line, name, text in file.named
        if _repeats(name, text)
    ]
    assert repeating == []


def test_a_docstring_that_repeats_the_name_is_found():
    assert _repeats("registered", "Whether it is registered now.") and _repeats(
        "InstancesDirectory", "The instances directory."
    )
    assert not _repeats("registered", "Whether register_fprobe() was the last call.")
