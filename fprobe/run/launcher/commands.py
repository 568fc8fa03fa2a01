"""Commands by name: `gunicorn app:app` is what a shell would start, beside this Python or in PATH."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from fprobe.run.launcher.not_python import has_main_file

_HEAD = 256
_SCRIPT = b"#!"


def with_command(words: Sequence[str]) -> list[str]:
    """The words, the first with its path if it is the name of a command and nothing here that Python runs."""
    name = words[0]
    here = Path(name)
    if not name or name.startswith(("-", "python")) or "/" in name or here.is_file() or has_main_file(here):
        return list(words)
    path = _command(name)
    return [path, *words[1:]] if path else list(words)


def _command(name: str) -> str | None:
    """The path of a command: of this Python's environment, else of PATH."""
    return shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)


def of_other_python(given: str, path: str) -> str:
    """Why a command cannot be run by this Python, whose packages are others; '' if it can. `given`: as the user wrote it.

    A script for whatever `python3` is first in PATH is run by this one.
    """
    if given == path:
        return ""
    try:
        with Path(path).open("rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return ""
    interpreter = head[len(_SCRIPT) :].partition(b"\n")[0].decode("utf-8", "surrogateescape").strip()
    python = Path(interpreter.partition(" ")[0])
    if not head.startswith(_SCRIPT) or not python.name.startswith("python") or _is_ours(python):
        return ""
    return (
        f"{given} is a command of another Python: {path} is run by {python}, and fprobe by {sys.executable}. "
        f"Install fprobe there, start {given} and attach to it (-p), or give fprobe run {path} to use its script with this Python"
    )


def _is_ours(python: Path) -> bool:
    """Whether an interpreter has the packages of this one: it is beside it, or is this file outside of environments."""
    own = Path(sys.executable)
    if python.parent.resolve() == own.parent.resolve():
        return True
    return sys.prefix == sys.base_prefix and python.resolve() == own.resolve() and not _is_in_environment(python)


def _is_in_environment(python: Path) -> bool:
    return (python.parent.parent / "pyvenv.cfg").exists()
