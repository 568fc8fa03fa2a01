"""Which tests name which statements: by their names, by their docstrings, by the `# covers:` line of a scenario.

    def test_fp10_fp18_without_a_filter(): ...
    def test_names(): '''FT-32..34: ...'''

Nothing is imported: the files are parsed. A test that is expected to fail holds nothing.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
SCENARIOS = TESTS / "scenarios" / "data"
_NAME = re.compile(r"test_((?:(?:[pt]e\d+[bc]?_\d+|[a-z]{2}\d+)_)+)")
_NAMED = re.compile(r"([pt]e\d+[bc]?_\d+|[a-z]{2}\d+)_")
_CLAUSE = re.compile(r"\b([PT]E-\d+[bc]?\.\d+)")
_TEXT = re.compile(r"\b([A-Z]{2})-(\d+)(?:\.\.(?:[A-Z]{2}-)?(\d+))?")


def ids_in_name(name: str) -> set[str]:
    """'test_ft74_ft75_columns' -> FT-74, FT-75."""
    match = _NAME.match(name)
    return {_id(named) for named in _NAMED.findall(match[1])} if match else set()


def _id(named: str) -> str:
    """'ft74' -> FT-74, 'pe7b_1' -> PE-7b.1."""
    return f"{named[:2].upper()}-{named[2:].replace('_', '.')}"


def ids_in_text(text: str) -> set[str]:
    """'FT-32..34 and FP-11' -> FT-32, FT-33, FT-34, FP-11."""
    found = set(_CLAUSE.findall(text))
    for prefix, first, last in _TEXT.findall(text):
        if prefix not in ("PE", "TE"):
            found |= {f"{prefix}-{number}" for number in range(int(first), int(last or first) + 1)}
    return found


class Test(NamedTuple):
    """A test function. `ids`: the statements that it names; `is_heavy`: `make test` runs none of its cases."""

    name: str
    ids: set[str]
    is_heavy: bool = False


def tests_in(source: str) -> Iterator[Test]:
    """Each test function of a file."""
    for node in ast.parse(source).body:
        if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test"):
            continue
        decorators = [*map(ast.unparse, node.decorator_list)]
        if not any("xfail" in decorator for decorator in decorators):
            ids = ids_in_name(node.name) | ids_in_text(ast.get_docstring(node) or "")
            yield Test(node.name, ids, "pytest.mark.stress" in decorators)


@cache
def every_test() -> dict[str, Test]:
    """Node -> the test, for every test function there is."""
    return {
        f"{path.relative_to(ROOT).as_posix()}::{test.name}": test
        for path in sorted(TESTS.rglob("test_*.py"))
        for test in tests_in(path.read_text())
    }


def every_scenario() -> dict[str, set[str]]:
    """Name -> the statements in its `# covers:` lines."""
    found = {}
    for path in sorted(SCENARIOS.rglob("*.scn")):
        covers = " ".join(re.findall(r"^# covers:(.*)$", path.read_text(), re.MULTILINE))
        if covers:
            found[path.stem] = ids_in_text(covers)
    return found


@cache
def by_statement() -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """For each id the tests, and the scenarios, that name it."""
    tests: dict[str, list[str]] = defaultdict(list)
    scenarios: dict[str, list[str]] = defaultdict(list)
    named = {node: test.ids for node, test in every_test().items()}
    for target, source in ((tests, named), (scenarios, every_scenario())):
        for name, ids in source.items():
            for id in ids:
                target[id].append(name)
    return tests, scenarios
