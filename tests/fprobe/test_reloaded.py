"""Handlers that are edited and loaded again: what runs is always what the running code object was compiled from."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from isolation import isolated
from sampled import sampled

import fprobe
import kprobes
import sandbox
from sandbox.native import NativeError

PROGRAM = "define i64 @leaf(i64 %x) { %r = add i64 %x, 1  ret i64 %r }"
HEAD = """from __future__ import annotations
import fprobe, kprobes
from sandbox.native import i32, native, u64

seen = fprobe.Array(u64, 4, shared=True)

"""
HELPER = """@native(noinline=True)
def value() -> u64:
    return 1

"""
ENTRY = """@fprobe.native
def handler(fp, ip, ret_ip, regs, data) -> i32:
    seen[0] += value()
    return 0

"""
PRE = """@kprobes.native
def handler(p, regs):
    seen[0] += value()

"""
FACTORY = """def make():
    @fprobe.native
    def handler(fp, ip, ret_ip, regs, data) -> i32:
        seen[0] += 1
        return 0
    return handler

"""
LATE = """@fprobe.native
def handler(fp, ip, ret_ip, regs, data) -> i32:
    seen[0] += value()
    return 0

@native(noinline=True)
def value() -> u64:
    x: u64 = 1
    return x

"""
EDITS = {
    "same length": lambda text: text.replace("return 1", "return 2").replace("+= 1", "+= 2"),
    "longer": lambda text: text.replace("return 1", "return 1 + 1").replace("+= 1", "+= 1 + 1"),
    "moved": lambda text: "# one\n# two\n" + text.replace("return 1", "return 2").replace("+= 1", "+= 2"),
}


def write(file: Path, text: str) -> None:
    """Later than what was there: the clock that files are dated by is coarse."""
    before = file.stat().st_mtime_ns if file.exists() else 0
    file.write_text(text)
    if before:
        os.utime(file, ns=(before + 2 * 10**9, before + 2 * 10**9))


def loaded(directory: str, text: str) -> tuple[Any, Path]:
    """A module with this text, imported from a file."""
    file = Path(directory) / "edited_handlers.py"
    write(file, text)
    sys.path.insert(0, directory)
    return importlib.import_module("edited_handlers"), file


def counted(program: Any, module: Any, handler: Any = None) -> int:
    """What one call adds to the first cell."""
    handler = handler or module.handler
    is_kprobe = type(handler).__name__ == "KprobeFunction"
    before = module.seen[0]
    with kprobes.attach("leaf", pre=handler) if is_kprobe else fprobe.attach("leaf", entry=handler):
        assert program["leaf"](4) == 5
    return int(module.seen[0] - before)


@isolated
@pytest.mark.parametrize("edit", sampled(EDITS, 2))
@pytest.mark.parametrize("kind", ["fprobe", "kprobe", "factory"])
def test_a_reloaded_handler_runs_its_new_code(kind, edit):
    text = HEAD + {"fprobe": HELPER + ENTRY, "kprobe": HELPER + PRE, "factory": FACTORY}[kind]
    program = sandbox.load(PROGRAM)
    with TemporaryDirectory() as directory:
        module, file = loaded(directory, text)
        assert counted(program, module, module.make() if kind == "factory" else None) == 1
        write(file, EDITS[edit](text))
        importlib.reload(module)
        assert counted(program, module, module.make() if kind == "factory" else None) == 2


@isolated
@pytest.mark.parametrize("edit", sampled(EDITS, 1))
@pytest.mark.parametrize("kind", ["fprobe", "kprobe"])
def test_a_handler_whose_file_was_edited_runs_the_code_that_was_loaded(kind, edit):
    """It is compiled when it is attached for the first time, after the edit."""
    text = HEAD + HELPER + {"fprobe": ENTRY, "kprobe": PRE}[kind]
    program = sandbox.load(PROGRAM)
    with TemporaryDirectory() as directory:
        module, file = loaded(directory, text)
        write(file, EDITS[edit](text))
        assert counted(program, module) == 1


@isolated
@pytest.mark.parametrize("edit", sampled(EDITS, 1))
def test_a_function_that_is_made_from_an_edited_file_is_refused(edit):
    program = sandbox.load(PROGRAM)
    with TemporaryDirectory() as directory:
        module, file = loaded(directory, HEAD + FACTORY)
        assert counted(program, module, module.make()) == 1
        write(file, EDITS[edit](HEAD + FACTORY))
        with pytest.raises(NativeError, match=f"{file} has changed since handler was loaded from it; reload"):
            counted(program, module, module.make())
        importlib.reload(module)
        assert counted(program, module, module.make()) == 2


@isolated
def test_a_function_that_is_first_read_after_an_edit_is_refused():
    """Types of locals leave no trace in Python's code."""
    program = sandbox.load(PROGRAM)
    with TemporaryDirectory() as directory:
        module, file = loaded(directory, HEAD + LATE)
        write(file, (HEAD + LATE).replace("x: u64", "x: i64"))
        with pytest.raises(NativeError, match=f"{file} has changed since value was defined; reload"):
            counted(program, module)


@isolated
def test_a_file_that_is_gone_does_not_matter_to_what_was_read():
    program = sandbox.load(PROGRAM)
    with TemporaryDirectory() as directory:
        module, _ = loaded(directory, HEAD + HELPER + ENTRY)
    assert counted(program, module) == 1


@isolated
def test_a_handler_may_call_methods_of_what_its_module_imports():
    """Python compiles such calls in another way, so that the definition has to be compiled as it does."""
    program = sandbox.load(PROGRAM)
    with TemporaryDirectory() as directory:
        write(Path(directory) / "shared_maps.py", "import fprobe\nsizes = fprobe.Histogram(8)\n")
        text = HEAD + "from shared_maps import sizes\n" + ENTRY.replace("value()", "1\n    sizes.add(1)")
        module, _ = loaded(directory, text)
        assert counted(program, module) == 1
        assert sum(bucket.count for bucket in module.sizes) == 1
