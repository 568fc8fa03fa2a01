"""The examples in documents whose blocks stand alone run, and print what they are about; what documents name is there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from isolation import run_source

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PRINTED = {
    "events": [r"(?s)^p:kprobes/reads vfs_read count=%dx:u64$.*^  reads +[1-9]\d* +0$"],
    "fprobe": [r"^vfs_open\+0x0/.* = 0x[^0]*[\s\S]* hits, 0 misses$", r"^15\.0$"],
    "kprobes": ["kmalloc returns 0x", "0x44 44", r"^\d+ \[", r"\[FTRACE\]"],
    "optimization": ["^True None$"],
    "ring-buffer": [r"^\d+ \d+ 2 4$"],
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


PACKAGES = "sandbox|ftrace|kprobes|fprobe|tests|examples"
NAMING = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(DOCS / path.name for path in sorted(DOCS.glob("*.md")))]


def resolves(name):
    """Whether a dotted name is a module, or something in one."""
    parts = name.split(".")
    for split in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:split]))
        except ImportError:
            continue
        for part in parts[split:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


@pytest.mark.parametrize(
    "document", [path for path in NAMING if path.name != "performance.md"], ids=lambda path: path.name
)
def test_files_and_names_in_backquotes_are_there(document):
    """The names of benchmarks in docs/performance.md look like others."""
    quoted = set(re.findall(r"`([^`\n]+)`", document.read_text()))
    files = {text for text in quoted if re.fullmatch(rf"(?:{PACKAGES})/[\w./]+", text)}
    names = {text.partition("(")[0] for text in quoted if re.match(rf"(?:{PACKAGES})(?:\.\w+)+(?:\(|$)", text)}
    assert [path for path in sorted(files) if not (ROOT / path).exists()] == []
    assert [name for name in sorted(names) if not resolves(name)] == []
