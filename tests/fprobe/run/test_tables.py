"""The tables of `fprobe run`: self and CPU time, order, and which rows are shown."""

from __future__ import annotations

import csv
import json

import pytest
from speedscope import profiles

COMPRESSES = """
import zlib
for _ in range(100):
    zlib.compress(b"x" * 1000)
"""
NESTED = """
import os, zlib
packer = zlib.compressobj()
packer.compress(os.urandom(1000000))
packer.flush()
"""


def test_self_time_is_without_other_counted_functions_of_any_pattern(launch):
    rows = launch("--stat", "libz:deflate", "--stat", "libz:adler32_z", source=NESTED).functions()
    inside = rows["adler32_z"]["total_ns"]
    assert rows["adler32_z"]["self_ns"] == inside > 0
    assert rows["deflate"]["total_ns"] - inside - 2 <= rows["deflate"]["self_ns"] < rows["deflate"]["total_ns"]
    assert "cpu_ns" not in rows["deflate"]


@pytest.mark.stress
def test_cpu_time_of_a_call_that_waits(launch):
    source = "import os, threading\nr, w = os.pipe()\nthreading.Timer(0.05, os.write, (w, b'x')).start()\nos.read(r, 1)"
    row = launch("--stat", "libc:read", "--cpu", source=source).functions()["read"]
    assert row["max_ns"] >= 10_000_000 and row["cpu_ns"] < row["total_ns"] / 2


@pytest.mark.stress
def test_calls_that_are_recorded_have_self_and_cpu_time_too(launch):
    found = launch("--stat", "libz:deflate", "--trace", "libz:deflate*", "--cpu", source=COMPRESSES)
    (row,) = found.report["processes"][0]["functions"]
    assert 0 < row["self_ns"] <= row["total_ns"] and row["cpu_ns"] > 0


def test_tables_are_ordered_and_cut_in_processes_and_in_total(launch):
    source = COMPRESSES + "import os\nif not os.fork(): os._exit(0 * zlib.crc32(b''))\nos.wait()\nzlib.crc32(b'')"
    words = ["--stat", "libz:deflate*", "--stat", "libz:crc32", "--sort", "name", "--min-hits", "2", "--top", "1"]
    done = launch(*words, source=source)
    (row,) = done.report["processes"][0]["functions"]
    assert row["name"] == "deflate" and done.report["processes"][0]["left_out"] >= 4
    assert [row["name"] for row in done.report["total"]] == ["crc32"]


@pytest.mark.stress
def test_what_tables_leave_out_is_said(launch):
    words = ["--stat", "libz:deflate*", "--min-hits", "2", "--top", "1"]
    text = launch(*words, source=COMPRESSES, as_json=False).err
    assert "not shown: fewer than 2 hits (--min-hits) or after the first 1 (--top)" in text


@pytest.mark.stress
def test_histograms_of_durations_have_a_total_over_processes(launch):
    source = (
        "import os, zlib\nfor _ in range(3): zlib.crc32(b'')\nif not os.fork(): zlib.crc32(b''); os._exit(0)\nos.wait()"
    )
    found = launch("--hist", "libz:crc32", source=source).report
    (row,) = found["total"]
    each = [process["functions"][0] for process in found["processes"]]
    assert [row["hits"] for row in each] == [3, 1] and row["hits"] == sum(
        part["count"] for part in row["histogram"]
    ) == 4
    assert row["max_ns"] == max(row["max_ns"] for row in each)
    _, _, total = launch("--hist", "libz:crc32", source=source, as_json=False).err.partition("# total of 2 processes\n")
    head, *bars = total.splitlines()
    assert head.startswith("crc32 [libz]: 4 calls, ") and bars
    assert "# total" not in launch("--hist", "libz:crc32", "--by", "thread", source=source, as_json=False).err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--stat", "libz:deflate", "--sort", "cpu"], "--sort cpu orders by CPU time, which is not measured"),
        (["--trace", "libz:deflate", "--top", "3", "--cpu"], "--top and --cpu: for the tables of --stat and --hist"),
        (["--stat", "libz:deflate", "--top", "-3"], "-3 is not in the range x>=1"),
    ],
)
def test_orders_that_cannot_be_are_refused(launch, words, message):
    done = launch(*words, source="", as_json=False)
    assert done.returncode == 2 and message in done.err


@pytest.mark.stress
def test_rows_as_csv_and_ndjson_and_stacks_for_speedscope(launch, tmp_path):
    for name in ("rows.csv", "rows.ndjson", "app.speedscope.json"):
        words = ("--stacks", "libz:deflate") if name.endswith("e.json") else ("--stat", "libz:deflate*")
        done = launch(*words, "-o", tmp_path / name, source=COMPRESSES, as_json=False)
        assert (done.returncode, done.err) == (0, "")
    rows = list(csv.DictReader((tmp_path / "rows.csv").open(newline="")))
    objects = [json.loads(line) for line in (tmp_path / "rows.ndjson").read_text().splitlines()]
    assert {row["name"]: (row["type"], int(row["hits"])) for row in rows} == {
        each["name"]: (each["type"], each["hits"]) for each in objects
    }
    (row,) = (row for row in rows if row["name"] == "deflate")
    assert row["hits"] == "100" and int(row["total_ns"]) >= int(row["self_ns"]) > 0 and row["module"] == "libz"
    ((unit, stacks),) = profiles((tmp_path / "app.speedscope.json").read_text()).values()
    assert unit == "nanoseconds" and {stack[-1] for stack in stacks} == {"deflate"} and min(stacks.values()) > 0
    assert any("<module>" in stack for stack in stacks)
