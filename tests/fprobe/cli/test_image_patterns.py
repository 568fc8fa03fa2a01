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


def test_a_recording_names_functions_of_libraries(run, numbers, tmp_path):
    file = str(tmp_path / "trace.dat")
    run("record", "-e", "p:asked libc:strtol", "-o", file, *numbers)
    assert len(re.findall(r"asked: \(strtol\+0x0/0x[0-9a-f]+ \[libc\.so\.6\]\)", run("report", file).out)) == 2


def test_what_is_probed_is_said_to_be_of_its_library(run, numbers):
    found = run("stat", "libc:strtol", "numbers", *numbers)
    assert "# counting 2 functions of [libc.so.6], [numbers], calling main()" in found.out
