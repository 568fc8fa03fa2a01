"""The examples in documents whose blocks stand alone run, and print what they are about."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from isolation import run_source

DOCS = Path(__file__).parents[1] / "docs"
PRINTED = {
    "fprobe": [r"^vfs_open\+0x0/.* = 0x[^0]*[\s\S]* hits, 0 misses$", r"^15\.0$"],
    "kprobes": ["kmalloc returns 0x", "0x44 44", r"^\d+ \[", r"\[FTRACE\]"],
    "optimization": ["^True None$"],
    "stacktraces": [r"^vfs_fsync\+0x[^\n]*\n\w+\+0x"],
}


def examples(name):
    return re.findall(r"^```python\n(.*?)^```", (DOCS / f"{name}.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    ("name", "index"), [(name, n) for name, printed in PRINTED.items() for n in range(len(printed))]
)
def test_an_example_runs(name, index, tmp_path):
    program = tmp_path / "example.py"
    program.write_text(examples(name)[index])
    done = run_source(f"import runpy; runpy.run_path({str(program)!r})")
    assert done.returncode == 0, done.stderr
    assert re.search(PRINTED[name][index], done.stdout, re.MULTILINE), done.stdout


@pytest.mark.parametrize("name", PRINTED)
def test_every_example_is_run(name):
    assert len(examples(name)) == len(PRINTED[name])
