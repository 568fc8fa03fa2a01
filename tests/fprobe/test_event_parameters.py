"""Named parameters of functions whose arguments are not all in integer registers."""

from __future__ import annotations

import errno
import shutil

import pytest

import sandbox
from ftrace.tracing.probe_args.arguments import parse_arguments
from ftrace.tracing.probe_args.fetch import EntryArgument
from ftrace.tracing.probe_args.scope import Scope
from sandbox.images.btf import prototype

C = """
struct big { long a, b, c; };
struct small { int a; };
long mixed(double x, int n, float y, char *name) { return n + (long)x + (long)y + (long)name; }
struct big made(int seed) { struct big b = {seed, 1, 2}; return b; }
long given(int first, struct big b, int after) { return first + b.a + after; }
long slight(int first, struct small s, int after) { return first + s.a + after; }
long seven(int a, int b, int c, int d, int e, int f, int g) { return a + b + c + d + e + f + g; }
long spilled(double x, int a, int b, int c, int d, int e, int f, int g) { return x + a + b + c + d + e + f + g; }
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("the program is in C")
    path = tmp_path_factory.mktemp("c") / "mixed.c"
    path.write_text(C)
    module = sandbox.load(path)
    yield module
    module.unload()


def source(function, name):
    scope = Scope(at_entry=True, find_prototype=lambda: prototype(function))
    return parse_arguments([name], scope)[0].fetch.source


@pytest.mark.parametrize(
    "function, name, index",
    [
        ("mixed", "n", 0), ("mixed", "name", 1), ("made", "seed", 1), ("given", "first", 0), ("given", "after", 1),
        ("slight", "first", 0), ("seven", "f", 5), ("seven", "g", 6),
    ],
)  # fmt: skip
def test_parameters_are_where_the_calling_convention_puts_them(program, function, name, index):
    assert source(function, name) == EntryArgument(index)


@pytest.mark.parametrize(
    "function, name", [("mixed", "x"), ("mixed", "y"), ("given", "b"), ("slight", "after"), ("nothing", "x")]
)
def test_parameters_that_are_in_no_known_register_are_refused(program, function, name):
    with pytest.raises(OSError) as raised:
        source(function, name)
    assert raised.value.errno == errno.ENOENT
