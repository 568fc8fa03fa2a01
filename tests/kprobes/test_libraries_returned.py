"""Hazard: kretprobes that only count, on every function of a library that was compiled elsewhere, under real load."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from pathlib import Path

import pytest
from isolation import isolated
from sampled import sampled

import fprobe
import kprobes
from kprobes.jump.safety import examine
from sandbox.images import process_text
from sandbox.native import u64

counted = fprobe.Array(u64, 1, shared=True)


@kprobes.native
def count(ri, regs):
    counted[0] += 1


def file_of(start: str) -> str:
    """The name of the library that begins so."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        name = line.rpartition("/")[2]
        if name.startswith(start):
            return name
    raise LookupError(start)


def on_every_function(name: str) -> list[kprobes.kretprobe]:
    """Kretprobes on what is exported, and on what is called. Unwind tables alone do not say what is a function."""
    library = process_text.library_called(name)
    spans = library.functions()
    called = {symbol.address for symbol in library.symbols}
    for start, end in spans:
        called.update(examine(ctypes.string_at(start, end - start), start).calls)
    made: list[kprobes.kretprobe] = []
    for start, _end in spans:
        if start not in called:
            continue
        rp = kprobes.kretprobe(addr=start, handler=count, maxactive=64)
        try:
            kprobes.register_kretprobe(rp)
        except OSError:
            continue
        made.append(rp)
    return made


def bz2() -> object:
    import bz2

    data = bytes(range(256)) * 200 + b"abc" * 30000
    packed = bz2.compress(data)
    assert bz2.decompress(packed) == data
    pieces = bz2.BZ2Decompressor()
    assert b"".join(pieces.decompress(packed[i : i + 100]) for i in range(0, len(packed), 100)) == data
    with pytest.raises(OSError, match="Invalid data"):
        bz2.decompress(b"BZh9 nothing of the kind")
    return packed


def lzma() -> object:
    import lzma

    data = bytes(range(256)) * 200 + b"abc" * 30000
    packed = [lzma.compress(data, preset=preset) for preset in (0, 6)]
    packed.append(lzma.compress(data, format=lzma.FORMAT_ALONE))
    assert all(lzma.decompress(one) == data for one in packed)
    with pytest.raises(lzma.LZMAError):
        lzma.decompress(b"nothing of the kind")
    return packed


def expat() -> object:
    from xml.parsers import expat as parsers

    seen: list[object] = []
    for encoding in ("utf-8", "iso-8859-1", "utf-16"):
        text = (
            f"<?xml version='1.0' encoding='{encoding}'?><!DOCTYPE a [<!ENTITY e 'x\xe9'>]><a b='1'>&e;"
            + "<c/>\xe4" * 500
            + "</a>"
        )
        parser = parsers.ParserCreate()
        parser.StartElementHandler = lambda name, given: seen.append((name, given))
        parser.CharacterDataHandler = seen.append
        parser.Parse(text.encode(encoding), True)
    broken = parsers.ParserCreate()
    with pytest.raises(parsers.ExpatError, match="mismatched tag"):
        broken.Parse(b"<a><b></a>", True)
    return seen


LOADS: dict[str, tuple[str, str, Callable[[], object]]] = {
    "bz2": ("_bz2", "libbz2", bz2),
    "lzma": ("_lzma", "liblzma", lzma),
    "expat": ("pyexpat", "pyexpat.", expat),
}


FEW = [("bz2", False), ("bz2", True), ("lzma", True)]


@pytest.mark.parametrize(
    ("name", "optimized"),
    sampled(
        [
            pytest.param(
                name, optimized, id=f"{name}-{way}", marks=[] if (name, optimized) in FEW else pytest.mark.stress
            )
            for name in LOADS
            for optimized, way in ((False, "breakpoint"), (True, "jump"))
        ],
        1,
    ),
)
@isolated(timeout=120)
def test_counting_kretprobes_on_every_function_of_a_library_change_nothing(name, optimized):
    module, library, work = LOADS[name]
    importlib.import_module(module)
    expected = work()
    kprobes.set_kprobes_optimization(int(optimized))
    probes = on_every_function(file_of(library))
    kprobes.wait_for_kprobe_optimizer()
    assert len(probes) > 20
    for _ in range(2):
        assert work() == expected
    assert counted[0] > 100
    kprobes.unregister_kretprobes(probes)
    assert work() == expected


@pytest.mark.stress
@pytest.mark.timeout(400)
@pytest.mark.parametrize("optimized", [False, True], ids=["breakpoint", "jump"])
@isolated(timeout=300)
def test_counting_kretprobes_on_every_function_of_numpy_change_nothing(optimized):
    """Its dates keep values in r10 and r11 over calls."""
    numpy = pytest.importorskip("numpy")

    def work() -> object:
        array = numpy.arange(1000.0).reshape(10, 100)
        dates = numpy.array(["2020-02-29", "1969-12-31T23:59"], dtype="M8[ms]") + numpy.timedelta64(3, "h")
        return [
            str(numpy.dtype("M8[ms]")), (array @ array.T).tolist(), numpy.sort(array, axis=0).tolist(),
            dates.tolist(), repr(numpy.dtype([("a", "i4"), ("b", "f8", (2, 3))])), numpy.einsum("ij->j", array).tolist(),
        ]  # fmt: skip

    expected = work()
    kprobes.set_kprobes_optimization(int(optimized))
    probes = on_every_function(file_of("_multiarray_umath"))
    kprobes.wait_for_kprobe_optimizer()
    assert work() == expected
    assert counted[0] > 100
    kprobes.unregister_kretprobes(probes)
    assert work() == expected
