"""The tree: opening, truncating, reading in pieces, writing, and what is refused."""

from __future__ import annotations

import errno
import os

import pytest

from ftrace.tracing.files.nodes import Directory, TextFile
from ftrace.tracing.tracefs.files import README
from ftrace.tracing.tracefs.tree import Tracefs


class Box:
    def __init__(self):
        self.text, self.made, self.truncated = "one\ntwo\n", 0, 0

    def read(self):
        self.made += 1
        return self.text

    def write(self, text):
        self.text += text.partition("\n")[0] + "\n"
        return text.index("\n") + 1

    def truncate(self):
        self.text, self.truncated = "", self.truncated + 1


@pytest.fixture
def box():
    return Box()


@pytest.fixture
def tree(box):
    made = Tracefs()
    made.add("box", TextFile(box.read, box.write, box.truncate))
    made.add("fixed", TextFile(lambda: "x"))
    made.add("sink", TextFile(None, lambda _: None))
    made.add("dir", Directory({"inner": TextFile(lambda: "deep\n")}))
    return made


def number(call, *arguments):
    with pytest.raises(OSError) as raised:
        call(*arguments)
    return raised.value.errno


def test_te11_2_small_reads_of_one_open_are_of_one_moment(tree, box):
    with tree.open("box") as handle:
        assert handle.read(2) == b"on"
        box.text = "other"
        assert handle.read(3) + handle.read(100) + handle.read(1) == b"e\ntwo\n"
        assert handle.seek(0) == 0
        assert handle.read() == b"other" and box.made == 2
        handle.seek(2)
        assert handle.read(2) == b"he"


def test_pe1_2_pe1_3_truncation_and_append(tree, box):
    tree.write("box", "a\nb\n", append=True)
    assert tree.read("box") == "one\ntwo\na\nb\n" and not box.truncated
    tree.write("box", "c\n")
    assert tree.read("box") == "c\n" and box.truncated == 1
    tree.open("box", os.O_RDONLY | os.O_TRUNC)
    assert box.truncated == 1


def test_a_write_does_not_move_the_position(tree):
    with tree.open("box", os.O_RDWR) as handle:
        assert handle.write(b"a\n") == 2
        assert handle.read() == b"one\ntwo\na\n"


def test_text_that_is_no_unicode_comes_back_as_it_was(tree, box):
    with tree.open("box", os.O_WRONLY) as handle:
        assert handle.write(b"\xff\xc3\xa9\n") == 4
    with tree.open("box") as handle:
        assert handle.read().endswith(b"\xff\xc3\xa9\n")


def test_te11_1_files_that_cannot_be_read_or_written(tree):
    assert number(tree.write, "fixed", "x") == errno.EINVAL
    assert number(tree.read, "sink") == errno.EINVAL
    tree.write("sink", "x")
    assert (tree.find("box").mode, tree.find("fixed").mode, tree.find("sink").mode) == (0o640, 0o440, 0o200)


def test_paths(tree):
    assert tree.read("dir/inner") == tree.read("./dir//inner") == "deep\n"
    assert tree.listdir() == ["box", "dir", "fixed", "sink"] and tree.listdir("dir") == ["inner"]
    assert number(tree.read, "nosuch") == number(tree.read, "dir/nosuch") == errno.ENOENT
    assert number(tree.read, "dir") == errno.EISDIR
    assert number(tree.read, "box/x") == number(tree.listdir, "box") == errno.ENOTDIR
    assert number(tree.add, "box", TextFile()) == errno.EEXIST


def test_te10_1_nothing_can_be_made_or_removed(tree):
    create = os.O_WRONLY | os.O_CREAT
    assert number(tree.open, "new", create) == number(tree.open, "dir/new", create) == errno.EACCES
    assert number(tree.open, "nosuch/new", create) == errno.ENOENT
    assert number(tree.mkdir, "new") == number(tree.rmdir, "dir") == errno.EPERM
    assert number(tree.mkdir, "dir") == errno.EEXIST and number(tree.rmdir, "new") == errno.ENOENT


README_TOKENS = """\
kprobe_events
Create/append/
r[maxactive]
p[:[<group>/][<event>]] <place> [<args>]
place: [<module>:]<symbol>
place (kretprobe): [<module>:]<symbol>[+<offset>]%return
kernel return probes support:
<symbol>[+<offset>]%return
f[:[<group>/][<event>]] <func-name>[%return] [<args>]
t[:[<group>/][<event>]] <tracepoint> [<args>]
s:[synthetic/]
$arg<N>
imm-value
imm-string
x8/16/32/64
<type>\\[<array-size>\\]
symstr
%pd/%pD
<argname>[->field[->field|.field...]]
""".splitlines()


@pytest.mark.parametrize("token", README_TOKENS)
def test_te4_14_the_self_tests_find_what_there_is_in_readme(token):
    assert token in README


def test_te4_14_what_the_self_tests_look_for_after_fetcharg():
    lines = README.splitlines()
    start = next(index for index, line in enumerate(lines) if "fetcharg:" in line)
    assert "$comm" in "".join(lines[start : start + 2])
    assert "ustring" in "".join(lines[start : start + 11]) and "[u]<offset>" in "".join(lines[start : start + 11])
    assert any("accepts:" in line and "glob-matching-pattern" in line for line in lines)


def test_te11_1_a_handle_does_what_it_was_opened_for(tree, box):
    with tree.open("box") as reading, tree.open("box", os.O_WRONLY) as writing, tree.open("box", os.O_RDWR) as both:
        assert number(reading.write, b"x\n") == number(writing.read) == errno.EBADF
        assert writing.write(b"a\n") == both.write(b"b\n") == 2 and both.read() == b"one\ntwo\na\nb\n"
        assert both.poll() and number(both.seek, -1) == errno.EINVAL
    assert number(both.read) == number(both.seek, 0) == number(reading.poll) == errno.EBADF


def test_te11_1_what_open_refuses(tree):
    assert number(tree.open, "box", os.O_WRONLY | os.O_CREAT | os.O_EXCL) == errno.EEXIST
    assert (
        number(tree.open, "box", os.O_DIRECTORY)
        == number(tree.open, "box/")
        == number(tree.read, "box/..")
        == errno.ENOTDIR
    )
    tree.open("dir/", os.O_DIRECTORY).close()


def test_te11_1_paths_may_go_up(tree):
    assert tree.read("/dir//./../dir/inner") == tree.read("../../dir/inner") == "deep\n"
    assert number(tree.read, "nosuch/../box") == errno.ENOENT


def test_te10_2_names_that_no_directory_can_have(tree):
    for name in ("dir/.", "dir/..", "dir/"):
        assert number(tree.mkdir, name) == errno.EEXIST
    assert number(tree.mkdir, "dir/" + "x" * 256) == errno.ENAMETOOLONG
    assert number(tree.mkdir, "dir/" + "x" * 255) == errno.EPERM
