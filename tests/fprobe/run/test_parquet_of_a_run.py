"""fprobe run -o FILE.parquet: the same calls, stacks and records as in JSON."""

import json
import re
import subprocess
from collections import Counter

import pytest
from built_library import needs_compilers
from later import later
from sampled import in_stress

parquet = later("pyarrow.parquet")
PROGRAM = """
import zlib
for number in range(5):
    zlib.decompress(zlib.compress(b"x" * 1000 * number))
"""
TRACED = ("--trace", "libz:deflate*")
OTHERS = ("--stacks", "libz:deflateEnd", "-e", "r:packed libz:deflate result=$retval:s32")


@pytest.mark.stress
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


NESTED = """
#include <unistd.h>
static void thrower(int n) { if (n % 3 == 0) throw n; }
__attribute__((noinline)) int inner(int n) { thrower(n); return -n; }
__attribute__((noinline)) int outer(int n) {
    int sum = 0;
    if (n > 1) sum += outer(n - 1);
    try { sum += inner(n); } catch (int) { sum += 1; }
    return sum;
}
int main() {
    for (int n = 0; n < 4; n++) outer(6);
}
"""
PACED = """
#include <unistd.h>
__attribute__((noinline)) long step(long n) { __asm__ volatile("" : "+r"(n)); return n - 5; }
int main(void) {
    for (long n = 0; n < 240000; n++) {
        step(n);
        if (n % 10000 == 0) usleep(100000);  // the ring has place for more than 80,000
    }
}
"""
FAST = PACED.replace("usleep(100000)", "usleep(0)")


@pytest.fixture
def built(tmp_path):
    """A function: an executable of C++."""

    def build(source):
        path = tmp_path / "program"
        subprocess.run(["g++", "-xc++", "-O1", "-g", "-", "-o", path], input=source, text=True, check=True, timeout=60)
        return path

    return build


@needs_compilers
def test_rows_are_nested_as_in_the_report_as_json(launch, built, tmp_path):
    program = built(NESTED)
    paths = [tmp_path / "run.parquet", tmp_path / "run.json"]
    for path in paths:
        done = launch("--trace", "*outer*", "--trace", "*inner*", "-o", path, words=[program], as_json=False)
        assert done.returncode == 0, done.err
    calls = json.loads(paths[1].read_text())["processes"][0]["calls"]
    expected = Counter((each["function"].split("(")[0], each["depth"], each.get("result")) for each in calls)
    rows = parquet.read_table(paths[0]).to_pylist()
    found = Counter((row["function"].split("(")[0], row["depth"], row["result"] and int(row["result"])) for row in rows)
    assert len(calls) == 48
    assert found == expected
    assert all(row["duration_ns"] is None or 0 <= row["self_ns"] <= row["duration_ns"] for row in rows)


@pytest.mark.stress
@needs_compilers
def test_a_program_makes_more_calls_than_the_ring_has_place_for(launch, built, tmp_path):
    path = tmp_path / "run.parquet"
    done = launch("--trace", "step", "-o", path, words=[built(PACED)], as_json=False)
    assert (done.returncode, done.err) == (0, "")
    table = parquet.read_table(path)
    assert table.schema.metadata[b"fprobe.lost"] == b"0"
    assert sorted(map(int, table["result"].to_pylist())) == list(range(-5, 240_000 - 5))
    assert table["duration_ns"].null_count == 0


RESULTS = r"""
#include <fcntl.h>
#include <stdlib.h>
extern "C" {
__attribute__((noipa)) long *pointer(long n) { return n ? (long *)(0x1000 + n * 16) : nullptr; }
__attribute__((noipa)) double real(long n) { return n / 4.0; }
__attribute__((noipa)) char letter(long n) { return 'a' + n; }
__attribute__((noipa)) bool truth(long n) { return n & 1; }
__attribute__((noipa)) void nothing(long n) { __asm__ volatile("" : : "r"(n)); }
}
int main() {
    for (long n = 0; n < 6; n++) {
        pointer(n % 3); real(n); letter(n); truth(n); nothing(n);
        getenv(n ? "LANG" : "not set");
        open(n & 1 ? "/" : "/not/there", O_RDONLY);
        creat("/not/there/either", 0600);
    }
}
"""
PROBED = ("pointer", "real", "letter", "truth", "nothing", "libc:getenv", "libc:open64", "libc:creat64")


@pytest.mark.stress
@needs_compilers
def test_results_have_the_text_of_the_report(launch, built, tmp_path, monkeypatch):
    """Those that ax alone tells are made for each value once."""
    monkeypatch.setenv("LANG", "a")
    program, path = built(RESULTS), tmp_path / "run.parquet"
    words = [word for name in PROBED for word in ("--trace", name)]
    shown = launch(*words, words=[program], as_json=False)
    expected = Counter(
        (found[1], found[2])
        for found in re.finditer(r"(\w+)(?: \[[^]]*\])?\([^)]*\)(?: = (.*?))?;", shown.err)
        if found[1] in {name.rpartition(":")[2] for name in PROBED}
    )
    assert launch(*words, "-o", path, words=[program], as_json=False).returncode == 0
    rows = parquet.read_table(path).to_pylist()
    found = Counter((row["function"].partition(" ")[0], row["result"]) for row in rows)
    assert found == expected and sum(found.values()) == 6 * len(PROBED), (found, expected)


FORKS = """
import os, time, zlib
for number in range(30):
    if not os.fork():
        for _ in range(10):
            zlib.compress(b"x")
        os._exit(0)
    os.wait()
    time.sleep(number % 3 / 100)  # some have ended before they are seen, and some are seen before they end
"""


@pytest.mark.stress
def test_processes_that_end_while_rows_are_written(launch, tmp_path):
    path = tmp_path / "run.parquet"
    done = launch("--trace", "libz:deflate", "-e", "f:ends libz:deflateEnd", "-o", path, source=FORKS, as_json=False)
    assert (done.returncode, done.err) == (0, "")
    rows = parquet.read_table(path).to_pylist()
    found = Counter((row["pid"], row["kind"]) for row in rows)
    assert sorted(found.values()) == [10] * 60
    assert all(row["duration_ns"] is not None for row in rows if row["kind"] == "call")


@needs_compilers
@pytest.mark.parametrize("name", [in_stress("run.csv"), in_stress("run.txt"), "run.parquet"])
def test_lost_calls_are_said_also_where_the_report_is_a_file(launch, built, tmp_path, name):
    done = launch("--trace", "step", "-o", tmp_path / name, words=[built(FAST)], as_json=False)
    assert done.returncode == 0
    said = "were overwritten" in done.err
    assert said or (name == "run.parquet" and parquet.read_table(tmp_path / name).num_rows == 240_000)
