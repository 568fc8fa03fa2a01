"""`fprobe trace --native`: native handlers and their maps from the command line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HANDLERS = """
from __future__ import annotations
import fprobe
from sandbox.native import i32, ptr, u64

arguments = fprobe.Hash(u64, u64, 16)
results = fprobe.Histogram()

@fprobe.native
def begins(fp, ip, ret_ip, regs, data: ptr[u64]) -> i32:
    arguments[regs.di] += 1
    data[0] = regs.di
    return 1 if regs.di == 3 else 0

@fprobe.native
def ends(fp, ip, ret_ip, regs, data: ptr[u64]):
    results.add(regs.ax * 10 + data[0])
"""


FAULTY = """
from __future__ import annotations
import fprobe
from sandbox.native import i32, ptr, u64

@fprobe.native
def faulty(fp, ip, ret_ip, regs, data: ptr[u64]) -> i32:
    data[regs.di << 40] = 1
    return 0
"""


@pytest.fixture
def handlers(tmp_path):
    path = tmp_path / "handlers.py"
    path.write_text(HANDLERS)
    return path


def test_maps_are_printed_at_the_end(run, programs, handlers):
    native = f"{handlers}:begins:ends"
    found = run("trace", "fact", "--program", "prog.ll", "--call", "fact", "3", "--native", native, cwd=programs)
    head, result = found.out.split("fact(3) = ")
    assert head.split() == [
        "arguments:", "1", "1", "2", "1", "3", "1",
        "results:", "8", "..", "16", "1", "|########################################|",
        "16", "..", "32", "1", "|########################################|",
    ]  # fmt: skip
    assert result.startswith("6\n") and "3 hits, 0 misses" in result


def test_as_json(run, programs, handlers):
    native = f"{handlers}:begins"
    found = run(
        "trace", "func1", "--program", "prog.ll", "--call", "func1", "5", "--native", native, "--json", cwd=programs
    )
    first, second, *rest = found.objects
    assert first == {"type": "map", "name": "arguments", "entries": [{"key": 5, "value": 1}]}
    assert second == {"type": "map", "name": "results", "entries": []}
    assert [item["type"] for item in rest] == ["result", "summary"] and rest[1]["hits"] == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{path}", "--native takes FILE:ENTRY or FILE:ENTRY:EXIT, not "),
        ("{path}:begin", "no native function 'begin'; there are: begins, ends"),
        ("none.py:begins", "none.py: no such file"),
        ("{path}::begins", "begins returns i32; an exit_handler returns void"),
        ("{path}:results", "no native function 'results'"),
    ],
)
def test_what_is_wrong_is_said(run, handlers, text, message):
    found = run("trace", "vfs_read", "--native", text.format(path=handlers), code=2)
    assert message in found.err


def test_a_compile_error_shows_its_place(run, handlers):
    handlers.write_text(HANDLERS.replace("return 1 if", "x = 1.5\n    return 1 if"))
    found = run("trace", "vfs_read", "--native", f"{handlers}:begins", code=2)
    assert re.search(r"handlers.py:13:\d+: error: .*\n +x = 1.5\n +\^\^\^", found.err)


def test_the_code_of_a_handler_with_its_source(run, handlers):
    lines = run("disasm", f"{handlers}:begins", "--source").out.splitlines()
    assert lines[0] == "begins, native"
    headings = [line for line in lines if line.startswith(("handlers.py:", "hash.py:"))]
    assert any(line.startswith("hash.py:") for line in headings), "what was inlined has its own place"
    assert "handlers.py:12: data[0] = regs.di" in headings
    after = lines[lines.index("handlers.py:13: return 1 if regs.di == 3 else 0") + 1]
    assert re.match(r"   0x[0-9a-f]+ \+0x[0-9a-f]+ +([0-9a-f]{2} )+ +\w", after)
    assert sum(line.strip().startswith("0x") for line in lines) > 20


def test_the_source_of_each_instruction_as_json(run, handlers):
    found = run("disasm", f"{handlers}:ends", "--source", "--json").document
    assert found["function"] == "ends"
    assert {item["line"] for item in found["loaded"] if item.get("file") == str(handlers)} >= {16, 17}


def test_functions_without_known_lines_have_no_source(run):
    message = "the source lines of dput [demo] are not known"
    assert message in run("disasm", "dput", "--source", code=2).err


def test_a_fault_of_a_handler_is_shown_with_its_line(run, programs, tmp_path):
    path = tmp_path / "faulty.py"
    path.write_text(FAULTY)
    words = ("trace", "fact", "--program", "prog.ll", "--call", "fact", "3", "--native", f"{path}:faulty")
    lines = run(*words, code=1, cwd=programs).err.splitlines()
    assert lines[0].startswith("fprobe: a probe's handler faulted: SIGSEGV in faulty+0x")
    assert lines[1:3] == [f"  {path}:8", "    data[regs.di << 40] = 1"]
    found = run(*words, "--json", code=1, cwd=programs).objects[-1]
    assert found["source"] == {"file": str(path), "line": 8, "text": "data[regs.di << 40] = 1"}


def test_a_function_of_a_c_program_is_shown_under_its_lines(run, programs):
    lines = run("disasm", "fib", "--program", "prog.c", "--source", cwd=programs).out.splitlines()
    text = (programs / "prog.c").read_text().splitlines()
    shown = [line.split(": ", 1) for line in lines if line.startswith("prog.c:")]
    assert shown and all(text[int(place.partition(":")[2]) - 1].strip() == source for place, source in shown)


def test_a_function_of_the_demo_is_shown_under_its_lines(run):
    lines = run("disasm", "kmalloc", "--source").out.splitlines()
    source = [line.split(":", 2) for line in lines if line.startswith("mm.py:")]
    assert lines[0] == "kmalloc, as loaded" and lines[2].startswith("=> 0x")
    assert source[0][2] == " def kmalloc(size: u64, flags: i32) -> ptr[u8]:"
    assert " if size > OBJECT_SIZE:" in [text for _, _, text in source]
    objects = run("disasm", "kmalloc", "--source", "--json").document["loaded"]
    assert {Path(each["file"]).name for each in objects if "file" in each} == {"mm.py"}
    assert len({each.get("line") for each in objects}) > 3
