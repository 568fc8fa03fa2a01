"""The statements of the kernel's behaviour: what each says in a few words, and how it stands here (statements.toml)."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it along

FILE = Path(__file__).with_name("statements.toml")

HOLDS, ADAPTED, NOT_APPLICABLE, OPEN = "holds", "adapted", "not applicable", "open"
STATUSES = (HOLDS, ADAPTED, NOT_APPLICABLE, OPEN)


@dataclass(frozen=True)
class Statement:
    """`tests`: nodes (`tests/x/test_y.py::test_z`) that hold it without naming it themselves."""

    id: str
    words: str
    status: str
    reason: str
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Family:
    """Statements with a common prefix. `ids`: every id that there is, in order."""

    prefix: str
    title: str
    ids: tuple[str, ...]


def numbers(text: str) -> tuple[int, ...]:
    """'1-3, 7' -> (1, 2, 3, 7)."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


def family(prefix: str, entry: dict[str, str]) -> Family:
    return Family(prefix, entry["title"], tuple(f"{prefix}-{number}" for number in numbers(entry["numbers"])))


def statement(id: str, entry: dict[str, Any]) -> Statement:
    return Statement(id, entry["words"], entry["status"], entry.get("reason", ""), tuple(entry.get("tests", ())))


@cache
def load() -> tuple[tuple[Family, ...], dict[str, Statement]]:
    """The families, and each statement by its id."""
    document = tomllib.loads(FILE.read_text())
    families = tuple(family(prefix, entry) for prefix, entry in document.pop("families").items())
    return families, {id: statement(id, entry) for id, entry in document.items()}


def sort_key(id: str) -> tuple[str, int]:
    """FT-9 before FT-10."""
    prefix, number = re.fullmatch(r"([A-Z]+)-(\d+)", id).groups()  # type: ignore[union-attr]
    return prefix, int(number)
