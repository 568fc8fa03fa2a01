"""What README and docs show is what happens: their Python runs, their commands print what is printed there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from command import HAS_COMPILER, environment, forked
from isolation import run_forked
from sampled import in_stress, sampled

ROOT = Path(__file__).parents[3]
DOCUMENTS = [ROOT / name for name in ("README.md", "docs/getting-started.md", "docs/cli.md")]
PAGES = [ROOT / name for name in ("docs/run.md", "docs/recording.md", "docs/libraries.md", "docs/attach.md")]
"""Pages whose commands follow one another: they are run in one directory."""
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language, documents=DOCUMENTS):
    return [
        (path.name, body) for path in documents for kind, body in _BLOCK.findall(path.read_text()) if kind == language
    ]


def commands(documents=DOCUMENTS):
    """(document, command, what it prints)."""
    for name, body in blocks("console", documents):
        for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield name, command, output.strip("\n")


def normal(text):
    """Without what differs from run to run: times, ids, histograms of times, addresses, and the code bytes that hold them."""
    text = re.sub(r"^ +[\d.]+ [num]?s \.\. .*\|[# ]+\|(\n|\Z)", "", text, flags=re.MULTILINE)
    text = re.sub(r"(?<= )/\S*/examples/", "examples/", text)
    text = re.sub(r"# process \d+: \S+", "# process N: PYTHON", text)
    text = re.sub(r" *(\d+ ns|\d+\.\d+ (us|ms|s))\b *", " TIME ", text)
    text = re.sub(r"\[ *\d+\] \|", "[TID] |", text)
    text = re.sub(r" *\S+-\d+ +\[\d{3}\] \S+ +\d+\.\d+: ", " COMM-TID TIME: ", text)
    text = re.sub(
        r'"(time_ns|tid|duration_ns|total_ns|self_ns|average_ns|min_ns|p50_ns|p90_ns|p99_ns|max_ns)": \d+',
        r'"\1": N',
        text,
    )
    text = re.sub(r"\b[0-9a-f]{2}( [0-9a-f]{2})+ *", "BYTES ", text)
    text = re.sub(r"[-+] 0x[0-9a-f]+\]", "+ OFFSET]", text)
    return re.sub(r"0x[0-9a-f]{3,}", "ADDRESS", text)


def in_order_of_time(command):
    """Whether the order of its lines depends on how long things took."""
    return "fprobe stat" in command and "--sort" not in command


@pytest.mark.parametrize(("name", "command", "expected"), sampled(commands(), 8))
def test_a_command_prints_what_is_shown(name, command, expected, tmp_path):
    if not HAS_COMPILER and ".c" in command:
        pytest.skip("there is no C compiler")
    compare(command, printed_by(command, tmp_path), expected)


def compare(command, found, expected):
    found, expected = normal(found.strip("\n")).splitlines(), normal(expected).splitlines()
    if in_order_of_time(command):
        found, expected = sorted(found), sorted(expected)
    assert found == expected, command


@pytest.mark.stress
@pytest.mark.parametrize("page", [in_stress(PAGES[0]), *PAGES[1:]], ids=lambda page: page.name)
def test_the_commands_of_a_page_print_what_is_shown(page, tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for _, command, expected in commands([page]):
        compare(command, printed_by(command, tmp_path, tmp_path), expected)


def printed_by(command, tmp_path, directory=ROOT):
    """By a fork if it is `fprobe` and its words alone, else by a shell."""
    words = shlex.split(command)
    if words[0] == "fprobe" and not re.search(r"[|<>;&$]", command):
        return forked(words[1:], 60, directory, both=True).stdout
    return printed_by_shell(command, tmp_path, directory)


def printed_by_shell(command, tmp_path, directory=ROOT):
    for program, words in (("fprobe", "-m fprobe.cli"), ("python", "")):
        script = tmp_path / program
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        script.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    return subprocess.run(
        ["sh", "-c", command], cwd=directory, env=environment(PATH=path), timeout=60, check=False,
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ).stdout  # fmt: skip


@pytest.mark.parametrize(("name", "source"), sampled(blocks("python", DOCUMENTS + PAGES), 3))
def test_an_example_runs(name, source, tmp_path):
    script = tmp_path / "example.py"  # native functions are compiled from a file
    script.write_text(source)
    done = run_forked(
        f"import os, runpy\nos.chdir({str(ROOT)!r})\nrunpy.run_path({str(script)!r}, run_name='__main__')",
        60,
        cold=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_readme_shows_the_example_as_it_is():
    shown = re.findall(r"<!-- (\S+) -->\n```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert [path for path, _ in shown] == ["examples/first_probe.py", "examples/deflate.py"]
    assert all((ROOT / path).read_text() == text for path, text in shown)


def test_links_lead_somewhere():
    for path in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#:]+)\)", _BLOCK.sub("", path.read_text())):
            assert (path.parent / target).exists(), f"{path.name}: {target}"
