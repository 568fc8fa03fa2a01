"""The lines of C and C++ programs: of the functions in every section, wherever the loader has put them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from sandbox import load
from sandbox.symbols import source_lines

pytestmark = pytest.mark.skipif(not shutil.which("c++"), reason="no C++ compiler")

LIBRARY = """\
template <typename T> inline T larger(T a, T b) {
    return a > b ? a : b;  // larger
}
"""
PROGRAM = """\
#include "larger.hpp"
extern "C" {
__attribute__((section(".elsewhere"))) long moved(long *at) {
    return *at + 1;  // moved
}
long compared(long a, long b) {
    return larger(a, b) + 1;  // compared
}
__attribute__((cold)) long unlikely(long a) {
    return a * 3;  // unlikely
}
}
"""
PLACES = [("moved", "program.cpp", 4), ("compared", "program.cpp", 7), ("unlikely", "program.cpp", 10)]


@pytest.fixture(scope="module", params=["-gdwarf-4", "-gdwarf-5"])
def program(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("lines")
    (directory / "larger.hpp").write_text(LIBRARY)
    path = directory / "program.cpp"
    path.write_text(PROGRAM)
    module = load(path, name="lines", cflags=[request.param])
    yield module
    module.unload()


def lines_of(module, name):
    symbol = module.symbol(name)
    return [source_lines.at(address) for address in range(symbol.address, symbol.end)]


@pytest.mark.parametrize(("name", "file", "line"), PLACES)
def test_a_function_has_the_lines_between_its_first_and_its_last(program, name, file, line):
    found = lines_of(program, name)
    assert None not in found
    assert {each.file.rpartition("/")[2] for each in found} == {file}
    assert {each.line for each in found} <= {line - 1, line, line + 1} and line in {each.line for each in found}
    assert f"// {name}" in next(each.text for each in found if each.line == line)


def test_what_comes_from_a_header_has_its_lines(program):
    [name] = [symbol.name for symbol in program.functions if "larger" in symbol.name]
    found = lines_of(program, name)
    assert {each.file.rpartition("/")[2] for each in found} == {"larger.hpp"}
    assert 2 in {each.line for each in found}


def test_nothing_is_known_outside_of_the_program(program):
    assert source_lines.at(program.symbol("moved").address - (1 << 30)) is None


def test_lines_go_with_the_program_and_need_debug_information(tmp_path):
    path = tmp_path / "plain.c"
    path.write_text("long f(long a) { return a + 1; }\n")
    for flag, known in (("-g", True), ("-g0", False)):
        module = load(path, name="plain", cflags=[flag])
        address = module.symbol("f").address
        assert (source_lines.at(address) is not None) is known
        module.unload()
        assert source_lines.at(address) is None


def opened(name):
    """The file of the program, and the address where its beginning is."""
    mappings = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    start, path = next((words[0], words[5]) for words in mappings if words[-1].endswith(f"/{name}.so"))
    return path, int(start.partition("-")[0], 16)


def test_the_lines_are_those_that_addr2line_gives(program):
    """binutils reads the same tables."""
    tool = shutil.which("addr2line")
    if tool is None:
        pytest.skip("no addr2line")
    path, base = opened("lines")
    for symbol in program.functions:
        offsets = range(symbol.address - base, symbol.end - base)
        said = subprocess.run([tool, "-e", path, *map(hex, offsets)], capture_output=True, text=True, check=True)
        expected = [line.partition(" (")[0] for line in said.stdout.splitlines()]
        assert [f"{each.file}:{each.line}" for each in lines_of(program, symbol.name)] == expected
