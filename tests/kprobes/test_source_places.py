"""Source lines as places of kprobe events, and the variables that live there, at several levels of optimisation."""

from __future__ import annotations

import ctypes
import random
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from built_library import build_library, built_library, needs_compilers
from sampled import in_stress

import fprobe
from fprobe.tracefs import tracefs
from sandbox.elf.frame_address import frame_address
from sandbox.elf.tables import ElfFile
from sandbox.images.process_text import library_called
from sandbox.images.source_places import address_of_line, split_line
from sandbox.symbols import debugged, source_lines

pytestmark = needs_compilers

SOURCE = """\
struct item { int count; const char *name; struct item *next; };
struct pair { int first; short second; };
void hidden(void *);
static inline __attribute__((always_inline)) long twice(long n) {
    return n * 2;  // twice
}
long sum(struct item *first, long limit) {
    long total = 0;
    for (struct item *each = first; each; each = each->next) {
        if (total > limit)
            return -1;  // too much
        total += twice(each->count);  // add
    }
    return total;
}
long filled(long seed) {
    struct pair both = {(int)seed, 7};
    char text[16] = "abc";
    const long fixed = 42;
    double half = seed / 2.0;
    hidden(&both);
    hidden(text);  // hide
    hidden(&half);  // hide again
    return both.second + fixed;
}
void hidden(void *p) { __asm__ volatile("" ::"r"(p) : "memory"); }
"""


class Item(ctypes.Structure):
    pass


Item._fields_ = [("count", ctypes.c_int), ("name", ctypes.c_char_p), ("next", ctypes.POINTER(Item))]


class Built(NamedTuple):
    """A library of the source above, called `name`.c; `keeps`: the compiler leaves everything in memory."""

    library: ctypes.CDLL
    name: str
    keeps: bool

    def sum(self):
        last = Item(30, b"three", None)
        first = Item(10, b"one", ctypes.pointer(Item(20, b"two", ctypes.pointer(last))))
        return self.library.sum(ctypes.byref(first), ctypes.c_long(1000))


def line_of(text):
    return next(number for number, line in enumerate(SOURCE.splitlines(), 1) if text in line)


@pytest.fixture(
    scope="module",
    params=[("-O0", "5"), *(in_stress((each,)) for each in (("-O1", "4"), ("-O2", "5"))), ("-O2", "4")],
    ids="".join,
)
def built(request):
    return _built(*request.param)


@cache
def _built(level, version):
    """Built and loaded once: in a random order the fixture is made several times, and a line would mean several functions."""
    name = f"lines{level[1:]}dwarf{version}"
    # An empty range at the beginning of the text, as gcc 16 gives `each`, is two zeros in DWARF 4, which end the list.
    source = f'int before(int n) {{ return n; }}\n#line 1 "{name}.c"\n{SOURCE}'
    flags = (
        level,
        "-g",
        f"-gdwarf-{version}",
        "-fno-inline-functions",
        "-fno-ipa-cp",
        "-fno-ipa-sra",
        "-fno-tree-vectorize",
    )
    return Built(built_library(name, source, *flags), name, level == "-O0")


def values(records, *names):
    return [tuple(record[name] for name in names) for record in records]


@pytest.mark.parametrize("place", ["{name}.c:{add}", "{name}:sum:{relative}"])
def test_variables_at_a_line(built, place):
    add = line_of("// add")
    place = place.format(name=built.name, add=add, relative=add - line_of("long sum("))
    with fprobe.event(f"p:adding {place} name=each->name:string count=each->count total limit") as adding:
        assert built.sum() == 120
        assert values(adding.records(), "name", "count", "total", "limit") == [
            ("one", 10, 0, 1000),
            ("two", 20, 20, 1000),
            ("three", 30, 60, 1000),
        ]


def test_all_variables(built):
    with fprobe.event(f"p:all {built.name}.c:{line_of('// add')} $vars") as event:
        built.sum()
        found = list(event.records())
    assert {"total", "limit", "each"} <= set(found[0])
    assert values(found, "total", "limit") == [(0, 1000), (20, 1000), (60, 1000)]


def test_all_variables_of_an_entry_are_the_parameters(built):
    with fprobe.event(f"p:all {built.name}:sum $vars") as event:
        built.sum()
        ((limit,),) = values(event.records(), "limit")
        assert limit == 1000 and "p:kprobes/all" in tracefs.read("dynamic_events")
        assert tracefs.read("dynamic_events").endswith(f"{built.name}:sum first=first limit=limit\n")


def test_structures_and_arrays_in_the_frame_and_constants(built):
    with fprobe.event(f"p:filled {built.name}:filled:{line_of('// hide') - line_of('long filled(')} "
                      "a=both.first b=both.second text:string letter=text:u8[2] fixed") as event:  # fmt: skip
        assert built.library.filled(ctypes.c_long(-5)) == 49
        (record,) = event.records()
    assert (record["a"], record["b"], record["text"], record["letter"], record["fixed"]) == (-5, 7, "abc", [97, 98], 42)


def test_the_listing_defines_the_same_event_again(built):
    with fprobe.event(f"p:adding {built.name}.c:{line_of('// add')} total"):
        listed = tracefs.read("dynamic_events").strip()
    assert f" {built.name}.so:sum+" in listed
    with fprobe.event(listed) as again:
        built.sum()
        assert values(again.records(), "total") == [(0,), (20,), (60,)]


def test_lines_are_those_that_binutils_say(built):
    library = library_called(built.name)
    words = ["readelf", "--wide", "--debug-dump=decodedline", str(library.path)]
    said = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout
    rows = re.findall(rf"^{built.name}\.c +(\d+) +(0x[0-9a-f]+) .*x$", said, re.MULTILINE)
    for line in map(line_of, ("// add", "// twice", "// hide")):
        first = min(int(address, 16) for number, address in rows if int(number) == line)
        assert address_of_line(f"{built.name}.c", line) == library.base + first


def test_frame_addresses_are_those_of_another_reader(built):
    from elftools.dwarf.callframe import FDE
    from elftools.elf.elffile import ELFFile

    library, compared = library_called(built.name), 0
    with library.path.open("rb") as file:
        for entry in ELFFile(file).get_dwarf_info().EH_CFI_entries():
            if not isinstance(entry, FDE):
                continue
            for row in entry.get_decoded().table:
                if row["cfa"].expr is None:
                    assert frame_address(library.base + row["pc"]) == (row["cfa"].reg, row["cfa"].offset)
                    compared += 1
    assert compared > 5


# -- what is refused


def refused(definition):
    with pytest.raises(OSError) as caught, fprobe.event(definition):
        pass
    return caught.value.strerror


def test_a_line_without_code(built):
    said = refused(f"p:z {built.name}.c:2")
    assert (
        said.startswith("Invalid probed address or symbol\n")
        and f"no code begins at line 2 of {Path.cwd()}/{built.name}.c; " in said
    )
    assert re.search(r"the nearest line that can be probed is [45]$", said)
    assert f"no code of {built.name}:sum begins at its line 99" in refused(f"p:z {built.name}:sum:99")


def test_a_variable_that_is_not_there(built):
    said = refused(f"p:z {built.name}.c:{line_of('// add')} nothing")
    assert (
        "BTF is not available or not supported" in said and "the variables here are first, limit, total, each" in said
    )
    said = refused(f"p:z {built.name}.c:{line_of('// hide again')} x=seed+1")
    assert "the variables here are" in said


def test_a_variable_that_is_optimized_out(built):
    place = f"{built.name}.c:{line_of('// hide again')}"
    if not built.keeps:
        assert "\n  seed is optimized out here: " in refused(f"p:z {place} seed")
    assert "\n  half is no integer or address" in refused(f"p:z {place} half")
    assert "\n  both is a structure: give NAME.FIELD" in refused(f"p:z {place} both")


def test_a_return_probe_needs_an_entry(built):
    assert refused(f"r:z {built.name}.c:{line_of('// add')}").startswith("Retprobe address must be an function entry")


def test_no_debug_information():
    library = built_library("undescribed", "long undescribed(long n) { return n + 1; }")
    assert library and "there is no debug information about undescribed:undescribed: compile it with -g" in refused(
        "p:z undescribed:undescribed:0"
    )
    assert "was compiled from nowhere.c" in refused("p:z nowhere.c:3")


def test_modules_that_name_no_such_file_are_not_read(built, monkeypatch):
    """Their debug information takes a second, once for each line of a place."""
    assert source_lines.code_of_modules()
    monkeypatch.setattr(debugged, "_of_module", lambda *_: pytest.fail("a module was read"))
    assert address_of_line(f"{built.name}.c", line_of("// add"))


@pytest.mark.stress
def test_a_line_in_several_functions_and_a_name_of_several_files():
    header = (
        '\n#line 1 "shared.h"\nstatic inline __attribute__((always_inline)) long half(long n) {\n    return n / 2;\n}\n'
    )
    users = '#line 1 "users.c"\nlong one(long n) { return half(n) + 1; }\nlong two(long n) { return half(n) - 1; }\n'
    first = built_library("users", header + users, "-g")
    said = refused("p:z shared.h:2")
    assert first and "shared.h:2 was compiled into 2 functions: give one of users.so:one, users.so:two" in said
    second = built_library("others", '#line 1 "elsewhere/users.c"\nlong three(long n) { return n * 3; }\n', "-g")
    said = refused("p:z users.c:1")
    assert second and "users.c is the name of several files: give more of the path of one of " in said
    with fprobe.event("p:z elsewhere/users.c:1") as event:
        second.three(1)
        assert len(list(event.records())) == 1


@pytest.mark.parametrize(
    "section", [".debug_info", in_stress(".debug_line"), in_stress(".debug_loclists"), ".debug_abbrev"]
)
def test_damaged_debug_information(section, tmp_path):
    name = f"damaged{section[7:]}"
    path = tmp_path / f"{name}.so"
    build_library(path, f'#line 1 "{name}.c"\n{SOURCE}', "-g", "-gdwarf-5", "-Wl,-z,nodelete")
    data = bytearray(path.read_bytes())
    file = ElfFile(bytes(data))
    (index,) = file.sections_named(section)
    start, size = file.sections[index].offset, file.sections[index].size
    whole = bytes(data)
    said = []
    for seed in range(3):
        chosen = random.Random(seed)
        for _ in range(size // 20 + 4):
            data[start + chosen.randrange(size)] = chosen.randrange(256)
        path = tmp_path / f"{name}{seed}.so"
        path.write_bytes(data)
        ctypes.CDLL(str(path))
        for place in (f"{name}{seed}:sum:5", f"{name}.c:{line_of('// add')}"):
            said.append(outcome(f"p:z {place} total"))
        data[:] = whole
    assert len(said) == 6 and any(said)


def outcome(definition):
    """What refuses the definition; '' if nothing does."""
    try:
        with fprobe.event(definition):
            return ""
    except OSError as error:
        return error.strerror


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("app.c:42", ("app.c", 42)),
        ("lib:f:3", ("lib:f", 3)),
        ("lib:f", None),
        ("f+3", None),
        (":3", None),
        ("a::b", None),
    ],
)
def test_only_digits_after_the_last_colon_are_a_line(text, split):
    assert split_line(text) == split
