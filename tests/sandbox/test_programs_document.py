"""The examples in docs/programs.md run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sampled import sampled

DOCUMENT = Path(__file__).parents[2] / "docs" / "programs.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("example", sampled(EXAMPLES, 1), ids=[str(i) for i in range(len(EXAMPLES))])
def test_an_example_runs(example, run_python):
    run_python(example)


def test_there_are_examples():
    assert len(EXAMPLES) == 3
