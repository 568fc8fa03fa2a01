"""Says which two files meet where a program has a module with the name of one of our packages."""

from __future__ import annotations

import builtins
import os
import sys
from contextlib import suppress
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_NEEDED = {"fprobe": ("sandbox", "ftrace", "kprobes"), "kprobes": ("sandbox", "ftrace"), "ftrace": ("sandbox",)}


def check_before_import() -> None:
    """Raise ImportError if the packages that fprobe needs are not those that an import would find here."""
    if __name__ == "fprobe.neighbours" and __import__ is builtins.__import__:  # else ours have an importer of their own
        check("fprobe")


def check(package: str) -> None:
    """Raise ImportError if this package of ours needs another one, in whose place a module of the program's is found."""
    for name in _NEEDED.get(package, ()):
        own = _ROOT / name / "__init__.py"
        other = _found(name)
        if other is not None and not _is_same(other, own):
            raise ImportError(
                f"{package} needs its package {name!r}, {own}, but the name finds another one here, {other}: rename that one, or "
                "probe the program with `fprobe run`, where each finds its own",
                name=name,
                path=other,
            )


def _found(name: str) -> str | None:
    """The file that `import` gives for this name; None if there is none, which the import itself will say."""
    if (module := sys.modules.get(name)) is not None:
        return _place(module)
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        if find is not None and (spec := find(name, None)) is not None:
            return spec.origin or next(iter(spec.submodule_search_locations or ()), name)
    return None


def _place(module: object) -> str:
    file = getattr(module, "__file__", None)
    return file or next(iter(getattr(module, "__path__", ())), "a module without a file")


def _is_same(one: str, other: Path) -> bool:
    with suppress(OSError):
        return os.path.samefile(one, other)  # noqa: PTH121  # one may be no path
    return False
