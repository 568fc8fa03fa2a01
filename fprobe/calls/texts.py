"""The table of texts that hits fill (ftrace.hit.texts), read from its memory."""

from __future__ import annotations

import struct

_TEXT = struct.Struct("<2Q256s")
"""A place, as in `ftrace.hit.texts`, which takes too long to import in a launcher."""
TEXT = _TEXT.size
TEXTS = TEXT << 13
"""Bytes of a place, and of the table."""


def texts_in(memory: bytes) -> dict[int, str]:
    """The texts in some places of the table, by their numbers. Bytes that are not UTF-8 become lone surrogates."""
    whole = memory[: len(memory) // TEXT * TEXT]
    return {
        number: text[: used - 1].decode("utf-8", "surrogateescape")
        for number, used, text in _TEXT.iter_unpack(whole)
        if number and used
    }
