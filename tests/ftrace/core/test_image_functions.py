"""Patterns that mean functions of modules, libraries and other images."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence

import pytest

import sandbox
from ftrace.core.filters.image_functions import find_functions
from sandbox.images import sources
from sandbox.images.image import Image, Source
from sandbox.images.library_images import LibraryImage
from sandbox.images.process_text import symbol_named
from sandbox.memory.mappings import TextMapping
from sandbox.symbols.libraries import Library
from sandbox.symbols.table import Symbol

pytestmark = pytest.mark.usefixtures("_module")

ctypes.CDLL("libz.so.1")


@pytest.fixture
def _module() -> Iterator[None]:
    module = sandbox.load("define i32 @inflate_own(i32 %x) { ret i32 %x }", name="resolved")
    yield
    module.unload()


def names(pattern: str) -> list[str]:
    return [found.function.name for found in find_functions(pattern)]


def test_without_an_owner_only_modules_are_meant() -> None:
    assert names("inflate_*") == ["inflate_own"]
    with pytest.raises(
        LookupError, match=r"no function of .*\[resolved\].* matches 'deflate'; did you mean libz:deflate"
    ):
        find_functions("deflate")


def test_what_is_suggested_takes_no_search_of_every_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some have symbols by the hundred thousand: a message would be seconds late."""
    monkeypatch.delattr(LibraryImage, "functions")
    monkeypatch.delattr(Library, "symbols")
    with pytest.raises(LookupError, match="did you mean libc:strtol"):
        find_functions("strtoll_")


def test_a_glob_of_functions_of_what_is_not_loaded_takes_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """As before Numba has compiled anything: no function is called like a glob."""
    monkeypatch.delattr(LibraryImage, "suggestions")
    with pytest.raises(LookupError, match=r"no function 'program\.\*' in \[numba\]: nothing has been compiled yet$"):
        find_functions("numba:program.*")


def test_a_library_is_named_by_its_stem_its_name_or_a_glob() -> None:
    expected = names("libz:inflate*")
    assert {"inflate", "inflateInit_", "inflateEnd"} <= set(expected)
    assert names("libz.so.1:inflate*") == expected
    assert names("lib[z]:inflate*") == expected
    assert {"inflate", "inflate_own"} <= set(names("*[dz]:inflate*"))  # of libz and of this module


def test_functions_without_a_symbol_are_among_all() -> None:
    everything = find_functions("libz:*")
    assert len({found.function.address for found in everything}) == len(everything)
    assert any(found.function.name.startswith("libz.so.1+0x") for found in everything)


def test_an_indirect_function_is_what_it_is_in_this_process() -> None:
    assert symbol_named("libc:strlen").address in {found.function.address for found in find_functions("libc:strlen")}
    assert not any(found.function.indirect for found in find_functions("libc:str*"))


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("libq:foo", r"'libq' is loaded; did you mean .*libz"),
        ("libz:inflte", r"\[libz.so.1\] matches 'inflte'; did you mean .*inflate"),
        ("resolved:inflate_onw", r"\[resolved\] matches 'inflate_onw'; did you mean inflate_own"),
    ],
)
def test_a_name_that_is_nowhere_gets_near_misses(pattern: str, message: str) -> None:
    with pytest.raises(LookupError, match=message):
        find_functions(pattern)


class _Jitted(Image):
    name = "jitted"
    names = frozenset({"jitted"})
    is_live = True
    functions: Sequence[Symbol] = (Symbol("module.square", 0x1000, 16, "jitted"),)

    def __contains__(self, address: object) -> bool:
        return address == 0x1000

    def text_at(self, address: int) -> TextMapping:
        raise OSError(22, "nothing is there")


class _JustInTime(Source):
    is_named = True

    def images(self) -> list[Image]:
        return [_Jitted()]


def test_images_of_a_source_with_names_are_meant_by_name_only(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [*sources.sources(), _JustInTime()]
    monkeypatch.setattr("ftrace.core.filters.image_functions.sources", lambda: found)
    assert names("jitted:module.*") == ["module.square"]
    with pytest.raises(LookupError):
        find_functions("module.*")


def test_llvm_which_we_load_ourselves_is_not_meant_by_a_glob() -> None:
    """`*:*` would attach to five times as many functions of LLVM as of everything else."""
    assert "libllvmlite.so" not in {found.image.name for found in find_functions("lib[lz]*:*Version*")}


@pytest.mark.stress
def test_llvm_which_we_load_ourselves_is_found_by_its_name() -> None:
    """Reading its tables takes as long as those of all other libraries together."""
    expected = names("libllvmlite:LLVMPY_*Module")
    assert expected and names("*llvm*:LLVMPY_*Module") == expected
