"""From a compiled object to one that can be loaded and patched: bytes in, bytes out.

The stubs are found where the object says that they are (the relocations of their calls, or the table of patchable
entries), and every one is turned into the 5-byte NOP before anything links the object, as a kernel does at boot.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from sandbox import elf
from sandbox.stubs import ENDBR64, HOOKS, NOP5, STUB_SIZE, Flavour

_CALL = 0xE8
_PATCHABLE_ENTRIES = "__patchable_function_entries"
_NOP_FORMS = (NOP5, bytes.fromhex("0f1f440008"), bytes.fromhex("90") * 5)
_LINKED = elf.SHF_ALLOC


class StubError(ValueError):
    """An object whose stubs cannot be used; says which function and why."""


@dataclass(frozen=True)
class ObjectSymbol:
    """A defined symbol of an object. `value` is its offset in section `section`; sizes in bytes.

    `section` is elf.SHN_COMMON for a common symbol, which gets its place when it is linked.
    """

    name: str
    section: int
    value: int
    size: int
    is_function: bool
    is_local: bool


@dataclass(frozen=True)
class LoadableObject:
    """An object whose stubs are NOPs. `stubs` maps a text section's index to the offsets of its stubs, ascending."""

    data: bytes
    kind: Flavour
    stubs: dict[int, array[int]]
    symbols: list[ObjectSymbol]
    undefined: frozenset[str]
    section_sizes: dict[int, int] = field(default_factory=dict)
    executable: frozenset[int] = frozenset()


def prepare(data: bytes) -> LoadableObject:
    """Find the stubs of a relocatable object and silence them.

    Raises elf.ElfError if `data` is not a relocatable x86-64 object, StubError if a stub is not five bytes or the
    object needs what the loader cannot give (thread-local variables).
    """
    file = elf.ElfFile(data)
    if file.type != elf.ET_REL:
        raise elf.ElfError(f"not a relocatable object: ELF type {file.type}")
    table = _symbol_table(file)
    entries = file.symbols(table)
    strings = file.strings(table)
    image = bytearray(data)
    calls = _calls_to_hooks(file, entries, strings, image)
    patchable = _patchable_entries(file, entries, image)
    _refuse_thread_locals(entries, strings)
    stubs = _silenced(file, image, calls, patchable)
    return LoadableObject(
        data=bytes(image),
        kind=_kind(calls, patchable),
        stubs=stubs,
        symbols=_defined(file, entries, strings),
        undefined=_undefined(entries, strings),
        section_sizes={i: section.size for i, section in enumerate(file.sections) if section.flags & _LINKED},
        executable=frozenset(_text_sections(file)),
    )


def _symbol_table(file: elf.ElfFile) -> int:
    tables = file.sections_of_type(elf.SHT_SYMTAB)
    if not tables:
        raise elf.ElfError("the object has no symbol table")
    return tables[0]


def _text_sections(file: elf.ElfFile) -> list[int]:
    return [i for i, section in enumerate(file.sections) if section.flags & elf.SHF_EXECINSTR]


Calls = dict[int, dict[Flavour, list[int]]]


def _calls_to_hooks(file: elf.ElfFile, entries: list[elf.ElfSymbol], strings: bytes, image: bytearray) -> Calls:
    """The offsets of calls to `__fentry__` and `mcount` by text section; their relocations are taken out of `image`."""
    hooks = {i: HOOKS[name] for i, name in _names_of_undefined(entries, strings).items() if name in HOOKS}
    calls: Calls = {}
    if not hooks:
        return calls
    relocations = file.relocation_sections()
    for section in _text_sections(file):
        if section not in relocations:
            continue
        table = file.sections[relocations[section]]
        for number, relocation in enumerate(file.relocations(relocations[section])):
            flavour = hooks.get(relocation.symbol)
            if flavour is None:
                continue
            start = relocation.offset - 1
            _check_call(file, section, start, relocation)
            calls.setdefault(section, {}).setdefault(flavour, []).append(start)
            elf.without_relocation(image, table, number)
    return calls


def _check_call(file: elf.ElfFile, section: int, start: int, relocation: elf.Relocation) -> None:
    code = file.contents(section)
    relative = relocation.type in (elf.R_X86_64_PLT32, elf.R_X86_64_PC32)
    if start < 0 or not relative or code[start] != _CALL:
        found = bytes(code[max(start - 1, 0) : start + STUB_SIZE + 1]).hex(" ")
        raise StubError(
            f"the stub at offset {start:#x} of {file.section_name(section)} is not a 5-byte call ({found}): "
            "the object was built for the large code model, or for -fno-plt; build it with the small model"
        )


def _patchable_entries(file: elf.ElfFile, entries: list[elf.ElfSymbol], image: bytearray) -> dict[int, list[int]]:
    """Offsets of patchable entries by text section; the tables that list them are taken out of `image`.

    There is one table per function, and MCJIT's relocation of them takes time quadratic in their number.
    """
    tables = file.sections_named(_PATCHABLE_ENTRIES)
    relocations = file.relocation_sections() if tables else {}
    sites: dict[int, list[int]] = {}
    for table in tables:
        elf.without_section(image, file, table)
        if table not in relocations:
            continue
        elf.without_section(image, file, relocations[table])
        for relocation in file.relocations(relocations[table]):
            target = entries[relocation.symbol]
            sites.setdefault(target.section, []).append(target.value + relocation.addend)
    return sites


def _kind(calls: Calls, patchable: dict[int, list[int]]) -> Flavour:
    kinds = {flavour for section in calls.values() for flavour in section}
    if patchable:
        kinds.add(Flavour.PATCHABLE)
    if len(kinds) > 1:
        names = " and ".join(sorted(kind.value for kind in kinds))
        raise StubError(f"the object mixes stubs of the flavours {names}; use one of them")
    return kinds.pop() if kinds else Flavour.NONE


def _silenced(
    file: elf.ElfFile, image: bytearray, calls: Calls, patchable: dict[int, list[int]]
) -> dict[int, array[int]]:
    """Write a NOP over every stub in `image`; returns the stubs' offsets by section, ascending."""
    stubs: dict[int, array[int]] = {}
    for section, by_flavour in calls.items():
        stubs[section] = array("Q", sorted(start for starts in by_flavour.values() for start in starts))
    for section, starts in patchable.items():
        stubs[section] = array("Q", sorted(_entry(file, section, start) for start in starts))
    for section, offsets in stubs.items():
        base = file.sections[section].offset
        for start in offsets:
            image[base + start : base + start + STUB_SIZE] = NOP5
    return stubs


def _entry(file: elf.ElfFile, section: int, start: int) -> int:
    """Where the patchable NOPs recorded at `start` are. Raises StubError if they are not five bytes of NOP."""
    code = file.contents(section)
    if code[start : start + len(ENDBR64)] == ENDBR64:
        start += len(ENDBR64)
    found = bytes(code[start : start + STUB_SIZE])
    if found not in _NOP_FORMS:
        raise StubError(
            f"the patchable entry at offset {start:#x} of {file.section_name(section)} holds "
            f"{found.hex(' ')}, not {STUB_SIZE} bytes of NOP: build it with -fpatchable-function-entry=5"
        )
    return start


def _names_of_undefined(entries: list[elf.ElfSymbol], strings: bytes) -> dict[int, str]:
    return {
        i: elf.string_at(strings, entry.name_offset)
        for i, entry in enumerate(entries)
        if entry.section == elf.SHN_UNDEF and entry.name_offset
    }


def _undefined(entries: list[elf.ElfSymbol], strings: bytes) -> frozenset[str]:
    """Names that must come from elsewhere; weak ones may stay unresolved."""
    names = _names_of_undefined(entries, strings)
    strong = {name for i, name in names.items() if entries[i].binding != elf.STB_WEAK}
    return frozenset(strong - HOOKS.keys())


def _defined(file: elf.ElfFile, entries: list[elf.ElfSymbol], strings: bytes) -> list[ObjectSymbol]:
    text = set(_text_sections(file))
    kinds = (elf.STT_FUNC, elf.STT_OBJECT, elf.STT_NOTYPE, elf.STT_COMMON)
    return [
        ObjectSymbol(
            elf.string_at(strings, entry.name_offset),
            entry.section,
            entry.value,
            entry.size,
            entry.section in text,
            entry.binding == elf.STB_LOCAL,
        )
        for entry in entries
        if entry.type in kinds and entry.name_offset and entry.section not in (elf.SHN_UNDEF, elf.SHN_ABS)
    ]


def _refuse_thread_locals(entries: list[elf.ElfSymbol], strings: bytes) -> None:
    for entry in entries:
        if entry.type == elf.STT_TLS:
            name = elf.string_at(strings, entry.name_offset)
            raise StubError(f"thread-local variable {name!r}: the JIT linker cannot place thread-local storage")
