"""Why python cannot run what was given as the program: no such file, or a program in another language."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from zipfile import BadZipFile, ZipFile

_HEAD = 4096
"""Bytes at the start of a file that are looked at."""
_ELF, _SCRIPT, _COMPILED = b"\x7fELF", b"#!", importlib.util.MAGIC_NUMBER[:2]
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
"""Options of python whose value is the next word."""
_NO_SCRIPT = ("-", "--help", "--help-all", "--help-env", "--help-xoptions", "--version")
_WITHOUT_SCRIPT = frozenset("cmhV?")
"""Letters of options with which python runs no script."""


def is_machine_code(words: Sequence[str]) -> bool:
    """Whether the program is an ELF file, and neither Python's interpreter nor an archive that Python runs."""
    path = Path(words[0])
    try:
        if words[0].startswith("-") or not path.is_file() or _is_interpreter(path):
            return False
        with path.open("rb") as file:
            return file.read(len(_ELF)) == _ELF and not _is_archive(path)
    except OSError:
        return False


def why_not_python(words: Sequence[str]) -> str:
    """Why python cannot run the program, and what to give instead; '' if it may. `words`: those after `python`."""
    given = _script(words)
    if given is None:
        return ""
    path = Path(given)
    try:
        if path.is_dir():
            return "" if has_main_file(path) else f"{given} is a directory without __main__.py"
        if not path.exists():
            return f"can't open file {given!r}: no such file{_instead(given)}"
        reason = _other_language(path)
    except OSError as error:
        return f"{given}: {error.strerror}"
    return f"{given} is {reason}" if reason else ""


def _script(words: Sequence[str]) -> str | None:
    """The script, after the options of python; None if there is none, as with -m, -c and standard input."""
    rest = iter(words)
    for word in rest:
        if not word.startswith("-"):
            return word
        if word in _WITH_VALUE:
            next(rest, None)
        elif word in _NO_SCRIPT or (not word.startswith(("--", *_WITH_VALUE)) and _WITHOUT_SCRIPT & set(word)):
            return None
    return None


def has_main_file(directory: Path) -> bool:
    """Whether it is a directory that Python runs."""
    return any((directory / f"__main__.{ending}").is_file() for ending in ("py", "pyc"))


def _other_language(path: Path) -> str:
    """What the file is and what to do; '' if it may be Python. Reads regular files only: a pipe can be read once."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        head = file.read(_HEAD)
        is_source = not head.startswith(_COMPILED) and not _is_archive(path)  # that may begin with anything
    if not is_source:
        return ""
    if head.startswith(_ELF):
        if _is_interpreter(path):
            return "the interpreter itself: leave it out, fprobe run starts the program with python"
        return "machine code: leave out the options of python before it"
    first = head.partition(b"\n")[0]
    is_script = head.startswith(_SCRIPT) and b"python" not in first
    if (is_script or b"\0" in head) and not _is_source(path):
        if is_script:
            interpreter = os.fsdecode(first[2:]).strip()
            return f"a program for {interpreter}: give the Python program or the executable that it starts"
        return "binary data: give a Python program or an executable"
    return ""


def _is_archive(path: Path) -> bool:
    """Whether it is a zip file that Python runs. sqlite3, for one, has the marks of a zip file, and is none."""
    try:
        with ZipFile(path) as archive:
            return not {"__main__.py", "__main__.pyc"}.isdisjoint(archive.namelist())
    except (BadZipFile, OSError, ValueError):
        return False


def _is_interpreter(path: Path) -> bool:
    return path.resolve().name.startswith("python")


def _is_source(path: Path) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            return False
    return True


def _instead(given: str) -> str:
    """What to give for a command, which python does not look for in PATH, or for the name of a module."""
    if "/" in given:
        return ""
    beside = Path(sys.executable).with_name(given)
    found = str(beside) if beside.is_file() else shutil.which(given)
    if found and given.startswith("python"):
        return f"; leave out {given}: fprobe run starts the program with python"
    if _has_main(given):
        return f"; for the module give -m {given}"
    return f"; options of python are given: give the path of the command, {found}" if found else ""


def _has_main(name: str) -> bool:
    """Whether `-m NAME` runs something: it is a module, or a package with a `__main__`. Imports nothing."""
    place: list[str] | None = [str(Path.cwd()), *sys.path]
    found = None
    for end in range(1, len(parts := name.split(".")) + 1):
        if place is None:
            return False
        found = _spec(".".join(parts[:end]), place)
        if found is None:
            return False
        place = found.submodule_search_locations
    return found is not None and (place is None or _spec(f"{name}.__main__", place) is not None)


def _spec(name: str, place: list[str]) -> ModuleSpec | None:
    for finder in sys.meta_path:
        with contextlib.suppress(ImportError, ValueError):
            if (found := finder.find_spec(name, place)) is not None:
                return found
    return None
