"""The functions of the libraries that another process has mapped, from their files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fprobe.cli.failure import Failure
from ftrace.core.glob import parse
from sandbox.remote.process import Image, RemoteProcess
from sandbox.remote.refusals import Refused
from sandbox.symbols.file_names import short_name
from sandbox.symbols.libraries import Library

if TYPE_CHECKING:
    from sandbox.symbols.table import Symbol

_EXECUTABLE = 1


def functions(pid: int, patterns: Sequence[str]) -> Iterator[Symbol]:
    """The functions that match, by ascending address in each library.

    Raises Failure for a pattern without a library or that matches nothing, and if the process may not be looked at.
    """
    try:
        process = RemoteProcess(pid)
    except Refused as error:
        raise Failure(str(error.strerror)) from None
    try:
        for pattern in patterns or ("",):
            yield from _matching(process, pattern)
    finally:
        process.close()


def _matching(process: RemoteProcess, pattern: str) -> Iterator[Symbol]:
    owner, colon, wanted = pattern.partition(":")
    if not (owner and colon and wanted):
        raise Failure(f"the pattern is {pattern!r}; give a library and its functions, such as 'libz:inflate*'")
    of_library, of_function = parse(owner), parse(wanted)
    images = process.images(lambda name: any(map(of_library.matches, (name, short_name(name)))))
    if not images:
        raise Failure(f"process {process.pid} has no library {owner!r}")
    found = [
        symbol
        for image in images
        for symbol in _library(process, image).symbols
        if symbol.section == ".text" and of_function.matches(symbol.name)
    ]
    if not found:
        raise Failure(f"no function of {', '.join(image.path for image in images)} matches {wanted!r}")
    yield from found


def _library(process: RemoteProcess, image: Image) -> Library:
    """The library as it is mapped there. Its file is found below the process's own root directory."""
    text = tuple(
        (image.base + each.address, image.base + each.address + each.memory_size)
        for each in image.file.segments()
        if each.flags & _EXECUTABLE
    )
    name = image.path.rpartition("/")[2]
    return Library(name, Path(f"/proc/{process.pid}/root{image.path}"), image.base, text)
