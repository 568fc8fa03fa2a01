"""How the entries of functions without stubs are patched, from their bytes alone."""

from __future__ import annotations

import ctypes
from functools import cache

import pytest
from isolation import isolated

from ftrace.core.sites.entry_plans import Choice, Mechanism, choices
from sandbox.native import Unit
from sandbox.native.native_image import NativeImage
from sandbox.native.x86_64 import entry_bytes
from sandbox.native.x86_64.entry_bytes import Entries

AT = 0x7000_0000


@cache
def image():
    return NativeImage.of(Unit("entry-plans", entry_bytes.FUNCTIONS, bounded=False))


def plans(code: str, usable: int = 8) -> dict[Mechanism, Choice]:
    """The first choice of each kind."""
    read = Entries(image(), [bytes.fromhex(code).ljust(60, b"\x90")], [AT])
    found: dict[Mechanism, Choice] = {}
    for choice in choices(read[0], usable):
        found.setdefault(choice.mechanism, choice)
    return found


LABS = "4889f8 48f7d8 480f48c7 c3"
"""mov %rdi,%rax; neg %rax; cmovs %rdi,%rax; ret"""


@pytest.mark.parametrize(
    ("code", "borrowing"),
    [
        (LABS, 2),
        ("488d0437 4801f8 90", 2),
        ("4889f8 c3", 1),
        ("4889f8 e800000000", 1),
        ("4889f8 0f0b", 0),
        ("4889f8 ffc0 0f0b", 1),
    ],
    ids=["three bytes, up to two prefixes", "four bytes, up to three", "ret", "call", "ud2", "inc and ud2"],
)
def test_instructions_whose_bytes_a_jump_borrows_run_in_the_detour(code, borrowing):
    """Hazard: after such a jump the CPU expects one wherever its last bytes are fetched: each call is mispredicted."""
    pun = plans(code)[Mechanism.PUN]
    assert (len(pun.lengths), pun.borrowing, pun.copied) == (1, borrowing, 1 + borrowing)


def test_the_bytes_of_another_probe_are_neither_borrowed_nor_copied():
    assert plans(LABS, 6)[Mechanism.PUN].borrowing == 1
    assert set(plans(LABS, 3)) == {Mechanism.BREAKPOINT}
    assert plans(LABS, 3)[Mechanism.BREAKPOINT].copied == 1


def test_a_jump_over_several_instructions_borrows_only_what_it_lacks():
    two = plans("53 55 4889fb 90")[Mechanism.ABSORBING]
    assert (len(two.lengths), two.copied) == (2, 3)
    assert plans("53 b801000000 90")[Mechanism.ABSORBING].borrowing == 0


@isolated(timeout=60)
def test_a_kprobe_at_an_instruction_that_a_detour_has_a_copy_of_is_hit():
    """Hazard: calls run the copy, and the kprobe sees none of them."""
    import fprobe
    import kprobes

    libc = ctypes.CDLL(None)
    at = ctypes.cast(libc.labs, ctypes.c_void_p).value
    if ctypes.string_at(at, 6).hex() != LABS.replace(" ", "")[:12]:
        return
    with fprobe.attach("libc:labs", action=fprobe.Count()) as entries:
        assert (libc.labs(-3), entries.hits) == (3, 1)
        with kprobes.attach("libc:labs+3", action=kprobes.Count()) as inside:
            assert (libc.labs(-4), entries.hits, inside.hits) == (4, 2, 1)
        assert (libc.labs(-5), entries.hits, inside.hits) == (5, 3, 1)
