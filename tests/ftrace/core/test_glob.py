"""The pattern language: FT-32..35."""

from __future__ import annotations

import random
from random import Random

import pytest
from isolation import run_source
from sampled import sampled

from ftrace.core.glob import PatternKind, index_of, mask_of, parse

# What lib/glob.c does with the pattern [position by position], written from its documented rules and independent of
# ftrace.core.glob: recursive descent over the pattern with explicit backtracking.


def reference(pattern: str, text: str) -> bool:
    """glob_match() in the plainest form: `*`, `?`, classes, backslash; the whole string."""
    if not pattern:
        return not text
    head, rest = pattern[0], pattern[1:]
    if head == "*":
        return any(reference(rest, text[i:]) for i in range(len(text) + 1))
    if head == "?":
        return bool(text) and reference(rest, text[1:])
    if head == "[":
        parsed = _class(rest)
        if parsed is not None:
            contains, length = parsed
            return bool(text) and contains(text[0]) and reference(rest[length:], text[1:])
    if head == "\\":
        if not rest:
            return not text
        return text[:1] == rest[0] and reference(rest[1:], text[1:])
    return text[:1] == head and reference(rest, text[1:])


def _class(body: str):
    """The members of a class and how long it is, or None if it does not end."""
    inverted = body[:1] == "!"
    at = 1 if inverted else 0
    ranges = []
    while True:
        if at >= len(body):
            return None
        low = high = body[at]
        at += 1
        if body[at : at + 1] == "-" and at + 1 < len(body) and body[at + 1] != "]":
            high = body[at + 1]
            at += 2
        ranges.append((low, high))
        if body[at : at + 1] == "]":
            return (lambda c: any(a <= c <= b for a, b in ranges) != inverted), at + 1


@pytest.mark.parametrize(
    ("text", "kind", "search"),
    [
        ("foo", PatternKind.FULL, "foo"),
        ("foo*", PatternKind.FRONT, "foo"),
        ("*foo", PatternKind.END, "foo"),
        ("*foo*", PatternKind.MIDDLE, "foo"),
        ("*", PatternKind.END, ""),
        ("**", PatternKind.MIDDLE, ""),
        ("a*b", PatternKind.GLOB, "a*b"),
        ("*a*b", PatternKind.GLOB, "*a*b"),
        ("foo**", PatternKind.GLOB, "foo**"),
        ("f?o", PatternKind.GLOB, "f?o"),
        ("x[0-9]", PatternKind.GLOB, "x[0-9]"),
        ("a\\*", PatternKind.GLOB, "a\\*"),
        ("7", PatternKind.INDEX, "7"),
        ("0x10*", PatternKind.INDEX, "0x10*"),
        ("\u0663*", PatternKind.FRONT, "\u0663"),  # a digit of another script is a letter to C
    ],
)
def test_ft32_classification(text, kind, search):
    pattern = parse(text)
    assert (pattern.kind, pattern.search, pattern.negated) == (kind, search, False)
    negated = parse("!" + text)
    assert (negated.kind, negated.search, negated.negated) == (kind, search, True)


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("vfs_read", ["vfs_read"], ["vfs_read2", "xvfs_read", "VFS_READ", ""]),
        ("vfs_*", ["vfs_", "vfs_read"], ["vfs", "xvfs_"]),
        ("*_read", ["_read", "vfs_read"], ["vfs_reads"]),
        ("*fs_*", ["fs_", "vfs_read"], ["vfs"]),
        ("*", ["a", "x.y"], []),
        ("**", ["a"], []),
        ("v*d", ["vd", "vfs_read"], ["vfs_reads"]),
        ("v?s", ["vfs"], ["vs", "vffs"]),
        ("x[0-9]", ["x0", "x9"], ["x", "xa", "x10"]),
        ("x[!0-9]", ["xa", "x-"], ["x0", "x"]),
        ("x[^a]", ["x^", "xa"], ["xb"]),  # ^ is no negation
        ("x[]s]", ["x]", "xs"], ["xa", "x"]),
        ("x[!]ab]", ["xc"], ["x]", "xa"]),
        ("x[s-a]", [], ["xs", "xa", "xb", "x-"]),  # a reversed range is empty
        ("x[!s-a]", ["xs", "x-"], ["x", "xab"]),  # ... so that anything is outside of it
        ("[a-]ub", ["aub", "-ub"], ["[a-]ub", "bub"]),  # a class of a and -
        ("x[ab", ["x[ab"], ["xa", "xb"]),  # no class: it does not end
        ("x[", ["x["], ["x"]),
        ("x[]", ["x[]"], ["x]", "x"]),
        ("x[!]", ["x[!]"], ["x!"]),
        ("x\\*", ["x*"], ["xa", "x\\*", "x"]),
        ("x\\", ["x"], ["x\\", "xa"]),  # a trailing backslash matches the end
        ("x\\[a]", ["x[a]"], ["xa"]),
        ("f.o*?", ["f.ox"], ["fxox"]),  # a dot is a dot
        ("a/*b?", ["a/xbc", "a/bc"], ["axbc"]),
        ("(a|b)+?", ["(a|b)+c"], ["ac"]),
        ("", [], ["", "a"]),
    ],
)
def test_ft33_grammar(pattern, matching, others):
    compiled = parse(pattern)
    assert [name for name in matching if not compiled.matches(name)] == []
    assert [name for name in others if compiled.matches(name)] == []


PIECES = ["a", "b", "-", "*", "?", "[", "]", "!", "^", "\\", "[a-b]", "[!a]", "[]-a]", "[b-a]", "[a-]", "[\\]"]
NAMES = ["", "a", "b", "ab", "ba", "a-", "-", "]", "[a", "[", "!", "^", "\\", "aa]", "a[b", "b!", "a]b", "[!a]", "abba"]


@pytest.mark.parametrize("first", sampled(PIECES, 6))
def test_ft33_agrees_with_a_plain_matcher_on_all_short_patterns(first):
    for second in PIECES:
        for third in ["", *PIECES]:
            text = "?" + first + second + third  # the ? makes it a GLOB, whatever follows
            pattern = parse(text)
            assert pattern.kind is PatternKind.GLOB
            for tail in NAMES:
                name = "n" + tail
                assert pattern.matches(name) == reference(text, name), (text, name)


@pytest.mark.parametrize("times", [400, pytest.param(1500, marks=pytest.mark.stress)])
@pytest.mark.parametrize("stars", sampled(range(2, 7), 2))
def test_ft33_agrees_with_a_plain_matcher_on_patterns_of_many_stars(stars, times):
    random = Random(stars)
    for _ in range(times):
        pieces = ["".join(random.choices(["a", "b", "?", "[ab]", "[!a]", ""], k=3)) for _ in range(stars + 1)]
        text = "*".join(pieces)
        name = "".join(random.choices("ab", k=random.randrange(14)))
        if parse(text).kind is PatternKind.GLOB:
            assert parse(text).matches(name) == reference(text, name), (text, name)


MANY_STARS = """
from ftrace.core.glob import parse
names = ["a" * length for length in range(1, 400)]
for pattern in ("*a" * 8 + "*b", "*a" * 60 + "*b", "?" + "*a?" * 40 + "*b", "*[a-c]" * 30 + "*\\\\b", "a*" * 50 + "b*c",
                "*a" * 300 + "*b"):
    assert not parse(pattern).select(names), pattern
    assert parse(pattern.replace("b", "a").replace("c", "a")).matches("a" * 399), pattern
print("done")
"""


def test_ft33_many_stars_do_not_backtrack_without_end():
    done = run_source(MANY_STARS, timeout=60)
    assert done.stdout == "done\n", done.stderr


@pytest.mark.parametrize(
    ("text", "index"),
    [("1", 0), ("42", 41), ("0x10", 15), ("010", 7), ("0", -1), ("1x", -1), ("08", -1), ("0x", -1), ("1_0", -1)],
)
def test_ft34_numbers_are_c_numbers_that_count_from_one(text, index):
    assert index_of(parse(text)) == index


def test_ft34_a_name_that_begins_with_a_digit_is_never_matched():
    assert not parse("1abc").matches("1abc")
    assert not parse("1abc*").matches("1abc")


def test_ft35_only_the_first_exclamation_mark_negates():
    pattern = parse("!!foo")
    assert pattern.negated and pattern.matches("!foo") and not pattern.matches("foo")


def test_select_is_a_mask_with_bit_i_for_name_i():
    assert parse("a*").select(["ab", "b", "ac", "ba", "a"]) == 0b10101
    assert parse("*").select([]) == 0


def test_a_mask_has_the_bits_of_the_true_positions() -> None:
    flags = [random.Random(5).random() < 0.3 for _ in range(3)] + [True, False, True, True]
    assert [bool(mask_of(flags) >> i & 1) for i in range(len(flags))] == flags


def test_a_mask_of_nothing_is_zero() -> None:
    assert mask_of([]) == 0
    assert mask_of([False] * 70) == 0
