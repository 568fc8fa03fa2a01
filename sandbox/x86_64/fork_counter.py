"""Code that increments a word; run in parent and child of every fork."""

from __future__ import annotations


def fork_counter(word: int) -> bytes:
    """Code of a `void (void)` that adds one to the 64-bit word at address `word`, as one step."""
    load = b"\x48\xb8" + word.to_bytes(8, "little")  # movabs $word, %rax
    return load + bytes.fromhex("f048ff00 c3")  # lock incq (%rax); ret
