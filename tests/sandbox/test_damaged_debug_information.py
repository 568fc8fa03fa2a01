"""Debug information in which bytes were changed: what is read of it is there or is not, and nothing else happens."""

from __future__ import annotations

import os
import random
import shutil
import subprocess

import pytest
from elftools.elf.elffile import ELFFile
from sampled import in_stress

from sandbox.images import btf, prototypes
from sandbox.images.source_places import damage_said
from sandbox.images.variables import variables_of
from sandbox.symbols.debugged import Debugged
from sandbox.symbols.libraries import Library
from sandbox.symbols.library_dwarf import information_of

SOURCE = """
struct node { int count; struct node *next; char name[12]; union { double d; long l; } u; enum { A, B } k : 3; };
__attribute__((noinline)) static long walk(struct node *n, int depth) {
    long t = 0;
    for (; n; n = n->next) { int each = n->count * depth; t += each; }
    return t;
}
int handle(const char *text, unsigned char flags, double f, struct node v, int (*called)(int)) {
    char copy[20];
    long s = walk(&v, flags);
    for (int i = 0; text[i]; i++) { copy[i % 20] = text[i]; s += called(copy[i % 20]); }
    return s + f;
}
"""
BASE = 0x10000000


@pytest.fixture(scope="module", params=[4, in_stress(5)])
def built(request, tmp_path_factory):
    """The bytes of a library, and where its debug information is in them."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    path = tmp_path_factory.mktemp("built") / "lib.so"
    command = ["gcc", f"-gdwarf-{request.param}", "-O1", "-shared", "-fPIC", "-xc", "-", "-o", path]
    subprocess.run(command, input=SOURCE, text=True, check=True, timeout=60)
    with path.open("rb") as file:
        sections = [each for each in ELFFile(file).iter_sections() if each.name.startswith(".debug")]
    return path.read_bytes(), [(each["sh_offset"], each["sh_size"]) for each in sections]


def damaged(data, sections, choose):
    data, (start, size) = bytearray(data), choose.choice(sections)
    for _ in range(choose.choice((1, 3, 20))):
        data[start + choose.randrange(size)] = choose.choice((0, 0xFF, choose.randrange(256)))
    if choose.random() < 0.1:
        data[start + size // 2 : start + size] = bytes(size - size // 2)
    return data


def followed(kind, depth=3):
    """Ask for the types that a type leads to."""
    if isinstance(kind, btf.Pointer) and depth:
        followed(kind.target, depth - 1)
    for member in kind.members if isinstance(kind, btf.Struct) and depth else ():
        followed(member.type, depth - 1)


def read(library, symbol):
    """All that is read of a function: its prototype, its lines, its variables."""
    known = prototypes.prototype(f"{library.name}:{symbol.name}")
    for _, kind in known.parameters if known else ():
        followed(kind)
    prototypes.signature_in_library(symbol)
    try:
        with damage_said(symbol.name):
            information = information_of(library)
            function = information and next(Debugged(BASE, information).functions_at(symbol.address), None)
            for address in [*function.lines().values()][:4] if function else ():
                variables_of(function, address, lambda: (7, 8))
    except LookupError as said:
        assert "is damaged" in str(said)
    return known is not None


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("seed", "rounds"), [(1, 30), in_stress((2, 300))])
def test_whatever_is_damaged_is_absent_or_named(built, tmp_path, monkeypatch, seed, rounds):
    choose, known = random.Random(seed), []
    for number in range(rounds):
        path = tmp_path / "lib.so"
        path.write_bytes(damaged(*built, choose))
        os.utime(path, ns=(number, number))  # what was read of a file is kept
        library = Library("lib.so", path, BASE, ((BASE, BASE + 0x10000),))
        monkeypatch.setattr(prototypes, "library_of", lambda _, library=library: library)
        for name in ("handle", "walk"):
            symbol = next(each for each in library.symbols if each.name == name)
            monkeypatch.setattr(prototypes, "symbol_named", lambda _, symbol=symbol: symbol)
            known.append(read(library, symbol))
    assert any(known) and not all(known)
