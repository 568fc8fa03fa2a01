"""Keeps our imports from shadowing the program's own modules (a json.py beside the script)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Protocol


class _Finder(Protocol):
    def find_spec(self, fullname: str, /) -> ModuleSpec | None: ...


OURS = ("fprobe", "kprobes", "ftrace", "sandbox")
_NO_SCRIPT = ("", "-", "-c", "-m")
"""First words of sys.argv that mean the current directory."""


def unshadow(before: Iterable[str]) -> None:
    """Remove modules of the standard library from `sys.modules` if the program's directory has modules of the same names.

    `before`: names of modules that are not removed, since they were imported before the probes.
    """
    finder = _finder_of_program()
    known = set(before)
    for name in {each.partition(".")[0] for each in set(sys.modules) - known} - known:
        if name in sys.stdlib_module_names and finder is not None and _finds(finder, name):
            _forget(each for each in [*sys.modules] if each == name or each.startswith(f"{name}."))


@contextmanager
def importing_from(directory: Path) -> Iterator[None]:
    """Afterwards `sys.path` and `sys.modules` are without the directory and the modules that were imported from it."""
    known, path = set(sys.modules), sys.path[:]
    try:
        yield
    finally:
        sys.path[:] = path
        _forget(each for each in set(sys.modules) - known if _is_from(directory, each))


def _forget(names: Iterable[str]) -> None:
    for name in names:
        sys.modules.pop(name, None)


def _is_from(directory: Path, name: str) -> bool:
    file = getattr(sys.modules[name], "__file__", None)
    return file is not None and directory in Path(file).parents


def _finder_of_program() -> _Finder | None:
    """What finds modules in the directory or archive that will be the first entry of sys.path; None if there will be none."""
    if getattr(sys.flags, "safe_path", False) or sys.flags.isolated:
        return None
    script = sys.argv[0]
    if script in _NO_SCRIPT:
        return _finder("")
    return _finder(script) or _finder(os.path.dirname(os.path.realpath(script)))  # noqa: PTH120


def _finder(path: str) -> _Finder | None:
    for hook in sys.path_hooks:
        with suppress(ImportError, OSError):  # OSError: the current directory has been deleted
            return hook(path)
    return None


def _finds(finder: _Finder, name: str) -> bool:
    """Whether there is such a module. A directory without `__init__` does not come before the standard library."""
    spec = finder.find_spec(name)
    return spec is not None and spec.loader is not None
