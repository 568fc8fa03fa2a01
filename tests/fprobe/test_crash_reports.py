"""What a crash in code of the native language, or of C, says: the file, the line and its text."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from isolation import isolated

import fprobe
import sandbox
from sandbox.native import cast, i32, native, ptr, u64, void
from sandbox.threads.faults import SandboxFault


@native
def clear_first(words: ptr[u64]) -> void:
    words[0] = 0  # faults for null


@fprobe.native
def bad_handler(fp, ip, ret_ip, regs, data) -> i32:
    if regs.di == 7:
        clear_first(words_at(regs.si))
    return 0


@native
def words_at(address: u64) -> ptr[u64]:
    return cast(ptr[u64], address)


@sandbox.function
def outer(x: u64, words: ptr[u64]) -> u64:
    return inner(x, words) + 1


@sandbox.function
def inner(x: u64, words: ptr[u64]) -> u64:
    total: u64 = x
    for i in range(4):
        total += words[i]  # faults for null
    return total


def line_of(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip().startswith(text))


@isolated
def test_a_program_in_the_native_language() -> None:
    assert outer.module.state.value == "live"
    with fprobe.attach(["outer", "inner"], entry=lambda *_: None), pytest.raises(SandboxFault) as caught:
        outer(1, 0)
    source = caught.value.source
    assert source is not None
    assert (source.file, source.line) == (__file__, line_of("total += words[i]"))
    assert source.text == "total += words[i]  # faults for null"
    assert "SIGSEGV in inner+" in str(caught.value) and f"({source}) accessing 0x0" in str(caught.value)


@isolated
def test_a_handler_and_what_it_calls() -> None:
    assert outer.module.state.value == "live"
    with fprobe.attach(["outer"], entry=bad_handler), pytest.raises(SandboxFault) as caught:
        outer(7, 0)
    source = caught.value.source
    assert caught.value.probe and source is not None
    assert (source.file, source.line) == (__file__, line_of("words[0] = 0"))
    assert source.text == "words[0] = 0  # faults for null"


@isolated
def test_ir_without_debug_information_has_no_lines() -> None:
    module = sandbox.load("define i64 @poke(ptr %p) {\n %v = load i64, ptr %p\n ret i64 %v\n}", name="plain")
    with fprobe.attach(["poke"], entry=bad_handler), pytest.raises(SandboxFault) as caught:
        module["poke"](0)
    assert caught.value.source is None and "poke+" in str(caught.value)


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
@isolated
def test_a_program_in_c() -> None:
    path = Path(tempfile.mkdtemp(), "peek.c")
    path.write_text("long peek(long *at)\n{\n\treturn *at; /* faults for null */\n}\n")
    try:
        module = sandbox.load(path, name="peek")
        with fprobe.attach(["peek"], entry=lambda *_: None), pytest.raises(SandboxFault) as caught:
            module["peek"](None)
        source = caught.value.source
        assert source is not None and (source.file, source.line) == (str(path), 3)
        assert source.text == "return *at; /* faults for null */"
    finally:
        shutil.rmtree(path.parent)


@isolated
def test_lines_go_with_their_module() -> None:
    from sandbox.symbols import source_lines

    address = inner.address
    assert source_lines.at(address + 16) is not None
    inner.module.unload()
    assert source_lines.at(address + 16) is None
