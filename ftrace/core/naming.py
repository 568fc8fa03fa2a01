"""Patterns for functions: a name matches as the compiler has written it, or as its programmer has, in C++ and Rust."""

from __future__ import annotations

from collections.abc import Sequence

from ftrace.core.glob import Pattern, PatternKind, parse
from sandbox.symbols.readable import as_pattern, forms, possible


def select(pattern: Pattern, names: Sequence[str]) -> int:
    """Which of `names`, symbols of functions, match: a number whose bit i is set if names[i] does."""
    mask = pattern.select(names)
    if pattern.kind is PatternKind.INDEX or not pattern.text or mask.bit_count() == len(names):
        return mask
    return mask | _readable(pattern, names, mask)


def matches(pattern: Pattern, name: str) -> bool:
    """Whether one symbol matches."""
    return bool(select(pattern, [name]))


def _readable(pattern: Pattern, names: Sequence[str], mask: int) -> int:
    """Which of the names that are not in `mask` match in a demangled form."""
    known = mask.to_bytes((len(names) + 7) // 8, "little")
    left = [index for index in possible(pattern.text, names) if not known[index >> 3] >> (index & 7) & 1]
    if not left:
        return 0
    wanted = parse(as_pattern(pattern.text))
    found = bytearray(len(known))
    for form in forms([names[index] for index in left], pattern.text):
        chosen = wanted.select(form)
        for place, index in enumerate(left):
            if chosen >> place & 1:
                found[index >> 3] |= 1 << (index & 7)
    return int.from_bytes(found, "little")
