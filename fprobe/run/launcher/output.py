"""How the text of a report becomes bytes."""

from __future__ import annotations


def as_bytes(text: str) -> bytes:
    """Text as UTF-8. Names that are not UTF-8 become the bytes that they have in the system."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # surrogates that Python has not made
        return text.encode("utf-8", "replace")
