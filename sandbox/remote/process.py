"""Another process as its files in /proc show it: mappings, memory, libraries."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from sandbox.elf import tables as elf
from sandbox.elf.memory_file import from_memory
from sandbox.process.once import cached_property
from sandbox.remote.refusals import Refused, not_permitted
from sandbox.x86_64.remote_thread import SYSCALL_RETURN
from sandbox.x86_64.signal_frame import RESTORER

_MAPPING = re.compile(
    r"(?P<start>[\da-f]+)-(?P<end>[\da-f]+) (?P<rights>\S+) (?P<offset>[\da-f]+) \S+ (?P<inode>\d+) *(?P<path>.*)"
)
_PAGE = mmap.PAGESIZE
DELETED = " (deleted)"


class Mapping(NamedTuple):
    """A line of /proc/PID/maps."""

    start: int
    end: int
    rights: str
    offset: int
    inode: int
    path: str


class Image(NamedTuple):
    """A mapped ELF file. `base` is added to the addresses in it."""

    base: int
    file: elf.ElfFile
    path: str

    def addresses(self, names: Iterable[str]) -> dict[str, int]:
        """The addresses of those exported symbols among `names` that it defines."""
        wanted, found = {name.encode(): name for name in names}, {}
        for table in self.file.sections_of_type(elf.SHT_DYNSYM):
            strings = self.file.strings(table)
            for entry in self.file.symbols(table):
                if entry.section:
                    end = strings.index(b"\0", entry.name_offset)
                    name = wanted.get(bytes(strings[entry.name_offset : end]))
                    if name:
                        found[name] = self.base + entry.value
        return found


class RemoteProcess:
    """Process `pid`. Raises Refused if there is none, or if it may not be traced."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        try:
            self.memory = os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC)
            self.mappings = list(_mappings(os.fsdecode(Path(f"/proc/{pid}/maps").read_bytes())))
        except PermissionError:
            raise not_permitted(pid) from None
        except (FileNotFoundError, ProcessLookupError):
            raise Refused(f"there is no process {pid}", errno.ESRCH) from None

    def close(self) -> None:
        """Close its memory."""
        os.close(self.memory)

    def read(self, address: int, size: int) -> bytes:
        """Bytes of its memory. Raises OSError, with ESRCH if it has ended, or has executed another program."""
        try:
            found = os.pread(self.memory, size, address)
        except OSError as error:
            if error.errno != errno.EIO:  # else nothing is mapped there
                raise
            raise OSError(errno.EFAULT, f"memory of process {self.pid} could not be read at {address:#x}") from None
        if size and not found:
            raise OSError(errno.ESRCH, f"process {self.pid} has ended, or has executed another program")
        if len(found) != size:
            raise OSError(errno.EFAULT, f"memory of process {self.pid} could not be read at {address:#x}")
        return found

    def word(self, address: int) -> int:
        """The 64-bit number at an address. Raises OSError."""
        return int(struct.unpack("<Q", self.read(address, 8))[0])

    def write(self, address: int, data: bytes) -> None:
        """Write to its memory. Raises OSError."""
        if os.pwrite(self.memory, data, address) != len(data):
            raise OSError(errno.EFAULT, f"memory of process {self.pid} could not be written at {address:#x}")

    @property
    def threads(self) -> list[int]:
        """Its threads' numbers. Raises OSError if it has ended."""
        return [int(each) for each in os.listdir(f"/proc/{self.pid}/task")]  # noqa: PTH208  # names only

    def image(self, fits: Callable[[str], bool]) -> Image | None:
        """The first mapped ELF file whose base name fits; None if there is none."""
        return next(self.each_image(fits), None)

    def images(self, fits: Callable[[str], bool]) -> list[Image]:
        """The mapped ELF files whose base names fit, each once."""
        return list({image.path: image for image in self.each_image(fits)}.values())

    def exporting(self, name: str, first: Callable[[str], bool]) -> tuple[Image, dict[str, int]] | None:
        """A mapped file that exports a symbol, and its address; those whose base name is `first` are looked at first."""
        for is_wanted in (first, lambda each: not first(each)):
            for image in self.each_image(is_wanted):
                if found := image.addresses([name]):
                    return image, found
        return None

    def file_named(self, path: str) -> elf.ElfFile | None:
        """The ELF file that the loader knows by this path, "" for the program; None if there is none."""
        name = path or os.readlink(f"/proc/{self.pid}/exe")  # noqa: PTH115  # the text of the link
        for mapping in self.mappings:
            if not mapping.offset and mapping.path.removesuffix(DELETED) == name.removesuffix(DELETED):
                with contextlib.suppress(OSError, ValueError):
                    return self._file(mapping)
        with contextlib.suppress(OSError, ValueError), Path(f"/proc/{self.pid}/root{name}").open("rb") as file:
            return elf.ElfFile(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
        return None

    def is_writable(self, address: int) -> bool:
        """Whether the process itself may write there."""
        return any(each.start <= address < each.end and "w" in each.rights for each in self.mappings)

    def is_stack(self, low: int, high: int) -> bool:
        """Whether this is part of a thread's stack: the first one's, or one with a guard below."""
        below: Mapping | None = None
        for each in self.mappings:
            if each.start <= low and high <= each.end and "w" in each.rights:
                has_guard = below is not None and below.end == each.start and below.rights.startswith("---")
                return each.path == "[stack]" or has_guard
            below = each
        return False

    def each_image(self, fits: Callable[[str], bool]) -> Iterator[Image]:
        """The mapped ELF files whose base names fit, ascending."""
        for mapping in self.mappings:
            path = mapping.path.removesuffix(DELETED)
            if not mapping.offset and path.startswith("/") and fits(path.rpartition("/")[2]):
                try:
                    file = self._file(mapping)
                except (OSError, ValueError):
                    continue
                lowest = min((each.address for each in file.segments() if each.type == elf.PT_LOAD), default=0)
                yield Image(mapping.start - lowest // _PAGE * _PAGE, file, path)

    def _file(self, mapping: Mapping) -> elf.ElfFile:
        """The file that is mapped there from its beginning; what is known of it from memory if it was replaced on disk."""
        try:
            contents = self._contents(mapping)
        except OSError:
            return from_memory(self.read, mapping.start)
        return elf.ElfFile(memoryview(contents))

    def _contents(self, mapping: Mapping) -> mmap.mmap:
        """The mapped file, which may have been deleted or replaced since; through its own root directory."""
        names = [
            f"/proc/{self.pid}/root{mapping.path}",
            f"/proc/{self.pid}/map_files/{mapping.start:x}-{mapping.end:x}",
        ]
        for name in names:
            try:
                with Path(name).open("rb") as file:
                    if os.fstat(file.fileno()).st_ino == mapping.inode:
                        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except OSError:
                continue
        raise OSError(errno.ENOENT, f"{mapping.path.removesuffix(DELETED)} was replaced on disk")

    @cached_property
    def system_call(self) -> int:
        """The address of the instructions `syscall; ret`. Raises Refused if there are none."""
        found = self._code(SYSCALL_RETURN)
        if found is None:
            raise Refused(f"process {self.pid} has no instruction for system calls where fprobe looks for it")
        return found

    @cached_property
    def restorer(self) -> int | None:
        """The address of the instructions that return from a signal's handler; None if there are none."""
        return self._code(RESTORER)

    def _code(self, wanted: bytes) -> int | None:
        """Where the C library or the vDSO has these instructions."""
        for mapping in self.mappings:
            is_known = mapping.path == "[vdso]" or "libc.so" in mapping.path or "/libc-2" in mapping.path
            if "x" in mapping.rights and is_known:  # text that was probed before is in a memory file of the same name
                at = self.read(mapping.start, mapping.end - mapping.start).find(wanted)
                if at >= 0:
                    return mapping.start + at
        return None


def _mappings(text: str) -> Iterator[Mapping]:
    for line in text.split("\n"):
        if found := _MAPPING.match(line):
            start, end, offset = (int(found[name], 16) for name in ("start", "end", "offset"))
            yield Mapping(
                start, end, found["rights"], offset, int(found["inode"]), found["path"].replace("\\012", "\n")
            )
