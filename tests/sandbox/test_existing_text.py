"""Hazard: text of hundreds of megabytes. Only what is near probes is copied, and pieces end inside functions."""

from __future__ import annotations

import contextlib
import ctypes
import os
import zlib

from isolation import isolated

import fprobe
import kprobes
from sandbox.images import process_text
from sandbox.memory import existing_text
from sandbox.memory.mappings import PAGE, mappings
from sandbox.symbols.libraries import Library
from sandbox.x86_64.decoding import decoded

DATA = bytes(range(256)) * 64


def in_pieces(size: int) -> Library:
    """libz, as if it were large."""
    process_text.LARGE, existing_text._PIECE = 0, size
    return process_text.library_called("libz.so.1")


def copied(library: Library) -> list[tuple[int, int]]:
    """The ranges of its text that are on memory files."""
    low, high = library.text[0]
    return [(start, end) for start, end, _, path in mappings() if low <= start < high and path.startswith("/memfd:")]


def is_as_in_file(library: Library) -> bool:
    start, end = library.text[0]
    return ctypes.string_at(start, end - start) == library.code_in_file(start, end - start)


@isolated
def test_only_pieces_near_probes_are_copied() -> None:
    library = in_pieces(PAGE)
    probed = library.named("adler32")
    assert probed is not None
    with fprobe.attach("libz:adler32", action=fprobe.Count()) as probe:
        assert zlib.adler32(DATA) == zlib.adler32(DATA)
        assert probe.hits == 2
        ranges = copied(library)
        assert any(start <= probed.address < end for start, end in ranges)
        assert 0 < sum(end - start for start, end in ranges) <= 3 * PAGE
    assert is_as_in_file(library)


@isolated(timeout=60)
def test_all_functions_count_in_both_processes_of_a_fork_and_the_text_is_restored() -> None:
    library = in_pieces(PAGE)
    with fprobe.attach("libz:*", action=fprobe.Count()) as probe:
        assert zlib.decompress(zlib.compress(DATA)) == DATA
        before = probe.hits
        assert before > 100
        child = os.fork()
        if child == 0:
            zlib.decompress(zlib.compress(DATA))
            os._exit(probe.hits != 2 * before)
        zlib.decompress(zlib.compress(DATA))
        assert os.waitpid(child, 0)[1] == 0
        assert probe.hits == 2 * before
    assert is_as_in_file(library)


@isolated
def test_breakpoints_and_jumps_on_every_instruction_around_the_end_of_a_piece() -> None:
    library = in_pieces(PAGE)
    function = next(each for each in library.symbols if each.name == "deflate")
    ends = range(-(-function.address // PAGE) * PAGE, function.address + function.size, PAGE)
    code = ctypes.string_at(function.address, function.size)
    near = [
        each.address for each in decoded(code, function.address) if any(-16 < each.address - end < 16 for end in ends)
    ]
    assert len(near) > 4
    hits, expected = kprobe_on_each(near), zlib.compress(DATA)
    assert len(hits) > 4
    while hits:
        assert zlib.compress(DATA) == expected
        kprobes.unregister_kprobe(hits.pop())
    assert is_as_in_file(library)


def kprobe_on_each(addresses: list[int]) -> list[kprobes.kprobe]:
    """Kprobes on those instructions that can have one."""
    found = []
    for address in addresses:
        probe = kprobes.kprobe(addr=address, pre_handler=lambda p, regs: 0)  # noqa: ARG005
        with contextlib.suppress(OSError):
            kprobes.register_kprobe(probe)
            found.append(probe)
    return found
