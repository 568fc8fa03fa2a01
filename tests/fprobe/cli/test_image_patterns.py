"""Verbs on functions of libraries: each takes the same patterns."""

from __future__ import annotations

import re

import pytest

NUMBERS = """
@text = global [3 x i8] c"42\\00"
declare i64 @strtol(ptr, ptr, i32)
define i64 @numbers(i64 %n) noinline {
  %a = call i64 @strtol(ptr @text, ptr null, i32 10)
  %b = call i64 @strtol(ptr @text, ptr null, i32 10)
  %r = add i64 %a, %b
  ret i64 %r
}
define i64 @main() { %r = call i64 @numbers(i64 1)  ret i64 %r }
"""
ENTERS = re.compile(r"\d+\) .*\|( +)(\w+) \[")


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    """The options for a program that calls strtol twice."""
    path = tmp_path_factory.mktemp("numbers") / "numbers.ll"
    path.write_text(NUMBERS)
    return ("--program", str(path), "--call", "main")


def functions_in(found):
    return [(len(match[1]) // 2, match[2]) for match in map(ENTERS.search, found.out.splitlines()) if match]


def test_the_call_graph_has_functions_of_modules_and_libraries(run, numbers):
    """Memory that the program's thread alone asks for: the one that shows the graph asks for more with each line of it."""
    found = functions_in(run("graph", "numbers", "libc:strtol", "libc:malloc", *numbers))
    assert [each for each in found if each[1] != "malloc"] == [(1, "numbers"), (2, "strtol"), (2, "strtol")]


def test_the_call_graph_inside_a_function_of_a_library(run, numbers):
    inside = functions_in(run("graph", "numbers", "libc:strto*", "!libc:strtod", "--inside", "libc:strtol", *numbers))
    assert inside and {depth for depth, name in inside if name == "strtol"} == {1}
    assert "numbers" not in {name for _, name in inside}
    assert "did you mean libz:deflate" in run("graph", "libz:deflat", *numbers, code=2).err
    assert "no function of [libz" in run("graph", "--inside", "libz:nope", *numbers, code=2).err


def test_the_profile_names_functions_of_libraries(run, numbers):
    assert re.search(r"^  strtol +2 ", run("profile", "libc:strtol", *numbers).out, re.MULTILINE)


def test_a_recording_names_functions_of_libraries(run, numbers, tmp_path):
    file = str(tmp_path / "trace.dat")
    run("record", "-e", "p:asked libc:strtol", "-o", file, *numbers)
    assert len(re.findall(r"asked: \(strtol\+0x0/0x[0-9a-f]+ \[libc\.so\.6\]\)", run("report", file).out)) == 2


def test_what_is_probed_is_said_to_be_of_its_library(run, numbers):
    found = run("stat", "libc:strtol", "numbers", *numbers)
    assert "# counting 2 functions of [libc.so.6], [numbers], calling main()" in found.out
