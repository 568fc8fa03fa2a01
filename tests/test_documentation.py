"""The examples in documents whose blocks stand alone run, and print what they are about; what documents name is there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from isolation import NUMBA, run_forked
from sampled import sampled

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PRINTED = {
    "events": [r"(?s)^p:kprobes/reads vfs_read count=%dx:u64$.*^  reads +[1-9]\d* +0$"],
    "filters": [r"(?s)^ .*: reads: .* count=512$.*^none$.*^cout > 100\n     \^\nparse_error: Field not found$"],
    "fprobe": [r"^vfs_open\+0x0/.* = 0x[^0]*[\s\S]* hits, 0 misses$", r"^15\.0$"],
    "histograms": [
        r"(?s)^{ count: +512 } hitcount: +10  count: +5120\n{ count: +100 } hitcount: +1  count: +100$",
        r"(?s)^{ count: +512, ns: ~ 2\^\d+ *} hitcount: .*: latency: ns=\d+ count=100$",
    ],
    "kprobes": ["kmalloc returns 0x", "0x44 44", r"^\d+ hits at \d+ places$", r"^\d+ \[", r"\[FTRACE\]"],
    "libraries": [r"^\d{2,} functions are probed$[\s\S]*ns a call$"],
    "numba": [
        r"^0x[0-9a-f]+ 1\n0x[0-9a-f]+ 1$",
        r"^\(3,\) 2\n\[0\. 2\. 4\.\]$",
        "^2 3 2$",
        "^called with 14$",
        "^1 call was seen$",
        "^1 call was seen$",
    ],
    "optimization": ["^jump None$"],
    "recording": [r"(?s)^reads \d+ \d+ 512 None$.*: done: \(ksys_read\+0x.*^4 0 0$"],
    "ring-buffer": [r"^\d+ \d+ 2 4$"],
    "tracers": [
        r"(?m)^ \d+\)[^|]*\|  vfs_read \[demo\]\(\) \{$",
        r"(?m)^  0\) +\d+       8   \w+\+0x\w+/0x\w+ \[demo\]$",
    ],
    "triggers": [r"(?s)^ .*: reads: .* count=512$.*<stack trace>.*^0$.*^stacktrace:count=0 if count > 100$"],
    "stacktraces": [r"^vfs_fsync\+0x[^\n]*\n\w+\+0x"],
}


def examples(name):
    return re.findall(r"^```python\n(.*?)^```", (DOCS / f"{name}.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    ("name", "index"), sampled([(name, n) for name, printed in PRINTED.items() for n in range(len(printed))], 3)
)
def test_an_example_runs(name, index, tmp_path):
    if name == "numba":
        pytest.importorskip("numba", reason="numba is not installed: it has no wheels for some Pythons")
    program = tmp_path / "example.py"
    program.write_text(examples(name)[index])
    source = "import atexit, os, pathlib, runpy\n"
    source += "atexit.register(pathlib.Path(f'/tmp/perf-{os.getpid()}.map').unlink, missing_ok=True)\n"
    source += f"runpy.run_path({str(program)!r}, run_name='__main__')\n"
    if name == "numba":  # without optimising these take a third of the time
        source = f"import os, numba\nos.environ['NUMBA_OPT'] = '0'\nnumba.core.config.reload_config()\n{source}"
    done = run_forked(source, 110, NUMBA if name == "numba" else (), cold=False)
    assert done.returncode == 0, done.stderr
    assert re.search(PRINTED[name][index], done.stdout, re.MULTILINE), done.stdout


@pytest.mark.parametrize("name", PRINTED)
def test_every_example_is_run(name):
    assert len(examples(name)) == len(PRINTED[name])


PACKAGES = "sandbox|ftrace|kprobes|fprobe|tests|examples"
NAMING = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.glob("*.md"))]


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


@pytest.mark.parametrize("document", NAMING, ids=lambda path: path.name)
def test_every_path_is_there(document):
    """In code blocks and plain text too; a last `*` stands for any name. Links are relative to the document."""
    text = document.read_text()
    paths = set(re.findall(rf"(?<![\w/.:-])(?:(?:{PACKAGES}|docs|benchmarks)/[\w./*-]*[\w/*])", text))
    prose = re.sub(r"^```.*?^```|`[^`\n]+`", "", text, flags=re.MULTILINE | re.DOTALL)
    links = {link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", prose) if "://" not in link}
    assert [path for path in sorted(paths) if not list(ROOT.glob(path))] == []
    assert [link for link in sorted(links) if link and not (document.parent / link).exists()] == []


def drawn_tree():
    """The directories of the tree in docs/architecture.md: two spaces of indentation for each level."""
    block = re.search(r"^## The tree$.*?^```\w*\n(.*?)^```", (DOCS / "architecture.md").read_text(), re.M | re.S)
    parents: list[str] = []
    for line in block[1].splitlines():
        indent, name = re.match(r"( *)(\w+)/ +\S", line).groups()
        parents[len(indent) // 2 :] = [name]
        yield "/".join(parents)


def test_the_tree_has_a_line_for_each_package():
    sources = (path for package in PACKAGES.split("|")[:4] for path in (ROOT / package).rglob("*.py"))
    packages = {str(path.parent.relative_to(ROOT)) for path in sources}
    assert sorted(drawn_tree()) == sorted(packages)


def test_modules_named_in_walks_are_there():
    """The code blocks of docs/architecture.md name modules without backquotes."""
    blocks = "\n".join(re.findall(r"^```text\n(.*?)^```", (DOCS / "architecture.md").read_text(), re.M | re.S))
    names = set(re.findall(r"(?<![\w/.])(?:sandbox|ftrace|kprobes|fprobe)\.\w+(?:\.\w+)*", blocks))
    assert names and [name for name in sorted(names) if not resolves(name)] == []


def test_every_environment_variable_is_explained():
    """Each FPROBE_* that the sources or the tests read is in CONTRIBUTING.md, and no other."""
    named = re.compile(r"\bFPROBE_(?!FL_)[A-Z]+(?:_[A-Z]+)*\b")
    sources = [
        path
        for top in (*PACKAGES.split("|")[:4], "tests/stress", "tests/targets")
        for path in (ROOT / top).rglob("*.py")
    ]
    used = {name for path in sources for name in named.findall(path.read_text())}
    assert used - {"FPROBE_COMPLETE"} == set(named.findall((ROOT / "CONTRIBUTING.md").read_text()))


def test_every_lock_has_its_place():
    """Each module that creates a lock is in docs/locking.md, by its path or its name beside another path."""
    document = (DOCS / "locking.md").read_text()
    paths = [path for package in PACKAGES.split("|")[:4] for path in (ROOT / package).rglob("*.py")]
    locking = [path for path in paths if re.search(r"\b(?:R?Lock|Condition|Semaphore)\(\)", path.read_text())]
    named = [path for path in locking if f"`{path.relative_to(ROOT)}`" in document or f"`{path.name}`" in document]
    assert len(locking) > 20 and [path for path in locking if path not in named] == []


def test_the_workflow_runs_the_masks_of_the_makefile():
    """Each line of `make masks` has a job: its environment or its command, and the same directories."""
    makefile = (ROOT / "Makefile").read_text()
    workflow = (ROOT / ".github/workflows/test.yml").read_text()
    directories = re.search(r"^MASKED := \$\(BIN\)/(pytest .*)$", makefile, re.MULTILINE)[1]
    masks = re.findall(r"^\t(.+) \$\(MASKED\)$", makefile, re.MULTILINE)
    assert masks and [mask for mask in masks if f": {mask}\n" not in workflow] == []
    assert f".venv/bin/{directories}\n" in workflow
