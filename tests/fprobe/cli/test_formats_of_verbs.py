"""--format and the suffix of -o mean the same in every verb that writes a file: what is in it, and what is refused."""

from __future__ import annotations

import csv
import json
import shlex
from pathlib import Path

import pytest
from sampled import sampled

from fprobe.cli.formats import FORMATS

COMPRESSES = Path(__file__).parents[3] / "examples/compresses.py"
EVENTS = "-e 'f:in func_*' -e 'f:out func_*%return' --program {prog} --call main 2"
VERBS = {
    "trace vfs_read": "text ndjson",
    "stat vfs_read": "text json ndjson csv",
    "hist -e 'p:reads vfs_read count=%dx:u64' keys=count": "text json ndjson csv",
    f"top --stat libz:deflate {COMPRESSES}": "text json ndjson csv",
    f"run --stat libz:deflate {COMPRESSES}": "text json ndjson csv",
    f"run --stacks libz:deflate {COMPRESSES}": "folded flame speedscope parquet",
    f"run --trace libz:deflate {COMPRESSES}": "perfetto",
    f"record {EVENTS}": "text folded speedscope ndjson csv perfetto parquet trace.dat",
    "report {calls}": "text folded speedscope ndjson csv perfetto parquet",
    "query {rows} 'SELECT event, count(*) AS hits FROM trace GROUP BY 1'": "text ndjson csv",
    "diff {calls} {calls}": "text json ndjson csv svg",
}
"""The verbs, and the formats that they write."""
CASES = [(verb, form) for verb, forms in VERBS.items() for form in forms.split()]
NEEDS = {"perfetto": "perfetto", "parquet": "pyarrow"}


@pytest.fixture(scope="module")
def files(run, tmp_path_factory):
    """Files that verbs read: a program, its calls, and its rows."""
    made = tmp_path_factory.mktemp("formats")
    names = {
        "prog": Path(__file__).parents[3] / "examples/prog.ll",
        "calls": made / "calls.dat",
        "rows": made / "r.parquet",
    }
    run(*words("record " + EVENTS, names), "-o", names["calls"])
    return names


def words(verb, names):
    return shlex.split(verb.format_map({name: str(path) for name, path in names.items()}))


def kind(path):
    """The format of a file, by what is in it."""
    data = path.read_bytes()
    if data.startswith(b"PAR1"):
        return "parquet"
    if data.startswith(b"\x17\x08\x44tracing"):
        return "trace.dat"
    if data.lower().startswith((b"<!doctype html>", b"<svg")):
        return "flame" if data.startswith(b"<!") else "svg"
    if not data.isascii() and data.startswith(b"\x0a"):
        return "perfetto"
    return kind_of_text(data.decode())


def kind_of_text(text):
    try:
        if "speedscope" in str(json.loads(text).get("$schema")):
            return "speedscope"
        return "json" if text.startswith("{\n") else "ndjson"
    except ValueError:
        lines = text.splitlines()
    if all(line.startswith("{") and json.loads(line) is not None for line in lines):
        return "ndjson"
    if all(len(row) == len(lines[0].split(",")) > 1 for row in csv.reader(lines)):
        return "csv"
    stacks = [line.rpartition(" ") for line in lines]
    return "folded" if all(";" in stack and number.isdigit() for stack, _, number in stacks) else "text"


@pytest.mark.parametrize(("verb", "form"), sampled(CASES, 3))
def test_a_suffix_and_the_format_write_the_same(run, files, tmp_path, verb, form):
    if form in NEEDS or "{rows}" in verb:
        pytest.importorskip(NEEDS.get(form, "pyarrow"))
    if "{rows}" in verb:
        pytest.importorskip("duckdb")
        if not files["rows"].exists():
            run("report", files["calls"], "-o", files["rows"])
    by_suffix, by_name = tmp_path / f"x{FORMATS[form].suffixes[-1]}", tmp_path / "x.unknown"
    option, *rest = words(verb, files)
    run(option, "-o", by_suffix, *rest)
    assert kind(by_suffix) == form
    run(option, "--format", form, "-o", by_name, *rest)
    assert kind(by_name) == form


@pytest.mark.parametrize("verb", sampled(VERBS, 2))
def test_what_contradicts_or_is_not_written_is_refused(run, files, tmp_path, verb):
    option, *rest = words(verb, files)
    done = run(option, "--format", VERBS[verb].split()[0], "-o", tmp_path / "x.csv", *rest, code=2)
    assert "means the format" in done.err and "give one of them" in done.err and done.err.count("\n") == 1
    absent = run(option, "--format", "ods", "-o", tmp_path / "x", *rest, code=2)
    assert "--format is ods; there are: " in absent.err and not list(tmp_path.iterdir())


@pytest.mark.parametrize("verb", sampled([each for each in VERBS if not each.startswith("record")], 2))
def test_a_full_disk_is_a_sentence_with_the_file(run, files, verb):
    if "{rows}" in verb:
        pytest.importorskip("duckdb")
        if not files["rows"].exists():
            run("report", files["calls"], "-o", files["rows"])
    option, *rest = words(verb, files)
    form = next((each for each in VERBS[verb].split() if each not in ("parquet", "perfetto")), "json")
    done = run(option, "--format", form, "-o", "/dev/full", *rest, code=1)
    assert "No space left on device" in done.err or "the disk is full" in done.err
    assert "/dev/full: " in done.err
