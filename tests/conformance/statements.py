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

FILES = [Path(__file__).with_name(name) for name in ("statements.toml", "events.toml")]

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


def numbers(text: str) -> tuple[int | str, ...]:
    """'1-3, 7' -> (1, 2, 3, 7); clauses, as 7b.1, stay as they are."""
    found: list[int | str] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        found += [first] if "." in first else range(int(first), int(last or first) + 1)
    return tuple(found)


def family(prefix: str, entry: dict[str, str]) -> Family:
    return Family(prefix, entry["title"], tuple(f"{prefix}-{number}" for number in numbers(entry["numbers"])))


def statement(id: str, entry: dict[str, Any]) -> Statement:
    return Statement(id, entry["words"], entry["status"], entry.get("reason", ""), tuple(entry.get("tests", ())))


@cache
def load() -> tuple[tuple[Family, ...], dict[str, Statement]]:
    """The families, and each statement by its id."""
    documents = [tomllib.loads(file.read_text()) for file in FILES]
    families = [family(*item) for document in documents for item in document.pop("families").items()]
    return tuple(families), {id: statement(id, entry) for document in documents for id, entry in document.items()}


def sort_key(id: str) -> tuple[str, int, str, int]:
    """FT-9 before FT-10, PE-7.4 before PE-7b.1."""
    parts = re.fullmatch(r"([A-Z]+)-(\d+)([a-z]?)(?:\.(\d+))?", id).groups()  # type: ignore[union-attr]
    prefix, section, letter, clause = parts
    return prefix, int(section), letter, int(clause or 0)
