"""Symbols of stripped libraries, from the files that debuggers take them from, and symbols with versions."""

from __future__ import annotations

import ctypes
import lzma
import shutil
import subprocess

import pytest
from isolation import isolated

from sandbox.elf import debug_files
from sandbox.symbols.libraries import Library
from sandbox.symbols.library_dwarf import absence

SOURCE = """
static __attribute__((noinline)) int inner(int x) { return x * 5 + *(volatile int *)&x; }
int outer(int x) { return inner(x) + 1; }
int foo_old(int x) { return x + 1; }
int foo_new(int x) { return x + 2; }
__asm__(".symver foo_old,foo@V1");
__asm__(".symver foo_new,foo@@V2");
"""
VERSIONS = "V1 { global: outer; foo; local: *; };\nV2 { } V1;\n"


def _run(*command):
    subprocess.run([str(word) for word in command], check=True)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A directory with the library as the linker has made it, and its debug file."""
    where = tmp_path_factory.mktemp("built")
    (where / "v.c").write_text(SOURCE)
    (where / "v.map").write_text(VERSIONS)
    flags = ("-O2", "-g", "-shared", "-fPIC", "-Wl,--build-id", f"-Wl,--version-script={where}/v.map")
    _run("gcc", *flags, where / "v.c", "-o", where / "libv.so")
    _run("objcopy", "--only-keep-debug", where / "libv.so", where / "libv.so.debug")
    return where


@pytest.fixture
def stripped(built, tmp_path, monkeypatch):
    """The library without symbols, alone in a directory; nothing is in the directories of the distribution."""
    monkeypatch.setattr(debug_files, "DIRECTORIES", [tmp_path / "usr"])
    library = tmp_path / "lib" / "libv.so"
    library.parent.mkdir()
    shutil.copy(built / "libv.so", library)
    _run("strip", library)
    return library


def _names(path):
    return {symbol.name for symbol in Library("libv.so", path, 0, ()).symbols}


def _link(library, debug):
    _run("objcopy", f"--add-gnu-debuglink={debug}", library)


def test_a_stripped_library_has_what_it_exports(stripped):
    assert _names(stripped) >= {"outer", "foo", "foo@V1"}
    assert "inner" not in _names(stripped)


@pytest.mark.parametrize("place", ["libv.so.debug", ".debug/libv.so.debug", "root"])
def test_the_file_that_gnu_debuglink_names(built, stripped, tmp_path, place):
    debug = stripped.parent / place
    if place == "root":
        debug = tmp_path / "usr" / stripped.parent.relative_to("/") / "libv.so.debug"
    debug.parent.mkdir(parents=True, exist_ok=True)
    _link(stripped, built / "libv.so.debug")
    assert "inner" not in _names(stripped)
    shutil.copy(built / "libv.so.debug", debug)
    assert _names(stripped) >= {"inner", "outer", "foo", "foo@V1"}
    assert not any("@@" in name for name in _names(stripped))


def test_the_file_that_the_build_id_names(built, stripped, tmp_path):
    name = debug_files.build_id(debug_files.mapped(stripped))
    debug = tmp_path / "usr" / ".build-id" / name[:2] / f"{name[2:]}.debug"
    debug.parent.mkdir(parents=True)
    shutil.copy(built / "libv.so.debug", debug)
    assert "inner" in _names(stripped)


def test_a_debug_file_of_another_build_is_not_used_but_named(built, stripped):
    other = stripped.parent / "libv.so.debug"
    _link(stripped, built / "libv.so.debug")
    library = Library("libv.so", stripped, 0, ())
    assert absence(library, "outer").endswith("install its debug file")
    flags = ("-O0", "-shared", "-fPIC", "-Wl,--build-id", f"-Wl,--version-script={built}/v.map")
    _run("gcc", *flags, built / "v.c", "-o", other)
    assert "inner" not in _names(stripped)
    assert absence(library, "outer").endswith(f"install its debug file; {other} is of another build")


@pytest.mark.parametrize("damaged", [False, True])
def test_symbols_that_are_compressed_in_the_library(built, stripped, tmp_path, damaged):
    data = lzma.compress((built / "libv.so.debug").read_bytes())
    (tmp_path / "mini").write_bytes(data[: len(data) // 2] if damaged else data)
    _run("objcopy", f"--add-section=.gnu_debugdata={tmp_path}/mini", stripped)
    assert ("inner" in _names(stripped)) is not damaged
    assert "outer" in _names(stripped)


def test_a_file_that_cannot_be_used_is_passed_over(built, stripped):
    _link(stripped, built / "libv.so.debug")
    (stripped.parent / "libv.so.debug").write_bytes(b"")
    (stripped.parent / ".debug").mkdir()
    (stripped.parent / ".debug" / "libv.so.debug").write_bytes(b"no ELF file at all")
    assert "outer" in _names(stripped)


@pytest.mark.parametrize("form", ["libv.so", "stripped"])
def test_a_name_means_the_version_that_programs_are_linked_with(built, stripped, form):
    library = Library("libv.so", stripped if form == "stripped" else built / form, 0, ())
    address = {symbol.name: symbol.address for symbol in library.symbols}
    assert address["foo"] != address["foo@V1"]
    assert [library.unversioned(f"foo@@{version}") for version in ("V1", "V2")] == ["foo@@V1", "foo"]
    assert library.unversioned("foo@V1") == "foo@V1"


def test_probes_of_one_version_do_not_see_the_other(built):
    _probe_versions(path=str(built / "libv.so"))


@isolated(timeout=60)
def _probe_versions(path):
    import fprobe
    import kprobes

    library = ctypes.CDLL(path)
    libc = ctypes.CDLL(None)
    libc.dlvsym.restype = ctypes.c_void_p
    old = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(libc.dlvsym(ctypes.c_void_p(library._handle), b"foo", b"V1"))
    with (
        fprobe.attach("libv:foo", action=fprobe.Count()) as new,
        fprobe.attach("libv:foo@@V2", action=fprobe.Count()) as exact,
        fprobe.attach("libv:foo@V1", action=fprobe.Count()) as compatible,
        kprobes.attach("libv:foo@@V2", action=kprobes.Count()) as met,
    ):
        assert (library.foo(1), library.foo(1), old(1)) == (3, 3, 2)
    assert (new.hits, exact.hits, compatible.hits, met.hits) == (2, 2, 1, 2)
