"""Imports of modules that have moved say the new place; other failures are as without us."""

import importlib
import importlib.util
import sys

import pytest

from sandbox import moved


@pytest.mark.parametrize(
    ("old", "said"),
    [
        (
            "ftrace.x86_64.pt_regs",
            "'ftrace.x86_64': it is ftrace.hit.x86_64 now; its public names: from fprobe import pt_regs; from ftrace "
            "import pt_regs",
        ),
        (
            "ftrace.ring_buffer.writer",
            "it is ftrace.hit.ring_buffer.writer now; its public names: from ftrace import commit, reserve",
        ),
        (
            "ftrace.maps.listing",
            "it is ftrace.core.maps now; its public names: from fprobe import Array, Hash, .*; from ftrace import map_lines",
        ),
        ("ftrace.filters.set_ftrace_filter", "it is ftrace.core.filters or .* import .*FilterFile, read_filter"),
        ("kprobes.jump.optimize", "it is kprobes.optimization or kprobes.jump.choice now; .* import Extent, .*why_not"),
        ("sandbox.numba.live", "'sandbox.numba': it is sandbox.images.numba now$"),
        ("sandbox.x86_64.heads", "it is sandbox.native.x86_64.entry_bytes now$"),
    ],
)
def test_the_old_import_says_the_new_one(old, said):
    with pytest.raises(ModuleNotFoundError, match=said) as raised:
        importlib.import_module(old)
    assert old.startswith(raised.value.name)


@pytest.mark.parametrize(
    "name", ["ftrace.nothing", "ftrace.core.nothing", "nothing", "nothing.records", "ftrace.*", "ftrace./etc"]
)
def test_other_failures_are_as_ever(name):
    with pytest.raises(ModuleNotFoundError) as raised:
        importlib.import_module(name)
    assert " now" not in str(raised.value)


def test_optional_parts_are_found_or_not_as_ever():
    assert importlib.util.find_spec("ftrace.core.ops") and importlib.util.find_spec("ftrace.nothing") is None
    with pytest.raises(ImportError, match="cannot import name 'nothing' from 'ftrace'"):
        exec("from ftrace import nothing")


def test_the_finder_is_there_once():
    moved.install()
    assert [type(each) for each in sys.meta_path].count(moved.MovedModules) == 1
    assert "PathFinder" in [getattr(each, "__name__", "") for each in sys.meta_path[:-1]]


@pytest.mark.parametrize("old", moved.RENAMED)
def test_the_table_of_renamed_modules_is_true(old):
    assert moved.MovedModules.find_spec("ftrace.nothing") is None
    assert importlib.util.find_spec(moved.RENAMED[old][0]) is not None
    with pytest.raises(ModuleNotFoundError, match=" now"):
        importlib.import_module(old)
