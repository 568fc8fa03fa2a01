"""Hazard: what is searched for in a library's tables is not what reading all of them gives."""

from __future__ import annotations

import random
import ssl
import zlib

import pytest
from sampled import in_stress

from sandbox.images.library_images import LibraryImage
from sandbox.symbols import libraries as module
from sandbox.symbols.libraries import Library, libraries

LOADED = (ssl, zlib)


def copies(name: str) -> tuple[LibraryImage, LibraryImage]:
    """The library twice, without anything that is known of it."""
    found = next(each for each in libraries() if each.name.startswith(name))
    return tuple(  # type: ignore[return-value]
        LibraryImage(Library(found.name, found.path, found.base, found.text, found.unwind_table, found.marks))
        for _ in range(2)
    )


@pytest.mark.parametrize("name", ["libz", in_stress("libcrypto"), in_stress("libllvmlite")])
def test_searching_finds_what_reading_all_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "libllvmlite":
        import llvmlite.binding

        assert llvmlite.binding
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
    import llvmlite.binding

    assert llvmlite.binding
    image, _ = copies("libllvmlite")
    assert "LLVMPY_GetVersionInfo" in image.like("LLVMPY_GetVersionInfi", 5000)
    assert image.is_searched
