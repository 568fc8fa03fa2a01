"""Preparing a compiled object for loading and patching. Bytes in, bytes out.

The stubs are found through the object's own tables (the relocations of their calls, or the table of patchable entries), and each
is replaced by the 5-byte NOP before the object is linked, as the kernel does at boot.
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass
from typing import NamedTuple

from sandbox.compile.stubs import HOOKS, STUB_SIZE, Flavour
from sandbox.elf import tables as elf
from sandbox.x86_64.encoding import ENDBR64, NOP5

_CALL = 0xE8
_CONSTRUCTORS = re.compile(r"\.(?P<kind>init_array|ctors)(?:\.(?P<priority>\d+))?")
_LAST = 65535
_NOP_FORMS = (NOP5, bytes.fromhex("0f1f440008"), b"\x90" * STUB_SIZE)


class StubError(ValueError):
    """Code whose stubs cannot be used; the message says which and why."""


class ObjectSymbol(NamedTuple):
    """A function or variable that an object defines: `size` bytes at offset `value` of section number `section`.

    A common symbol gets its place only when it is linked; its `section` is elf.SHN_COMMON.
    """

    name: str
    section: int
    value: int
    size: int


@dataclass(frozen=True)
class LoadableObject:
    """An object whose stubs are NOPs."""

    data: bytes
    kind: Flavour
    stubs: dict[int, array[int]]
    """Text section -> offsets of its stubs, ascending."""
    symbols: list[ObjectSymbol]
    undefined: frozenset[str]
    """Names that must come from elsewhere."""
    sections: dict[int, tuple[str, int]]
    """Section -> its name and size, for allocated sections."""
    executable: frozenset[int]
    constructors: tuple[tuple[int, int], ...]
    """(section, offset) of the functions that run when the object is loaded, in that order."""


def prepare(data: bytes) -> LoadableObject:
    """Find the stubs of a relocatable object and silence them.

    Raises elf.ElfError if `data` is not a relocatable x86-64 object, StubError if a stub is not five bytes long, or if
    the object has thread-local variables, for which the JIT linker has no place.
    """
    file = elf.ElfFile(data)
    if file.type != elf.ET_REL:
        raise elf.ElfError(f"not a relocatable object: ELF type {file.type}")
    tables = file.sections_of_type(elf.SHT_SYMTAB)
    if not tables:
        raise elf.ElfError("the object has no symbol table")
    return _Preparation(file, tables[0]).result()


class _Preparation:
    def __init__(self, file: elf.ElfFile, table: int) -> None:
        self.file = file
        self.entries = file.symbols(table)
        self.strings = file.strings(table)
        self.image = bytearray(file.data)
        self.text = [i for i, section in enumerate(file.sections) if section.flags & elf.SHF_EXECINSTR]
        self.relocations = file.relocation_sections()
        self.imported = self._imported()

    def result(self) -> LoadableObject:
        self._refuse_thread_locals()
        calls = self._calls_to_hooks()
        entries = self._patchable_entries()
        kind = _only_kind({*calls, Flavour.PATCHABLE} if entries else set(calls))
        stubs = {section: array("Q", sorted(offsets)) for section, offsets in (calls.get(kind) or entries).items()}
        self._silence(stubs)
        file = self.file
        return LoadableObject(
            data=bytes(self.image),
            kind=kind,
            stubs=stubs,
            symbols=self._defined(),
            undefined=self._undefined(),
            sections={
                i: (file.section_name(i), section.size)
                for i, section in enumerate(file.sections)
                if section.flags & elf.SHF_ALLOC and section.type != elf.SHT_NULL
            },
            executable=frozenset(self.text),
            constructors=tuple(self._constructors()),
        )

    def _imported(self) -> dict[int, str]:
        """Number of an undefined symbol -> its name."""
        return {
            i: elf.string_at(self.strings, entry.name_offset)
            for i, entry in enumerate(self.entries)
            if not entry.section and entry.name_offset
        }

    def _undefined(self) -> frozenset[str]:
        strong = {name for i, name in self.imported.items() if self.entries[i].info >> 4 != elf.STB_WEAK}
        return frozenset(strong - HOOKS.keys())

    def _refuse_thread_locals(self) -> None:
        for entry in self.entries:
            if entry.info & 15 == elf.STT_TLS:
                name = elf.string_at(self.strings, entry.name_offset)
                raise StubError(f"thread-local variable {name!r}: the JIT linker does not support such variables")

    def _calls_to_hooks(self) -> dict[Flavour, dict[int, list[int]]]:
        """Flavour -> text section -> offsets of calls; their relocations are taken out of the image."""
        calls: dict[Flavour, dict[int, list[int]]] = {}
        hooks = {i: name for i, name in self.imported.items() if name in HOOKS}
        for section in self.text if hooks else ():
            table = self.relocations.get(section)
            if table is None:
                continue
            for symbol, name in hooks.items():
                starts = self._calls_in(section, table, symbol, name)
                if starts:
                    calls.setdefault(HOOKS[name], {})[section] = starts
        return calls

    def _calls_in(self, section: int, table: int, symbol: int, name: str) -> list[int]:
        code = self.file.contents(section)
        header = self.file.sections[table]
        starts = []
        for number, relocation in enumerate(self.file.relocations(table)):
            if relocation.symbol != symbol:
                continue
            start = relocation.offset - 1
            if start < 0 or code[start] != _CALL or relocation.type not in elf.RELATIVE_CALLS:
                raise StubError(self._wrong_call(name, section, start))
            starts.append(start)
            elf.drop_relocation(self.image, header, number)
        return starts

    def _wrong_call(self, name: str, section: int, start: int) -> str:
        found = bytes(self.file.contents(section)[max(start - 1, 0) : start + STUB_SIZE + 4]).hex(" ")
        return (
            f"the call of {name} at {self.file.section_name(section)}+{max(start, 0):#x} is not a 5-byte call "
            f"({found}): compile for the small code model (codemodel='small', reloc='pic'), and without -fno-plt"
        )

    def _patchable_entries(self) -> dict[int, list[int]]:
        """Text section -> offsets of patchable entries. The tables that list them are taken out of the image.

        There is one table for each function, and MCJIT needs time quadratic in their number to relocate them.
        """
        sites: dict[int, list[int]] = {}
        for table in self.file.sections_named(elf.PATCHABLE_ENTRIES):
            elf.drop_section(self.image, self.file, table)
            relocations = self.relocations.get(table)
            if relocations is None:
                continue
            elf.drop_section(self.image, self.file, relocations)
            for relocation in self.file.relocations(relocations):
                target = self.entries[relocation.symbol]
                start = patchable_stub(self.file.contents(target.section), target.value + relocation.addend)
                sites.setdefault(target.section, []).append(start)
        return sites

    def _silence(self, stubs: dict[int, array[int]]) -> None:
        for section, offsets in stubs.items():
            base = self.file.sections[section].offset
            for start in offsets:
                self.image[base + start : base + start + STUB_SIZE] = NOP5

    def _defined(self) -> list[ObjectSymbol]:
        strings = self.strings
        kinds = elf.NAMED_TYPES
        return [
            ObjectSymbol(elf.string_at(strings, name), section, value, size)
            for name, info, section, value, size in self.entries
            if section and name and info & 15 in kinds and section != elf.SHN_ABS
        ]

    def _constructors(self) -> list[tuple[int, int]]:
        tables = sorted(
            (_priority(match), match["kind"] == "ctors", section)
            for section in self.relocations
            if (match := _CONSTRUCTORS.fullmatch(self.file.section_name(section)))
        )
        found = []
        for _, backwards, section in tables:
            entries = sorted(self.file.relocations(self.relocations[section]), reverse=backwards)
            targets = [(self.entries[entry.symbol], entry.addend) for entry in entries]
            found += [(target.section, target.value + addend) for target, addend in targets]
        return found


def _priority(match: re.Match[str]) -> int:
    """The lowest priority runs first; `.ctors` counts in reverse."""
    given = int(match["priority"] or 0)
    if match["kind"] == "ctors":
        return _LAST - given
    return given if match["priority"] else _LAST


def _only_kind(kinds: set[Flavour]) -> Flavour:
    if len(kinds) > 1:
        names = " and ".join(sorted(kind.value for kind in kinds))
        raise StubError(f"the object mixes stubs of the flavours {names}; use one of them")
    return kinds.pop() if kinds else Flavour.NONE


def patchable_stub(code: memoryview | bytes, start: int) -> int:
    """The offset in `code` of the stub of the patchable entry recorded at `start`.

    Raises StubError if there are not five bytes of NOP.
    """
    if bytes(code[start : start + len(ENDBR64)]) == ENDBR64:
        start += len(ENDBR64)
    found = bytes(code[start : start + STUB_SIZE])
    if found not in _NOP_FORMS:
        raise StubError(
            f"the patchable entry at offset {start:#x} of the text holds {found.hex(' ')}, not {STUB_SIZE} bytes of "
            f"NOP: compile with -fpatchable-function-entry={STUB_SIZE}"
        )
    return start
