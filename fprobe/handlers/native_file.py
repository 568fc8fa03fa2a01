"""Native handlers from a user's Python file, and the maps that they fill."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from sandbox.native import NativeFunction
from sandbox.native.containers import Container


class NativeFileError(ValueError):
    """The file does not exist, or has no such handler."""


@dataclass(frozen=True)
class NativeHandlers:
    """The handlers of a file (`exit` may be None), and its maps by name."""

    entry: Any
    exit: Any
    maps: dict[str, Any]


def load(text: str) -> NativeHandlers:
    """The handlers that `FILE:ENTRY` or `FILE:ENTRY:EXIT` names; ENTRY may be empty. The file is executed.

    Raises NativeFileError, which names what is missing, and whatever the file raises, such as NativeError for a handler
    that is not in the native language.
    """
    path, *names = split(text)
    module = _executed(Path(path))
    entry, exit_ = (_handler(module, path, name) for name in (*names, "")[:2])
    return NativeHandlers(entry, exit_, dict(_maps(module)))


def split(text: str) -> list[str]:
    """Split `text` into the file and one or two names. Raises NativeFileError for another form."""
    path, *names = text.split(":")
    if not path or not 1 <= len(names) <= 2 or not any(names):
        raise NativeFileError(f"--native takes FILE:ENTRY or FILE:ENTRY:EXIT, not {text!r}")
    return [path, *names]


def _executed(path: Path) -> ModuleType:
    """The file, executed as a module. It can import modules of its directory."""
    if not path.is_file():
        raise NativeFileError(f"{path}: no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise NativeFileError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    sys.path.insert(0, str(path.parent.resolve()))
    spec.loader.exec_module(module)
    return module


def _handler(module: ModuleType, path: str, name: str) -> Any:
    found = getattr(module, name, None) if name else None
    if name and not isinstance(found, NativeFunction):
        known = ", ".join(key for key, value in vars(module).items() if isinstance(value, NativeFunction)) or "none"
        raise NativeFileError(f"{path}: no native function {name!r}; there are: {known}")
    return found


def _maps(module: ModuleType) -> Iterator[tuple[str, Any]]:
    return ((name, value) for name, value in vars(module).items() if isinstance(value, Container))
