"""Which stretches of code in unwind tables are functions: against pyelftools, and against what gcc was given."""

from __future__ import annotations

import ctypes
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from elftools.dwarf.callframe import FDE
from elftools.elf.elffile import ELFFile
from sampled import sampled

from sandbox.elf.ehframe import Kind
from sandbox.images import process_text
from sandbox.loading.csource import find_compiler

LIBRARIES = [
    "libz.so.1", "libbz2.so.1.0", "liblzma.so.5", "libexpat.so.1", "libm.so.6", "libsqlite3.so.0",
    pytest.param("libcrypto.so.3", marks=pytest.mark.stress), "libssl.so.3", "libffi.so.8", "libc.so.6",
    pytest.param("libstdc++.so.6", marks=pytest.mark.stress),
]  # fmt: skip
SOURCE = r"""
#include <stdlib.h>
__attribute__((cold, noipa)) void report(const char *text, long x) { if (!text) exit((int)x); }
static __attribute__((noipa)) long only_called(long x) { return x * 3; }
static __attribute__((noipa)) long only_in_a_table(long x) { return x * 5; }
static __attribute__((noipa)) long only_jumped_to(long x) { return x * 7; }
long (*table[])(long) = { only_in_a_table };
long jumps(long x) { return only_jumped_to(x + 1); }
long split(long x, long *out) {
    long saved = only_called(x);
    if (__builtin_expect(x < 0, 0)) { report("a", saved); report("b", x); out[1] = saved; report("c", out[0]); }
    out[0] = saved + only_called(saved);
    return saved + out[0];
}
"""


def is_as_called(entry):
    """By pyelftools: the CFA at the first instruction is rsp + 8, and nothing but the return address is saved."""
    cfa, saved = None, set()
    for instructions in (entry.cie.instructions, entry.instructions):
        for instruction in instructions:
            if not isinstance(instruction.opcode, int):
                return False
            top = instruction.opcode & 0xC0
            if top == 0x40 or instruction.opcode in (1, 2, 3, 4):
                break
            if instruction.opcode == 0x0C:
                cfa = tuple(instruction.args)
            elif instruction.opcode == 0x0D:
                cfa = (instruction.args[0], cfa[1])
            elif instruction.opcode == 0x0E:
                cfa = (cfa[0], instruction.args[0])
            elif top == 0x80:
                saved.add(instruction.args[0])
            elif instruction.opcode not in (0x00, 0x2E):
                return False
    return cfa == (7, 8) and saved == {16}


def counted(path):
    """What there is of each kind; functions and what cannot be shown to be one together."""
    with Path(path).open("rb") as file:
        elf = ELFFile(file)
        tables = [
            (section["sh_addr"], section["sh_addr"] + section["sh_size"])
            for section in elf.iter_sections()
            if section.name.startswith(".plt")
        ]
        found = Counter()
        for entry in elf.get_dwarf_info().EH_CFI_entries():
            if isinstance(entry, FDE):
                at = entry["initial_location"]
                if b"S" in entry.cie.header.augmentation:
                    found[Kind.SIGNAL_FRAME] += 1
                elif any(start <= at < end for start, end in tables):
                    found[Kind.PLT] += 1
                else:
                    found[Kind.FUNCTION if is_as_called(entry) else Kind.COLD] += 1
    return found


@pytest.mark.parametrize("name", sampled(LIBRARIES, 4))
def test_the_kinds_of_code_are_counted_as_by_another_reader(name):
    try:
        ctypes.CDLL(name)
    except OSError:
        pytest.skip(f"no {name} here")
    library = process_text.library_called(name)
    found = Counter(library.kind_at(start) for start, end in library.described_code() if start < end)
    unknown = found.pop(Kind.UNKNOWN, 0)
    found[Kind.FUNCTION] += unknown
    assert found == counted(library.path)
    assert unknown < 0.2 * found[Kind.FUNCTION]
    assert len(library.functions()) == found[Kind.FUNCTION] - unknown


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A library with a symbol table, and another without: where each name is in it, by the same offsets."""
    directory = tmp_path_factory.mktemp("described")
    whole, stripped = directory / "libdescribed.so.1", directory / "libstripped.so.1"
    (directory / "source.c").write_text(SOURCE)
    flags = ["-O2", "-fPIC", "-shared", "-fcf-protection=none", "-xc"]
    subprocess.run([*find_compiler("C", whole), *flags, "-o", whole, directory / "source.c"], check=True)
    subprocess.run(["strip", "-o", stripped, whole], check=True)
    for file in (whole, stripped):
        ctypes.CDLL(str(file))
    known = process_text.library_called("libdescribed")
    offsets = {symbol.name: symbol.address - known.base for symbol in known.symbols}
    assert "split.cold" in offsets
    return process_text.library_called("libstripped"), offsets


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("split", Kind.FUNCTION),
        ("jumps", Kind.FUNCTION),
        ("only_called", Kind.FUNCTION),
        ("only_in_a_table", Kind.FUNCTION),
        ("only_jumped_to", Kind.UNKNOWN),
        ("split.cold", Kind.COLD),
    ],
)
def test_what_is_a_function_in_a_stripped_library(built, name, kind):
    library, offsets = built
    address = library.base + offsets[name]
    assert library.kind_at(address) is kind
    symbol = process_text.symbol_at(address)
    assert symbol.address == address and symbol.name.endswith(kind.suffix)
    assert bool(process_text.no_function(symbol)) == (kind is not Kind.FUNCTION)


def test_with_a_symbol_all_are_functions_but_what_is_named_as_a_part(built):
    names = ("split", "only_jumped_to", "split.cold")
    found = [process_text.no_function(process_text.symbol_named(f"libdescribed:{name}")) for name in names]
    assert [bool(reason) for reason in found] == [False, False, True]
