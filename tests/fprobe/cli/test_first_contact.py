"""What a newcomer tries first: help, verbs without patterns, explain of many functions."""

from __future__ import annotations

import inspect
import os
import pty
import subprocess
import time
from pathlib import Path

import pytest
from command import COMMAND, environment
from sampled import in_stress

import fprobe
import kprobes
import sandbox
from sandbox.symbols.perfmap import OPT_OUT


def test_help_is_that_of_the_option(run):
    assert run("help").out == run("--help").out
    assert run("help", "trace").out == run("trace", "--help").out
    assert "did you mean trace or tracefs?" in run("help", "trac", code=2).err


def test_help_shows_each_page_of_the_documentation(run):
    """A name of both means the verb."""
    pages = {path.stem: path.read_text() for path in (Path(__file__).parents[3] / "docs").glob("*.md")}
    assert len(pages) > 20
    listed = run("help").out.partition("Topics of `fprobe help TOPIC`:")[2].partition("\n\n")[0]
    assert set(listed.replace(",", " ").split()) == set(pages)
    for name in ("histograms", "ring-buffer", "run.md"):
        assert run("help", name).out.rstrip() == pages[name.removesuffix(".md")].rstrip()
    assert run("help", "run").out == run("run", "--help").out
    assert "did you mean glossary?" in run("help", "glosary", code=2).err


@pytest.mark.parametrize("package", [fprobe, kprobes, sandbox])
def test_dir_lists_what_a_package_offers_and_nothing_else(package):
    names = [name for name in dir(package) if not name.startswith("__")]
    public = set(package.__all__)
    assert public <= set(names) and package.__doc__
    assert all(inspect.ismodule(getattr(package, name)) for name in set(names) - public)
    assert not {"exports", "annotations", "time", "interpreters"} & set(names)


def test_stat_without_a_pattern_counts_every_function(run):
    rows = [
        {row["name"]: row["hits"] for row in run("stat", *words, "--json").document["functions"]} for words in ((), "*")
    ]
    assert rows[0] == rows[1] and len(rows[0]) > 100


def test_explain_takes_globs_and_several_names(run):
    found = run("explain", "vfs_r*", "current_nr", "vfs_read", "--json").document
    assert {item["function"] for item in found} >= {"vfs_read", "current_nr"}
    assert len({item["function"] for item in found}) == len(found)
    text = run("explain", "vfs_read", "current_nr").out
    assert "vfs_read [demo] can be probed" in text and "current_nr [demo] cannot be probed" in text


@pytest.mark.stress
@pytest.mark.parametrize(
    ("words", "writes"),
    [
        (["list"], False),
        in_stress((["explain", "vfs_read"], False)),
        in_stress((["disasm", "vfs_read"], False)),
        in_stress((["doctor"], False)),
        (["stat", "vfs_read"], True),
    ],
)
def test_only_verbs_that_run_a_program_write_a_perf_map(words, writes):
    began = time.time()
    with subprocess.Popen([*COMMAND, *words], stdout=subprocess.DEVNULL, env=environment(**{OPT_OUT: ""})) as process:
        assert process.wait(60) == 0
    path = Path(f"/tmp/perf-{process.pid}.map")
    # Another process that had this number may have left one.
    written = path.exists() and path.stat().st_mtime > began - 1
    path.unlink(missing_ok=True)
    assert written == writes


def shown_on_a_terminal(*words):
    ours, theirs = pty.openpty()
    with subprocess.Popen([*COMMAND, *words], stdout=theirs, stderr=subprocess.DEVNULL, env=environment()) as process:
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 4096):
                shown += piece
        except OSError:  # the other end is closed
            pass
        process.wait(60)
    os.close(ours)
    return shown.decode()


@pytest.mark.stress
def test_trace_without_a_limit_says_so_on_a_terminal_only(run):
    notice = "--limit N shows the first N"
    assert notice in shown_on_a_terminal("trace", "vfs_statfs")
    assert notice not in shown_on_a_terminal("trace", "vfs_statfs", "--limit", "3")
    assert notice not in run("trace", "vfs_statfs").out
