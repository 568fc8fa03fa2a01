"""The shared libraries of this process."""

from __future__ import annotations

import ctypes
import random
import sys
from pathlib import Path

import pytest
from isolation import isolated

from sandbox.elf import tables
from sandbox.images import library_images
from sandbox.images.process_text import library_called
from sandbox.memory import mappings as memory
from sandbox.symbols.file_names import is_in_folder, names_of, short_name, split_folder, told_apart
from sandbox.symbols.libraries import Library, libraries, library_at
from sandbox.symbols.symbol_tables import read_symbols
from sandbox.symbols.table import locate


def address_of(function) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value


@pytest.fixture(scope="module")
def libc():
    return next(library for library in libraries() if library.name.startswith("libc.so"))


def test_the_program_itself_comes_first():
    assert libraries()[0].path == Path(sys.executable).resolve()


def test_text_is_where_the_kernel_says(libc):
    file, probed = str(libc.path.resolve()), f"/memfd:{libc.name}"  # the latter once it has been probed
    mapped = [
        (start, end, path) for start, end, _permissions, path in memory.mappings() if path.startswith((file, probed))
    ]
    assert libc.base == min(start for start, _, path in mapped if path == file)
    for start, end in libc.text:
        assert any(low <= start and end <= high for low, high, _ in mapped)


def test_an_address_is_in_one_library():
    address = address_of(ctypes.CDLL(None).strtol)
    assert library_at(address).name.startswith("libc.so")
    assert library_at(id(object())) is None


def test_symbols_have_the_addresses_that_the_loader_gives(libc):
    symbols = {symbol.name.partition("@")[0]: symbol for symbol in libc.symbols}
    for name in ("strtol", "qsort", "abort"):
        assert symbols[name].address == address_of(ctypes.CDLL(None)[name])
        assert symbols[name].size > 0 and symbols[name].section == ".text"
    location = libc.locate(symbols["qsort"].address + 1)
    assert location.offset == 1 and location.symbol.address == symbols["qsort"].address


def test_the_load_base_of_a_handle(libc):
    assert tables.load_base(ctypes.CDLL(libc.path.name)._handle) == libc.base


def test_a_library_without_a_file_has_no_symbols():
    vdso = [library for library in libraries() if "vdso" in library.name]
    assert all(library.symbols == () for library in vdso)


def test_what_a_library_exports_are_its_functions(libc):
    exported = set(libc.exported)
    assert {"strtol", "qsort", "memcpy"} <= exported and "environ" not in exported
    assert exported <= {symbol.name for symbol in libc.symbols}
    assert all(library.exported == () for library in libraries() if "vdso" in library.name)


def test_symbols_are_in_order_and_named(libc):
    addresses = [symbol.address for symbol in libc.symbols]
    assert addresses == sorted(addresses) and len(addresses) > 1000
    assert {symbol.module for symbol in libc.symbols} == {libc.name}
    found = {symbol.name: symbol.address for symbol in read_symbols(libc.path.read_bytes(), 0, "x")}
    assert found["qsort"] == next(symbol.address for symbol in libc.symbols if symbol.name == "qsort") - libc.base


def test_what_is_loaded_later_is_there():
    import _ctypes_test  # a library that nothing else loads

    names = [library.name for library in libraries()]
    assert Path(_ctypes_test.__file__).name in names


def copy_of(library: Library) -> Library:
    """One that has read nothing."""
    return Library(library.name, library.path, library.base, library.text, library.unwind_table)


@isolated
def test_what_dlmopen_has_loaded_is_told():
    from sandbox.images.near_misses import no_image
    from sandbox.symbols.libraries import elsewhere

    assert elsewhere() == 0 and "dlmopen" not in no_image("libnosuch", "f")
    process = ctypes.CDLL(None)
    process.dlmopen.restype = ctypes.c_void_p
    assert process.dlmopen(ctypes.c_long(-1), b"libz.so.1", 2)
    assert elsewhere() >= 2  # and the C library
    assert "dlmopen has loaded into other namespaces" in no_image("libnosuch", "f")


def test_a_few_questions_are_answered_as_from_all_symbols(libc):
    """Without reading them all, which takes a second for LLVM's library: that is asked for one address or one name."""
    chosen = random.Random(1)
    symbols = libc.symbols
    old = [symbol for symbol in symbols if "@" in symbol.name]
    for symbol in [symbols[0], symbols[-1], *chosen.sample(symbols, 8), *old[:2]]:
        asked = copy_of(libc)
        assert asked.named(symbol.name) == next(other for other in symbols if other.name == symbol.name)
        for address in (symbol.address, symbol.address + symbol.size // 2, symbol.end, symbol.address - 1):
            assert asked.locate(address) == locate(symbols, address)
        assert "symbols" not in vars(asked)
    asked = copy_of(libc)
    assert asked.named("no such symbol") is None and asked.named("") is None
    assert asked.locate(0) is None and asked.locate(libc.base - 1) is None
    assert [asked.locate(symbol.address) for symbol in symbols[:50]] == [
        locate(symbols, s.address) for s in symbols[:50]
    ]
    assert "symbols" in vars(asked)  # much has been asked for


def test_an_extension_module_is_called_without_the_tag_of_its_file():
    import _cffi_backend

    file = Path(_cffi_backend.__file__).name
    assert file.startswith("_cffi_backend.") and file != "_cffi_backend.so"
    for name in ("_cffi_backend", file, file.partition(".so")[0]):
        assert library_called(name).path.name == file
        assert [image.library.path.name for image in libraries_named(name)] == [file]


def libraries_named(name):
    return [image for image in library_images.source.images() if name in image.names]


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("libz.so.1.2.13", "libz.so"),
        ("libcrypt-2.31.so", "libcrypt"),
        ("libgomp-a34b3233.so.1.0.0", "libgomp"),
        ("libopenblas64_p-r0-a0cf96a7.3.23.dev.so", "libopenblas64_p-r0"),
        ("libstdc++.so.6", "libstdc__"),
        ("etree.cpython-311-x86_64-linux-gnu.so", "etree.cpython-311-x86_64-linux-gnu"),
    ],
)
def test_a_name_of_a_file(file, name):
    assert name in names_of(file)


def test_another_library_is_not_called_so():
    assert "libfoo" not in names_of("libfoo-extra.so")


TWINS = ("/lib/libz.so.1", "/opt/a/x/_core.so", "/opt/b/x/_core.so", "/lib/libssl.so.3", "/lib/libssl.so.1.1")


@pytest.mark.parametrize(
    ("path", "name"), [*zip(TWINS, ("libz", "a/x/_core", "b/x/_core", "libssl.so.3", "libssl.so.1.1"), strict=True)]
)
def test_libraries_of_one_name_are_told_apart(path, name):
    assert told_apart(path, TWINS) == name
    folder, file = split_folder(name)
    meant = [each for each in TWINS if file in names_of(each.rpartition("/")[2]) and is_in_folder(each, folder)]
    assert not folder or meant == [path]


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("zlib.cpython-311-x86_64-linux-gnu.so", "zlib"),
        ("zlib.cpython-313t-x86_64-linux-gnu.so", "zlib"),
        ("_hash.cpython-310-x86_64-linux-musl.so", "_hash"),
        ("etree.abi3.so", "etree"),
        ("etree.abi3t.so", "etree"),
        ("_ssl.pypy310-pp73-x86_64-linux-gnu.so", "_ssl"),
        ("plain.so", "plain"),
        ("libz.so.1.2.13", "libz"),
        ("libabi3.so", "libabi3"),
    ],
)
def test_the_short_name_of_a_file(file, name):
    assert short_name(file) == name
