"""The samples: US-1."""

from __future__ import annotations

import re

import pytest
from isolation import EXAMPLES, run_example
from programs import BASIC
from sampled import in_stress

import sandbox


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("samples") / "basic.ll"
    path.write_text(BASIC)
    return path


def run(*words):
    """Lines of the output, with addresses as `A`; the exit status."""
    done = run_example("fprobe_example", *map(str, words), timeout=60)
    assert "Traceback" not in done.stderr, done.stderr
    lines = re.sub(r"\b0x[0-9a-f]{6,}", "A", done.stdout).splitlines()
    return [re.sub(r"/0x[0-9a-f]+", "", line) for line in lines], done.returncode, done.stderr


@pytest.fixture
def probed(source):
    def probed(symbol, *words):
        return run("--program", str(source), "--symbol", symbol, *words, "--call", "twice", "1")

    return probed


LEAF = [
    "sample_entry_handler: Enter <leaf+0x0 [basic]> ip = A",
    "sample_exit_handler: Return from <leaf+0x0 [basic]> ip = A to rip = A (twice+OFF [basic])",
]


def without_offsets(lines):
    return [re.sub(r"\(twice\+0x[0-9a-f]+", "(twice+OFF", line) for line in lines]


def test_us1_one_name(probed):
    lines, status, _ = probed("leaf")
    assert without_offsets(lines) == [
        "fprobe_init: Planted fprobe at leaf",
        *LEAF,
        *LEAF,
        "fprobe_exit: fprobe at leaf unregistered. 4 times hit, 0 times missed",
    ]
    assert status == 0


def test_us1_a_pattern_and_what_is_left_out(probed):
    lines, _, _ = probed("*e*", "--nosymbol", "twi*")
    assert lines[0] == "fprobe_init: Planted fprobe at *e*"
    assert lines[-1] == "fprobe_exit: fprobe at *e* unregistered. 4 times hit, 0 times missed"
    lines, _, _ = probed("*e*")
    assert lines[1].startswith("sample_entry_handler: Enter <twice+0x0 [basic]>")
    assert lines[-1] == "fprobe_exit: fprobe at *e* unregistered. 6 times hit, 0 times missed"


def test_us1_names(probed):
    lines, _, _ = probed("twice,leaf")
    assert lines[:2] == ["fprobe_init: 2 symbols found", "fprobe_init: Planted fprobe at twice,leaf"]
    assert lines[-1].endswith("6 times hit, 0 times missed")


def test_us1_stackdump_shows_where_each_hit_came_from(probed):
    lines, _, _ = probed("leaf", "--stackdump")
    first = [line.strip() for line in without_offsets(lines)[2:4]]
    assert first[0] == "leaf+0x0 [basic]" and first[1].startswith("twice+0x")
    leaving = next(index for index, line in enumerate(lines) if line.startswith("sample_exit_handler"))
    assert lines[leaving + 1].strip().startswith("twice+0x")
    assert lines[-1].endswith("4 times hit, 0 times missed")


@pytest.mark.parametrize(
    ("symbol", "code"), [("nowhere", -2), in_stress(("leaf,,twice", -2)), in_stress(("nowhere*", -22))]
)
def test_us1_what_cannot_be_registered(probed, symbol, code):
    lines, status, _ = probed(symbol)
    assert lines[-1] == f"fprobe_init: register_fprobe failed, returned {code}" and status == 1


def test_us1_misses_are_shown_after_unregistering(source, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    import fprobe_example as example

    lines = []
    module = sandbox.load(source)
    sample = example.Sample("factorial", write=lines.append)
    sample.probe.nr_maxactive = 1
    assert example.run(sample, lambda: module["factorial"](3)) == 0
    module.unload()
    assert lines[-1] == "fprobe_exit: fprobe at factorial unregistered. 4 times hit, 2 times missed"


def test_the_demo_by_default():
    lines, status, _ = run()
    assert lines[0] == "fprobe_init: Planted fprobe at vfs_read" and len(lines) > 2 and status == 0


@pytest.mark.parametrize(
    "words",
    [
        ("--program", "nowhere.ll"),
        ("--call", "nowhere"),
        ("--call", "demo_main", "x"),
    ],
)
def test_what_cannot_be_run_is_said(words):
    lines, status, said = run(*words)
    assert status == 1 and not lines and said.startswith("fprobe_example: ")
