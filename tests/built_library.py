"""Shared libraries made for a test."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

needs_compilers = pytest.mark.skipif(not (shutil.which("gcc") and shutil.which("g++")), reason="no C or C++ compiler")


_kept: list[TemporaryDirectory[str]] = []


def build_library(path: Path, source: str, *flags: str) -> None:
    """Compile C or, with `-xc++` in `flags`, C++; with -O1, unless `flags` say otherwise."""
    compiler = "g++" if "-xc++" in flags else "gcc"
    command = [compiler, "-xc", "-O1", *flags, "-shared", "-fPIC", "-pthread", "-", "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True, timeout=100)


def built_library(name: str, source: str, *flags: str) -> ctypes.CDLL:
    """A library of this source, loaded. Its file is deleted when the interpreter ends."""
    directory = TemporaryDirectory(prefix="built-")
    path = Path(directory.name) / f"{name}.so"
    build_library(path, source, *flags)
    _kept.append(directory)
    return ctypes.CDLL(str(path))
