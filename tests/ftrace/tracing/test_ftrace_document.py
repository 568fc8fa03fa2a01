"""The examples in docs/ftrace.md run, one after the other."""

from __future__ import annotations

import re
from pathlib import Path

from isolation import run_source

DOCUMENT = Path(__file__).parents[3] / "docs" / "ftrace.md"


def test_the_examples_run():
    examples = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    assert len(examples) == 4
    done = run_source("\n".join(examples), timeout=60)
    assert done.returncode == 0, done.stderr
    assert "vfs_open [demo] called from" in done.stdout
