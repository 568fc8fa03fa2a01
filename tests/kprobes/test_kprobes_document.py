"""The examples in docs/kprobes.md run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from isolation import run_source

DOCUMENT = Path(__file__).parents[2] / "docs" / "kprobes.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
PRINTED = ["kmalloc returns 0x", "0x44 44", "[", "[FTRACE]"]


@pytest.mark.parametrize("index", range(len(EXAMPLES)))
def test_an_example_runs(index, tmp_path):
    program = tmp_path / "example.py"
    program.write_text(EXAMPLES[index])
    done = run_source(f"import runpy; runpy.run_path({str(program)!r})")
    assert done.returncode == 0, done.stderr
    assert PRINTED[index] in done.stdout


def test_there_are_examples():
    assert len(EXAMPLES) == len(PRINTED)
