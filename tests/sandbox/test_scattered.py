"""Executable pages at chosen addresses."""

from __future__ import annotations

import ctypes
import os

import pytest
from isolation import isolated
from programs import writable_and_executable

from sandbox.memory import mappings as memory
from sandbox.memory.mappings import PAGE
from sandbox.memory.scattered import ScatteredText

RETURNS_SEVEN = bytes.fromhex("b807000000c3")
FAR = 0x1234_5678_0000


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
def test_a_descriptor_that_somebody_closed_is_noticed():
    text = ScatteredText("scattered")
    os.closerange(3, 64)
    with pytest.raises(OSError, match="closed by other code"):
        text.place(FAR, text.new_page())


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
