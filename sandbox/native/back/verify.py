"""Verification of compiled native code: only permitted calls, and no use of vector registers.

A handler runs while the traced program's vector and x87 registers are live: code that used one of them would silently change the
program's results.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from sandbox.elf import tables
from sandbox.x86_64.decoding import decoded

MAX_FRAME = 4096 + 256
"""Bytes of stack that one function may use: its variables and saved registers."""
REGISTERS = re.compile(r"\b(?:[xyz]?mm\d+|st(?:\(\d\))?|k[0-7]|tmm\d|bnd\d)\b")
MNEMONICS = re.compile(r"^(?:f|v(?!err$|erw$|mcall$)|emms|(?:ld|st)mxcsr|xsave|xrstor|bnd)|^(?:wait)$")
ALLOCATION = re.compile(r"^rsp, (0x[0-9a-f]+|\d+)$")


def verify_object(data: bytes, allowed: Collection[str] = ()) -> list[str]:
    """The violations in the relocatable object *data*, as sentences; none if it may run as a native handler.

    Every undefined symbol must be in *allowed*; no instruction may touch x87, MMX, SSE, AVX or mask registers; no
    function may take more than MAX_FRAME bytes of stack at once. Raises sandbox.elf.tables.ElfError if *data* is no object.
    """
    file = tables.ElfFile(data)
    return [*_undefined(file, frozenset(allowed)), *_instructions(file)]


def _undefined(file: tables.ElfFile, allowed: frozenset[str]) -> Iterator[str]:
    for table in file.sections_of_type(tables.SHT_SYMTAB):
        strings = file.strings(table)
        for symbol in file.symbols(table)[1:]:
            name = tables.string_at(strings, symbol.name_offset)
            if symbol.section == tables.SHN_UNDEF and name not in allowed and name != "_GLOBAL_OFFSET_TABLE_":
                yield f"it refers to {name}, which native code may not use"


def _instructions(file: tables.ElfFile) -> Iterator[str]:
    for index, section in enumerate(file.sections):
        if section.type == tables.SHT_PROGBITS and section.flags & tables.SHF_EXECINSTR and section.size:
            yield from _section(bytes(file.contents(index)), file.section_name(index), _functions(file, index))


def _section(code: bytes, name: str, functions: list[tuple[int, str]]) -> Iterator[str]:
    end = 0
    for address, size, mnemonic, operands in decoded(code):
        end = address + size
        problem = _problem(mnemonic, operands)
        if problem:
            yield f"{_place(functions, address)}: `{mnemonic} {operands}`".rstrip(" `") + f"` {problem}"
    if end != len(code):
        yield f"{name}+{end:#x}: these bytes are no instruction: {code[end : end + 8].hex(' ')}"


def _problem(mnemonic: str, operands: str) -> str:
    if MNEMONICS.match(mnemonic) or REGISTERS.search(operands):
        return "touches vector or floating-point state"
    allocation = ALLOCATION.match(operands) if mnemonic == "sub" else None
    if allocation and int(allocation[1], 0) > MAX_FRAME:
        return f"takes more than {MAX_FRAME} bytes of stack"
    return ""


def _functions(file: tables.ElfFile, section: int) -> list[tuple[int, str]]:
    found = []
    for table in file.sections_of_type(tables.SHT_SYMTAB):
        strings = file.strings(table)
        for symbol in file.symbols(table):
            if symbol.section == section and symbol.info & 15 in (tables.STT_FUNC, tables.STT_NOTYPE):
                found.append((symbol.value, tables.string_at(strings, symbol.name_offset)))
    return sorted(found)


def _place(functions: list[tuple[int, str]], address: int) -> str:
    start, name = max((f for f in functions if f[0] <= address and f[1]), default=(0, "the code"))
    return f"{name}+{address - start:#x}"
