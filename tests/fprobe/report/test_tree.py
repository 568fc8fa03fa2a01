"""The tree of calls that fprobe trace, run and report share: a leaf call has one line, any other call two."""

from __future__ import annotations

from typing import NamedTuple

from fprobe.report.style import Plain
from fprobe.report.tree import CallTree, folded_stack


class Call(NamedTuple):
    thread: int
    depth: int


class Angular(Plain):
    @staticmethod
    def dim(text):
        return f"<{text}>"


OUTER, INNER, OTHER = Call(7, 0), Call(7, 1), Call(8, 0)


def test_a_leaf_has_one_line_and_its_caller_two():
    tree = CallTree()
    assert [*tree.entry(OUTER, "f(n=1)")] == []
    assert [*tree.entry(INNER, "g()")] == ["            [      7] | f(n=1) {"]
    assert [*tree.exit(INNER, "  1.500 us", "g", "2")] == ["   1.500 us [      7] |   g() = 2;"]
    assert [*tree.exit(OUTER, "  3.500 us", "f", "")] == ["   3.500 us [      7] | } /* f */"]


def test_an_equal_call_does_not_end_the_line_that_waits():
    tree = CallTree()
    tree_lines = [*tree.entry(OUTER, "f()"), *tree.exit(Call(*OUTER), "5 ns", "f", "", " /* late */")]
    assert tree_lines == ["            [      7] | f() {", "       5 ns [      7] | } /* f */ /* late */"]


def test_whatever_comes_next_gives_a_call_its_opening_line():
    tree = CallTree()
    opening = "            [      7] | f() {"
    assert [*tree.entry(OUTER, "f()"), *tree.entry(OTHER, "g()")] == [opening]
    assert [*tree.flush(), *tree.flush()] == ["            [      8] | g() {"]
    assert [*tree.entry(OUTER, "f()"), *tree.instant(8, 1, "hit")] == [opening, "            [      8] |   /* hit */"]


def test_a_deep_recursion_does_not_become_gigabytes_of_spaces():
    tree, calls = CallTree(), [Call(7, depth) for depth in range(100_000)]
    lines = [line for call in calls for line in tree.entry(call, "f()")]
    lines += [line for call in reversed(calls) for line in tree.exit(call, "5 ns", "f", "")]
    assert len(lines) == 2 * len(calls) - 1 and max(map(len, lines)) < 500
    assert lines[200] == f"            [      7] | {400 * ' '}f() {{"
    assert lines[201] == f"            [      7] | {400 * ' '}[201] f() {{"
    assert lines[-1] == "       5 ns [      7] | } /* f */"


def test_what_is_beside_the_text_is_dimmed():
    tree = CallTree(Angular())
    assert [*tree.exit(OUTER, "5 ns", "f", "1")] == [" <      5 ns [      7]> | } = 1< /* f */>"]


def test_a_semicolon_does_not_split_a_frame():
    assert folded_stack(["comm", "a;b", "c"]) == "comm;a:b;c"
