"""Functions that call code which copies stacks."""

from __future__ import annotations

import pytest

from sandbox.x86_64.stack_movers import StackMovers

BASE = 0x1000
CALLER = bytes.fromhex("53 e8 1a000000 5b c3")  # push rbx; call BASE + 0x20; pop rbx; ret
CODES = {
    "by a distance in rax": ("48 01 c4 c3", True),  # add rsp, rax; ret
    "the other encoding, r9": ("49 03 e1 c3", True),  # add rsp, r9; ret
    "to an address": ("48 89 c4 c3", False),  # mov rsp, rax: each stack is entered and left once
    "its own, by a number": ("48 83 ec 08 48 83 c4 08 c3", False),
    "bytes that no path reaches": ("c3 48 01 c4 c3", False),
}


@pytest.mark.parametrize("how", CODES)
def test_a_call_of_code_that_moves_the_stack_pointer(how):
    code, moves = CODES[how]
    text = (CALLER.ljust(0x20, b"\xcc") + bytes.fromhex(code)).ljust(0x400, b"\xcc")
    movers = StackMovers(lambda address, size: text[address - BASE : address - BASE + size])
    found = movers.called_by(CALLER, BASE, BASE, BASE + len(text))
    assert ("at +0x1 copies stacks" in found) == moves
    assert movers.called_by(CALLER, BASE, BASE + 0x100, BASE + len(text)) == ""  # another mapping's


def test_a_called_function_that_cannot_be_read_is_not_one():
    def read(address, size):
        raise OSError(14, "unmapped")

    assert StackMovers(read).called_by(CALLER, BASE, BASE, BASE + 0x400) == ""
