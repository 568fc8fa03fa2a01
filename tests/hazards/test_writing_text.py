"""A signal's handler that writes text while the code that it has interrupted opens or closes the same text for writing."""

from __future__ import annotations

import ctypes

import pytest
from isolation import isolated

from sandbox.memory import mappings
from sandbox.memory.scattered import ScatteredText

FAR = 0x1234_5678_0000
NEAR = (1 << 32, 1 << 32)


def _mapping():
    text = mappings.allocate_text(NEAR, mappings.PAGE, "written")
    return text, text.base


def _scattered():
    text = ScatteredText("written")
    text.place(FAR, text.new_page())
    return text, FAR


@pytest.mark.parametrize("kind", ["mapping", "scattered"])
@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("closes", [False, True])
@isolated
def test_a_handler_writes_where_the_interrupted_code_opens_or_closes(kind, is_after, closes):
    text, base = {"mapping": _mapping, "scattered": _scattered}[kind]()
    text.write(base, b"\x90")
    change, interrupted = mappings.mprotect, []

    def interrupting(address, size, protection):
        is_due = not interrupted and (protection == mappings.PROT_NONE) == closes
        if is_due:
            interrupted.append(protection)
        if is_due and not is_after:
            text.write(base + 16, b"handler")
        change(address, size, protection)
        if is_due and is_after:
            text.write(base + 16, b"handler")

    mappings.mprotect = interrupting
    text.write(base + 64, b"program")
    assert interrupted
    text.write(base + 128, b"later")
    for at, data in ((16, b"handler"), (64, b"program"), (128, b"later")):
        assert ctypes.string_at(base + at, len(data)) == data
