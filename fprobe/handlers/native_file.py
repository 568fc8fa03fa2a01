"""Native handlers from a file, as the option --native names them."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple


class NativeFileError(ValueError):
    """The file does not exist, or has no such handler."""


class NativeHandlers(NamedTuple):
    """The handlers of a file (`exit` may be None), and its maps by name."""

    entry: Any
    exit: Any
    maps: dict[str, Any]


def load_file(text: str) -> NativeHandlers:
    """The handlers that `FILE:ENTRY` or `FILE:ENTRY:EXIT` names; ENTRY may be empty. The file is executed.

    Raises NativeFileError, which names what is missing, and whatever the file raises, such as NativeError for a handler
    that is not in the native language.
    """
    path, *names = split(text)
    module = _executed(Path(path))
    entry, exit_ = (_handler(module, path, name) for name in names)
    return NativeHandlers(entry, exit_, dict(_maps(module)))


def split(text: str) -> tuple[str, str, str]:
    """Split `FILE:ENTRY[:EXIT]` into the file and two names, one of which may be empty. Raises NativeFileError."""
    found = re.fullmatch(r"(.+?):(\w*)(?::(\w*))?", text)
    path, entry, exit_ = found.groups(default="") if found else ("", "", "")
    if not entry and not exit_:
        raise NativeFileError(f"--native takes FILE:ENTRY or FILE:ENTRY:EXIT, not {text!r}")
    return path, entry, exit_


def _executed(path: Path) -> ModuleType:
    """The file, executed as a module. It can import modules of its directory."""
    if not path.is_file():
        raise NativeFileError(f"{path}: no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise NativeFileError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    vars(module)["__builtins__"] = __builtins__  # its `import fprobe` finds what ours does, under whatever name
    sys.modules.setdefault(path.stem, module)
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except SystemExit as error:
        raise NativeFileError(f"{path}: it ends with SystemExit({error}) when it is executed") from None
    return module


def _handler(module: ModuleType, path: str, name: str) -> Any:
    from sandbox.native import NativeFunction

    found = getattr(module, name, None) if name else None
    if name and not isinstance(found, NativeFunction):
        known = ", ".join(key for key, value in vars(module).items() if isinstance(value, NativeFunction)) or "none"
        raise NativeFileError(f"{path}: no native function {name!r}; there are: {known}")
    return found


def _maps(module: ModuleType) -> Iterator[tuple[str, Any]]:
    from sandbox.native.containers import Container

    return ((name, value) for name, value in vars(module).items() if isinstance(value, Container))
