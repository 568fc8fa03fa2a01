"""The pattern language of the filter files and calls, as filter_parse_regex() in kernel/trace/trace_events_filter.c.

A pattern is classified once; a match is then a comparison, a prefix, a suffix, a substring or a full glob. `select` is for
symbols of functions: a name matches as the compiler has written it, or as its programmer has, in C++ and Rust.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import NamedTuple

from sandbox.process.printable import printable
from sandbox.symbols.readable import as_pattern, forms, possible


class PatternKind(Enum):
    """How a pattern is compared with a name (enum regex_type)."""

    FULL = "full"
    FRONT = "front"
    END = "end"
    MIDDLE = "middle"
    GLOB = "glob"
    INDEX = "index"


class Pattern(NamedTuple):
    """A classified pattern. `negated`: it has a leading `!` and removes its matches."""

    text: str
    kind: PatternKind
    search: str
    negated: bool

    def select(self, names: Sequence[str]) -> int:
        """Which of `names` match: a number whose bit i is set if names[i] matches. INDEX patterns select nothing here."""
        if not names or not self.text or self.kind is PatternKind.INDEX:
            return 0
        if not self.search and self.kind in (PatternKind.END, PatternKind.MIDDLE, PatternKind.FRONT):
            return (1 << len(names)) - 1
        return mask_of(self._compare(names))

    def matches(self, name: str) -> bool:
        """Whether `name` as a whole matches."""
        return bool(self.select([name]))

    def means(self, name: str) -> bool:
        """Whether `name` matches, or is the pattern itself: names may have signs of patterns."""
        return name == self.text or self.matches(name)

    def _compare(self, names: Sequence[str]) -> list[bool]:
        """Whether each name matches. Calls no Python function for each name: there may be very many."""
        search = self.search
        if self.kind is PatternKind.FULL:
            return [name == search for name in names]
        if self.kind is PatternKind.FRONT:
            return [name.startswith(search) for name in names]
        if self.kind is PatternKind.END:
            return [name.endswith(search) for name in names]
        if self.kind is PatternKind.MIDDLE:
            return [search in name for name in names]
        matched = map(re.compile(translate(search), re.DOTALL).fullmatch, names)
        return [match is not None for match in matched]


def parse(text: str) -> Pattern:
    """Classify a pattern as filter_parse_regex does. Any string is a pattern; the empty one matches nothing.

    Raises TypeError if it is not a str.
    """
    if not isinstance(text, str):
        raise TypeError(f"the pattern is {text!r}; it must be a str")
    negated = text.startswith("!")
    body = text[1:] if negated else text
    kind, search = _classify(body)
    return Pattern(body, kind, search, negated)


def parse_name(text: str) -> Pattern:
    """The same for names of images and of their functions.

    A `!` or a digit that the pattern begins with is part of a name: it removes nothing, and is no position in a list.
    """
    return Pattern(text, *_classify_name(text), negated=False)


def _classify(body: str) -> tuple[PatternKind, str]:
    if body[:1].isdigit() and body[:1].isascii():
        return PatternKind.INDEX, body
    return _classify_name(body)


def _classify_name(body: str) -> tuple[PatternKind, str]:
    leading = body.startswith("*")
    inner = body[1:] if leading else body
    trailing = inner.endswith("*")
    if trailing:
        inner = inner[:-1]
    if any(special in inner for special in "*?[\\"):
        return PatternKind.GLOB, body
    if leading and trailing:
        return PatternKind.MIDDLE, inner
    if leading:
        return PatternKind.END, inner
    return (PatternKind.FRONT, inner) if trailing else (PatternKind.FULL, inner)


def index_of(pattern: Pattern) -> int:
    """The 0-based position that an INDEX pattern names; -1 if it is not a number in C's notation."""
    text = pattern.text
    if "_" in text:  # Python's notation, not C's
        return -1
    digits = text[1:] if len(text) > 1 and text[0] == "0" and text[1].isdigit() else text
    base = 8 if digits is not text else 0
    try:
        return int(digits, base) - 1
    except ValueError:
        return -1


def translate(glob: str) -> str:
    """A regular expression for the grammar of glob_match() in lib/glob.c: `?`, `*`, classes, backslash.

    Matching takes at most the product of the two lengths: the text between two stars is taken where it is first found, without
    backtracking. (Before Python 3.11, only a group in a lookahead expresses that.)
    """
    first, *rest = _between_stars(glob)
    if not rest:
        return first
    middle = (piece for piece in rest[:-1] if piece)
    found = (f"(?=(?P<_{number}>.*?{piece}))(?P=_{number})" for number, piece in enumerate(middle))
    return f"{first}{''.join(found)}.*{rest[-1]}"


def _between_stars(glob: str) -> list[str]:
    """Expressions for the parts before, between and after the stars of a glob."""
    pieces = [""]
    position = 0
    while position < len(glob):
        char = glob[position]
        position += 1
        if char == "*":
            pieces.append("")
        elif char == "?":
            pieces[-1] += "."
        elif char == "[":
            piece, position = _translate_class(glob, position)
            pieces[-1] += piece
        elif char == "\\":
            pieces[-1] += re.escape(glob[position : position + 1])
            position += 1
        else:
            pieces[-1] += re.escape(char)
    return pieces


def _translate_class(glob: str, start: int) -> tuple[str, int]:
    """The class that begins after the `[` at start-1, and its end; a `[` without a `]` matches itself."""
    position = start
    inverted = glob[position : position + 1] == "!"
    position += inverted
    ranges: list[str] = []
    first = True
    while first or glob[position : position + 1] != "]":
        first = False
        low = glob[position : position + 1]
        high = low
        position += 1
        if glob[position : position + 1] == "-" and glob[position + 1 : position + 2] != "]":
            high = glob[position + 1 : position + 2]
            position += 2
        if not low or not high:
            return re.escape("["), start
        if low <= high:
            ranges.append(f"{re.escape(low)}-{re.escape(high)}")
    return _class_expression(ranges, inverted), position + 1


def _class_expression(ranges: list[str], inverted: bool) -> str:
    if not ranges:
        return "." if inverted else "(?!)"
    return f"[{'^' if inverted else ''}{''.join(ranges)}]"


_DIGITS = bytes.maketrans(b"\x00\x01", b"01")


def mask_of(flags: Iterable[int]) -> int:
    """The positions at which `flags` is 1 instead of 0. Takes linear time, unlike adding bits one by one."""
    return int(bytes(flags).translate(_DIGITS)[::-1] or b"0", 2)


def bits_of(mask: int) -> Iterator[int]:
    """The numbers of the bits that are set, ascending."""
    text = bin(mask)[:1:-1]
    index = text.find("1")
    while index >= 0:
        yield index
        index = text.find("1", index + 1)


# -- symbols of functions ----------------------------------------------------------------------------------------------


def select(pattern: Pattern, names: Sequence[str]) -> int:
    """Which of `names`, symbols of functions, match: a number whose bit i is set if names[i] does."""
    mask = pattern.select(names)
    if pattern.kind is PatternKind.INDEX or not pattern.text or mask.bit_count() == len(names):
        return mask
    return mask | _readable(pattern, names, mask)


def places(pattern: Pattern, names: Sequence[str]) -> list[int]:
    """The same as positions, ascending; with names that are shown as the pattern: they may have signs of patterns."""
    mask = select(pattern, names)
    if pattern.kind is PatternKind.GLOB:
        shown = names if "\\" not in pattern.text else list(map(printable, names))
        mask |= mask_of(name == pattern.text for name in shown) if pattern.text in shown else 0
    return [*bits_of(mask)]


def _readable(pattern: Pattern, names: Sequence[str], mask: int) -> int:
    """Which of the names that are not in `mask` match in a demangled form."""
    known = mask.to_bytes((len(names) + 7) // 8, "little")
    left = [index for index in possible(pattern.text, names) if not known[index >> 3] >> (index & 7) & 1]
    if not left:
        return 0
    wanted = parse_name(as_pattern(pattern.text))
    found = bytearray(len(known))
    for form in forms([names[index] for index in left], pattern.text):
        chosen = wanted.select(form)
        if wanted.kind is PatternKind.GLOB and pattern.text in form:  # a name may have signs of patterns: <[u8; 2]>::f
            chosen |= mask_of(name == pattern.text for name in form)
        for place, index in enumerate(left):
            if chosen >> place & 1:
                found[index >> 3] |= 1 << (index & 7)
    return int.from_bytes(found, "little")
