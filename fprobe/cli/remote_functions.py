"""The functions of the libraries that another process has mapped: names from their files, code from its memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fprobe.cli.failure import Failure
from ftrace.core.glob import parse_name, places
from sandbox.elf.tables import SHT_DYNSYM
from sandbox.images.library_images import LibraryImage
from sandbox.images.near_misses import ENOUGH
from sandbox.process.near import did_you_mean
from sandbox.remote.process import DELETED, Image, RemoteProcess
from sandbox.remote.refusals import Refused
from sandbox.symbols.file_names import is_in_folder, names_of, split_folder
from sandbox.symbols.libraries import Library
from sandbox.symbols.names import split_owner
from sandbox.symbols.readable import readable

if TYPE_CHECKING:
    from sandbox.elf.tables import ElfFile
    from sandbox.symbols.table import Symbol

_EXECUTABLE = 1


class RemoteLibrary(Library):
    """A library as another process has mapped it. Its code is in `process`, its tables are in the file of `image`."""

    def __init__(self, process: RemoteProcess, image: Image) -> None:
        text = tuple(
            (image.base + each.address, image.base + each.address + each.memory_size)
            for each in image.file.segments()
            if each.flags & _EXECUTABLE
        )
        path = Path(f"/proc/{process.pid}/root{image.path}")  # for its debug file
        super().__init__(image.path.rpartition("/")[2], path, image.base, text)
        self.process, self.image = process, image

    def _file(self) -> ElfFile:
        return self.image.file

    def matching(self, wanted: str) -> list[Symbol]:
        """The functions whose names a pattern matches, ascending."""
        found = LibraryImage(self).chosen(partial(places, parse_name(wanted)), wanted)
        return [symbol for symbol in found if symbol.section == ".text"]

    def names_like(self, wanted: str) -> list[str]:
        """Names of functions that may be meant by a pattern that matches none."""
        return [readable(name) for name in LibraryImage(self).like(wanted.strip("*"), ENOUGH)]


class RemoteFunction(NamedTuple):
    """A function of another process."""

    library: RemoteLibrary
    symbol: Symbol

    @property
    def code(self) -> bytes:
        """Its code as it is in memory now. Raises Failure if the process has ended."""
        try:
            return self.library.process.read(self.symbol.address, self.symbol.size)
        except OSError as error:
            raise Failure(f"process {self.library.process.pid} cannot be read: {error.strerror}") from None

    @property
    def code_in_file(self) -> bytes:
        """Its code as its file has it; empty if that is not known."""
        return self.library.code_in_file(self.symbol.address, self.symbol.size)


@contextlib.contextmanager
def opened(pid: int) -> Iterator[RemoteProcess]:
    """The process, for reading. Raises Failure if it may not be looked at."""
    try:
        process = RemoteProcess(pid)
    except Refused as error:
        raise Failure(str(error.strerror)) from None
    try:
        yield process
    finally:
        process.close()


def functions(process: RemoteProcess, patterns: Sequence[str]) -> Iterator[RemoteFunction]:
    """The functions that match, by ascending address in each library.

    Without patterns, those of the program. Raises Failure for a pattern without a library or that matches nothing.
    """
    for pattern in patterns or ("*",):
        yield from _matching(process, pattern)


def _matching(process: RemoteProcess, pattern: str) -> Iterator[RemoteFunction]:
    if pattern.startswith("!"):
        raise Failure(
            f"the pattern is {pattern!r}; with -p it cannot leave functions out: give patterns of those to show"
        )
    owner, colon, wanted = split_owner(pattern)
    images = _images_called(process, owner) if colon else _program(process)
    if not images and colon:
        raise Failure(f"process {process.pid} has no library {owner!r}")
    if not (images and wanted):
        why = f"the pattern is {pattern!r}" if not wanted else f"the program of process {process.pid} is Python"
        raise Failure(f"{why}; give a library and its functions, such as 'libz:inflate*'")
    libraries = [RemoteLibrary(process, image) for image in images]
    found = [RemoteFunction(library, symbol) for library in libraries for symbol in library.matching(wanted)]
    if not found:
        where = ", ".join(image.path for image in images)
        names = [name for library in libraries for name in library.names_like(wanted)]
        raise Failure(f"no function of {where} matches {wanted!r}{did_you_mean(wanted.strip('*'), names)}")
    yield from found


def _images_called(process: RemoteProcess, owner: str) -> list[Image]:
    folder, name = split_folder(owner)
    of_library = parse_name(name)
    found = process.images(lambda file: any(map(of_library.means, names_of(file))))
    return [image for image in found if not folder or is_in_folder(image.path, folder)]


def _program(process: RemoteProcess) -> list[Image]:
    """The program itself, whose functions are meant without a library; none if it is Python."""
    try:
        path = os.readlink(f"/proc/{process.pid}/exe").removesuffix(DELETED)  # noqa: PTH115  # the text of the link
    except OSError:
        return []
    found = process.images(lambda name: name == path.rpartition("/")[2])
    return [image for image in found if image.path == path and not _is_python(image.file)]


def _is_python(program: ElfFile) -> bool:
    """Whether it exports or calls functions of Python; one that was brought into a program is not its own."""
    return any(b"\0Py_" in bytes(program.strings(table)) for table in program.sections_of_type(SHT_DYNSYM))


class Names:
    """The names of addresses in another process."""

    def __init__(self, process: RemoteProcess) -> None:
        self._process = process
        self._known: list[RemoteLibrary] | None = None

    def __call__(self, address: int) -> str | None:
        """The function at an address, with the offset; None if it is not known."""
        if self._known is None:
            self._known = [RemoteLibrary(self._process, image) for image in self._process.images(lambda _: True)]
        for library in self._known:
            if address in library:
                found = library.locate(address)
                return str(found) if found else None
        return None
