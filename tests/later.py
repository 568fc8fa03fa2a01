"""Packages with large libraries: a file of tests that needs them does not load them, but the first test that uses them."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import pytest


class later:
    """A module of that name, imported when it is first used; the file is skipped where its package is not installed.

    Some have libraries with symbols by the hundred thousand, and all files are collected first: every glob over all libraries
    took 6 s instead of half a second. Files that have such a module come last (tests/conftest.py).
    """

    def __init__(self, name: str, reason: str | None = None) -> None:
        package = name.partition(".")[0]
        if importlib.util.find_spec(package) is None:
            pytest.skip(reason or f"the package {package} is not installed", allow_module_level=True)
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest looks at all that a file has, for fixtures and marks
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)
