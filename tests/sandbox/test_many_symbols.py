"""Hazard: what is searched for in a library's tables is not what reading all of them gives."""

from __future__ import annotations

import importlib
import random
import ssl
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from sampled import in_stress

from ftrace.core.glob import bits_of, parse, select
from sandbox.compile import cache
from sandbox.images import library_images
from sandbox.images.library_images import LibraryImage
from sandbox.symbols import libraries as module
from sandbox.symbols.libraries import Library, libraries

LOADED = (ssl, zlib)


@pytest.fixture(autouse=True)
def nothing_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers are those of this run."""
    monkeypatch.setenv(cache.DIRECTORY, str(tmp_path / "kept"))


def copies(name: str) -> tuple[LibraryImage, LibraryImage]:
    """The library twice, without anything that is known of it."""
    if name == "libllvmlite":
        importlib.import_module("llvmlite.binding")
    found = next(each for each in libraries() if each.name.startswith(name))
    return tuple(  # type: ignore[return-value]
        LibraryImage(Library(found.name, found.path, found.base, found.text, found.unwind_table, found.marks))
        for _ in range(2)
    )


@pytest.mark.parametrize("name", ["libz", in_stress("libcrypto"), in_stress("libllvmlite")])
def test_searching_finds_what_reading_all_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MANY", 1)
    monkeypatch.setattr(module, "_FEW_OF_MANY", 1 << 30)
    searched, read = copies(name)
    assert searched.library.has_many and len(read.functions)
    everything = [each for each in read.functions if not each.name.startswith(f"{read.library.name}+0x")]
    for function in random.Random(1).sample(everything, min(60, len(everything))):
        start = function.address
        assert list(searched.named(function.name)) == [each for each in read.functions if each.name == function.name]
        assert list(searched.beginning_at({start})) == [each for each in read.functions if each.address == start]
        assert searched.next_starts([start], 8) == [at for at in read.next_starts([start], 8) if at < start + 8]
        assert searched.other_than_function(function) == read.other_than_function(function)
        assert searched.library.function_bounds(start) == read.library.function_bounds(start)
    assert searched.is_searched and not searched.named("no_such_function")


def test_similar_names_are_found_without_reading_all() -> None:
    image, _ = copies("libllvmlite")
    assert "LLVMPY_GetVersionInfo" in image.like("LLVMPY_GetVersionInfi", 5000)
    assert image.is_searched


def by_glob(pattern: str) -> Callable[[Sequence[str]], list[int]]:
    return lambda names: [*bits_of(select(parse(pattern), names))]


@pytest.mark.parametrize(
    ("name", "patterns"),
    [
        ("libz", ["inflate*", "*fl?te", "*Reset*", "*+0x[0-7]*", "*+0x*.part", "*.cold", "libz*", "?", "nothing*"]),
        in_stress(("libcrypto", ["EVP_*", "*_get_?*", "*+0x1*", "*+0x*.part", "*.cold"])),
        in_stress(("libllvmlite", ["LLVMPY_*", "llvm::APInt::*", "*std::*::push_back*", "*+0x10*", "*.part"])),
    ],
)
def test_a_glob_finds_what_it_finds_among_all(name: str, patterns: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MANY", 1)
    searched, read = copies(name)
    assert searched.chosen(by_glob(patterns[0]), patterns[0]) and searched.is_searched
    for pattern in patterns:
        found = searched.chosen(by_glob(pattern), pattern)
        assert list(found) == list(read.chosen(by_glob(pattern), pattern)), pattern
        assert [searched.other_than_function(each) for each in found] == [
            read.other_than_function(each) for each in found
        ]


def test_an_answer_is_kept_for_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_asked(names: Sequence[str]) -> list[int]:
        assert "deflate" not in names, "all names are read again"  # and not only functions without a symbol
        return []

    monkeypatch.setattr(module, "_MANY", 1)
    first, second = copies("libz")
    found = list(first.chosen(by_glob("inflate*"), "inflate*"))
    assert len(found) > 5 and list(second.chosen(not_asked, "inflate*")) == found
    with pytest.raises(AssertionError, match="read again"):
        second.chosen(not_asked, "deflate*")


@pytest.mark.parametrize("name", ["libz", in_stress("libcrypto"), in_stress("libllvmlite")])
def test_many_addresses_are_looked_up_together(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MANY", 1)
    monkeypatch.setattr(library_images, "_FEW", 4)
    searched, read = copies(name)
    sampled = random.Random(2).sample(list(read.functions), min(200, len(read.functions)))
    starts = {each.address for each in sampled}
    ordered, reach = sorted(starts), 64
    near = [at for start in ordered for at in read.next_starts([start], reach) if at < start + reach]
    assert searched.next_starts(ordered, reach) == near
    assert searched.is_searched
    assert list(searched.beginning_at(starts)) == list(read.beginning_at(starts))


def test_a_glob_for_most_functions_reads_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MANY", 1)
    searched, read = copies("libz")
    assert list(searched.chosen(by_glob("*e*"), "*e*")) == list(read.chosen(by_glob("*e*"), "*e*"))
    assert not searched.is_searched


@pytest.mark.parametrize("name", ["libz", in_stress("libcrypto"), in_stress("libllvmlite")])
def test_addresses_are_in_the_same_functions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MANY", 1)
    searched, read = (image.library for image in copies(name))
    assert read.symbols
    start, end = read.text[0]
    for address in random.Random(3).sample(range(start, end), 300):
        assert searched.locate(address) == read.locate(address), hex(address)
    assert searched.is_searched
