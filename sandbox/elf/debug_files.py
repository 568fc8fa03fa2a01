"""Finding the symbols of a stripped library: in a debug file, or compressed in the library.

The places are those of GDB: by build ID below /usr/lib/debug, by the name in .gnu_debuglink beside the library and below
/usr/lib/debug, and .gnu_debugdata (MiniDebugInfo).
"""

from __future__ import annotations

import contextlib
import lzma
import mmap
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from sandbox.elf.tables import SHT_SYMTAB, ElfError, ElfFile

DIRECTORIES = [Path("/usr/lib/debug")]
"""The directory in which distributions install debug files."""
_NOTE_HEADER = 16
"""Bytes in front of a build ID: three sizes, and `GNU` with its NUL."""


def with_symbols(file: ElfFile, path: Path) -> list[ElfFile]:
    """The files whose symbol tables have the symbols of the library `file`, which is at `path`. It is one of them itself if they
    are not all in its debug file.
    """
    if file.sections_of_type(SHT_SYMTAB):
        return [file]
    found = _debug_file(file, path, lambda debug: debug.sections_of_type(SHT_SYMTAB))
    return [found[1]] if found else [*_compressed(file), file]


def with_debug_information(file: ElfFile, path: Path) -> Path | None:
    """The path of the DWARF debug information of the library `file`, which is at `path`; None if there is none."""
    if file.sections_named(".debug_info"):
        return path
    found = _debug_file(file, path, lambda debug: debug.sections_named(".debug_info"))
    return found[0] if found else None


def of_another_build(file: ElfFile, path: Path) -> Path | None:
    """A debug file where that of the library would be, but of another build of it; None if there is none."""
    for candidate in _candidates(file, path):
        with contextlib.suppress(OSError, ValueError):
            if not _belongs(mapped(candidate), file):
                return candidate
    return None


def _debug_file(file: ElfFile, path: Path, has: Callable[[ElfFile], object]) -> tuple[Path, ElfFile] | None:
    """The first debug file of the library for which `has` is true, and its path. One that cannot be read is passed over."""
    for candidate in _candidates(file, path):
        with contextlib.suppress(OSError, ValueError):
            debug = mapped(candidate)
            if has(debug) and _belongs(debug, file):
                return candidate, debug
    return None


def mapped(path: Path) -> ElfFile:
    """The file at `path`. Raises OSError if it cannot be read, ValueError if it is empty, ElfError if it is not ELF.

    Mapped, not read: with its debug information a library may have hundreds of megabytes.
    """
    with path.open("rb") as file:
        return ElfFile(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))


def build_id(file: ElfFile) -> str:
    """The build ID in hexadecimal; '' if it has none."""
    found = file.sections_named(".note.gnu.build-id")
    return bytes(file.contents(found[0])[_NOTE_HEADER:]).hex() if found else ""


def _candidates(file: ElfFile, path: Path) -> Iterator[Path]:
    known, (name, _) = build_id(file), _link(file)
    for root in DIRECTORIES if known else ():
        yield root / ".build-id" / known[:2] / f"{known[2:]}.debug"
    here = path.resolve().parent
    if name:
        yield from (here / name, here / ".debug" / name)
        yield from (root / here.relative_to("/") / name for root in DIRECTORIES)


def _link(file: ElfFile) -> tuple[str, int]:
    """The name of the debug file and its CRC; '' if the library does not say."""
    found = file.sections_named(".gnu_debuglink")
    data = bytes(file.contents(found[0])) if found else bytes(5)
    return data.partition(b"\0")[0].decode("utf-8", "surrogateescape"), int.from_bytes(data[-4:], "little")


def _belongs(debug: ElfFile, file: ElfFile) -> bool:
    known = build_id(file)
    return build_id(debug) == known if known else zlib.crc32(debug.data) == _link(file)[1]


def _compressed(file: ElfFile) -> Iterator[ElfFile]:
    for section in file.sections_named(".gnu_debugdata"):
        with contextlib.suppress(lzma.LZMAError, ElfError):
            yield ElfFile(lzma.decompress(file.contents(section)))
