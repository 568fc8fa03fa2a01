"""Public names that are imported at first use, so that using one module of a package does not import all of them.

A package's exports are listed once, in its stub `__init__.pyi`, which type checkers read too.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

from sandbox.process.renamed import warn_renamed

_IMPORT = re.compile(r"^from (\S+) import (\([^)]*\)|.*)$", re.MULTILINE)


def exports(
    package: str, file: str, renamed: Mapping[str, tuple[str, str]] | None = None
) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """`__all__`, `__getattr__` and `__dir__` of a package, given its `__name__` and `__file__`.

    `renamed`: old names, each with its module and what to use instead. They are not listed.
    """
    homes = exported(Path(file).with_suffix(".pyi").read_text())
    found = vars(sys.modules[package])

    def get(name: str) -> object:
        if renamed and name in renamed:
            home, instead = renamed[name]
            warn_renamed(f"{package}.{name}", instead)
            return getattr(__import__(home, fromlist=[name]), name)
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return found.setdefault(name, getattr(__import__(homes[name], fromlist=[name]), name))

    def names() -> list[str]:
        own = (name for name, value in found.items() if name.startswith("__") or _is_submodule(value, package, name))
        return sorted({*homes, *own})

    return list(homes), get, names


def _is_submodule(value: object, package: str, name: str) -> bool:
    return isinstance(value, ModuleType) and value.__name__ == f"{package}.{name}"


def exported(stub: str) -> dict[str, str]:
    """Name -> module of everything that a stub imports as a name of its own."""
    return {
        name.partition(" as ")[0].strip(): home
        for home, names in _IMPORT.findall(stub)
        for name in names.strip("()\n").split(",")
        if " as " in name
    }
