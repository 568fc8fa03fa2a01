"""fprobe run -o FILE.parquet: the same calls, stacks and records as in JSON."""

import json
from collections import Counter

from later import later

parquet = later("pyarrow.parquet")
PROGRAM = """
import zlib
for number in range(5):
    zlib.decompress(zlib.compress(b"x" * 1000 * number))
"""
TRACED = ("--trace", "libz:deflate*")
OTHERS = ("--stacks", "libz:deflateEnd", "-e", "r:packed libz:deflate result=$retval:s32")


def test_rows_are_what_the_report_as_json_has(launch, tmp_path):
    paths = [tmp_path / "run.parquet", tmp_path / "run.json"]
    for path, also in zip(paths, (OTHERS, ()), strict=True):
        done = launch(*TRACED, *also, "-o", path, source=PROGRAM, as_json=False)
        assert done.returncode == 0, done.err
    rows = parquet.read_table(paths[0]).to_pylist()
    document = json.loads(paths[1].read_text())["processes"][0]
    calls = [row for row in rows if row["kind"] == "call"]
    assert Counter(row["function"] for row in calls) == Counter(
        each["function"].split()[0] for each in document["calls"]
    )
    inner = next(row for row in calls if row["function"] == "deflateResetKeep")
    start = ["deflateInit_"] if "deflateInit_" in {row["function"] for row in calls} else []  # Python 3.10's compress()
    stack = [*start, "deflateInit2_", "deflateReset", "deflateResetKeep"]
    assert (inner["stack"].split(";"), inner["depth"]) == (stack, len(stack) - 1)
    outer = next(row for row in calls if row["function"] == "deflateInit2_" and row["time_ns"] < inner["time_ns"])
    assert 0 < inner["duration_ns"] <= outer["duration_ns"] - outer["self_ns"]
    assert [row["packed"]["result"] for row in rows if row["event"] == "packed"] == [1] * 5
    stacks = [row for row in rows if row["kind"] == "stack"]
    assert [(row["function"], row["module"], row["calls"]) for row in stacks] == [("deflateEnd", "libz", 5)]
    assert stacks[0]["stack"].startswith("<module> (app.py:") or "<module>" in stacks[0]["stack"]


def test_what_it_has_no_rows_for_is_refused(launch, tmp_path):
    path = tmp_path / "run.parquet"
    done = launch("--stat", "libz:deflate", "-o", path, source="pass", as_json=False)
    assert done.returncode == 2 and "records of events, not --stat: give --trace" in done.err
    assert not path.exists()
