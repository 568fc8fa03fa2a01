"""Executable pages at chosen addresses."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path

import pytest
from isolation import isolated
from programs import writable_and_executable

from sandbox.memory import mappings as memory
from sandbox.memory.landings import LandingSpace
from sandbox.memory.mappings import PAGE
from sandbox.memory.scattered import ScatteredText
from sandbox.x86_64.puns import Window

RETURNS_SEVEN = bytes.fromhex("b807000000c3")
FAR = 0x1234_5678_0000


def descriptors() -> list[Path]:
    return list(Path("/proc/self/fd").iterdir())


def value(address: int) -> int:
    return ctypes.CFUNCTYPE(ctypes.c_int)(address)()


@isolated
def test_pages_run_where_they_are_placed_and_share_memory():
    before = writable_and_executable()  # of libffi, for the callbacks of others
    text = ScatteredText("scattered")
    page = text.new_page()
    text.place(FAR, page)
    text.place(FAR + 16 * PAGE, page)
    text.write(FAR + 100, RETURNS_SEVEN)
    assert value(FAR + 100) == value(FAR + 16 * PAGE + 100) == 7
    assert len(text) == 2
    assert writable_and_executable() == before


@isolated
def test_what_is_written_may_reach_into_the_next_page():
    text = ScatteredText("scattered")
    later, earlier = text.new_page(), text.new_page()
    text.place(FAR, earlier)
    text.place(FAR + PAGE, later)
    text.write(FAR + PAGE - 3, RETURNS_SEVEN)
    assert value(FAR + PAGE - 3) == 7


@isolated
def test_a_taken_address_is_refused():
    text = ScatteredText("scattered")
    taken = memory.reserve(PAGE)
    with pytest.raises(FileExistsError):
        text.place(taken, text.new_page())
    assert len(text) == 0


@isolated
def test_a_descriptor_that_somebody_closed_is_replaced():
    text = ScatteredText("scattered")
    text.place(FAR, text.new_page())
    text.write(FAR, RETURNS_SEVEN)
    os.closerange(3, 64)
    text.place(FAR + PAGE, text.new_page())
    assert value(FAR) == 7
    text.write(FAR + PAGE, RETURNS_SEVEN)
    text.write(FAR, b"\xb8\x08")
    assert (value(FAR), value(FAR + PAGE)) == (8, 7)


@isolated
def test_a_fork_has_pages_of_its_own():
    text = ScatteredText("scattered")
    text.place(FAR, text.new_page())
    text.write(FAR, RETURNS_SEVEN)
    child = os.fork()
    if not child:
        text.write(FAR, b"\xb8\x08")
        os._exit(value(FAR))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 8
    assert value(FAR) == 7


@isolated
def test_pages_that_are_removed_are_used_again_and_their_addresses_are_free():
    text = ScatteredText("scattered")
    first, second = text.new_page(), text.new_page()
    text.place(FAR, first)
    text.place(FAR + PAGE, second)
    text.remove([FAR], [first])
    assert text.addresses == [FAR + PAGE] and text.new_page() == first
    assert memory.mmap_at(FAR, PAGE, memory.PROT_NONE, memory.MAP_PRIVATE | memory.MAP_ANONYMOUS) == FAR
    text.write(FAR + PAGE, RETURNS_SEVEN)
    assert value(FAR + PAGE) == 7


@isolated
def test_spaces_for_landings_of_one_name_share_a_descriptor():
    opened = contextlib.ExitStack()
    before = len(descriptors())
    spaces = [LandingSpace("many", lambda text: opened.enter_context(text.writable())) for _ in range(50)]
    targets = [FAR + (index << 20) for index in range(50)]
    code = memory.allocate_text((FAR, FAR), PAGE, "target")
    code.write(code.base, RETURNS_SEVEN)
    found = [space.take([Window(0, at, at + 64, 0)], code.base) for space, at in zip(spaces, targets, strict=True)]
    opened.close()
    assert len(descriptors()) == before + 1
    for space in spaces[::2]:
        space.close()
    assert [value(address) for _, address in found[1::2]] == [7] * 25
    for space in spaces[1::2]:
        space.close()
    assert len(descriptors()) == before
