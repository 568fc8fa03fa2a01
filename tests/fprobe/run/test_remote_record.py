"""`fprobe record -p`: the records of running processes, in a trace.dat of the attacher."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import time

import pytest
from attaching import COMMAND, LIMIT, Target, attached, fprobe, wait_until
from sampled import in_stress, sampled

RETURNS = "r:packed libz:deflate result=$retval:s32"


def report(path):
    done = fprobe("report", path, "--json")
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


@pytest.mark.stress
def test_every_call_is_recorded(target, tmp_path):
    path = tmp_path / "calls.dat"
    target.ask("stop")
    with attached("record", "-p", target.pid, "-e", RETURNS, "-o", path) as process:
        target.ask("start")
        time.sleep(0.5)
        calls = target.ask("stop")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, err
    records, _ = report(path)
    assert len(records) == calls > 0 and f"{calls:,} records" in out and "nothing lost" in out
    assert {record["event"] for record in records} == {"packed"} and {
        record["fields"]["result"] for record in records
    } == {1}
    assert [record["time_ns"] for record in records] == sorted(record["time_ns"] for record in records)


@pytest.mark.stress
def test_records_are_written_as_columns_too(target, tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "calls.parquet"
    target.ask("stop")
    with attached("record", "-p", target.pid, "-e", RETURNS, "-o", path) as process:
        target.ask("start")
        time.sleep(0.3)
        calls = target.ask("stop")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, err
    found = pq.read_table(path)
    assert found.num_rows == calls > 0 and f"calls.parquet: {calls:,} rows; nothing lost" in out
    assert set(found["pid"].to_pylist()) == {target.pid} and set(found["event"].to_pylist()) == {"packed"}
    assert {row["result"] for row in found["packed"].to_pylist()} == {1}
    (process,) = json.loads(found.schema.metadata[b"fprobe.processes"])
    assert process["pid"] == target.pid


@pytest.mark.stress
def test_what_a_small_buffer_has_lost_is_marked(target, tmp_path):
    path = tmp_path / "calls.dat"
    target.ask("stop")
    with attached("record", "-p", target.pid, "-e", RETURNS, "-b", "8", "-o", path, "--json") as process:
        process.send_signal(signal.SIGSTOP)
        target.ask("start")
        wait_until(lambda: target.ask("calls") > 1500)  # more than there is room for
        calls = target.ask("stop")
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT)
    found = json.loads(out)
    assert process.returncode == 0, err
    assert found["lost"] > 0 and found["records"] + found["lost"] == calls
    records, _ = report(path)
    assert len(records) == found["records"] and sum(record.get("lost") or 0 for record in records) == found["lost"]


@pytest.mark.stress
def test_records_that_do_not_pass_the_filter_are_not_recorded(target, tmp_path):
    path = tmp_path / "calls.dat"
    words = ("-e", RETURNS, "--filter", "result > 1", "-o", path, "--duration", "0.3", "--json")
    done = fprobe("record", "-p", target.pid, *words)
    assert done.returncode == 0 and json.loads(done.stdout)["records"] == 0, done.stderr


@pytest.mark.stress
@pytest.mark.parametrize("killed", ["attacher", in_stress("target")])
def test_what_was_recorded_survives(tmp_path, killed):
    path, made = tmp_path / "calls.dat", Target()
    try:
        before = made.ask("text")
        with attached("record", "-p", made.pid, "-e", RETURNS, "-o", path) as process:
            time.sleep(0.7)
            if killed == "target":
                made.process.kill()
                out, err = process.communicate(timeout=LIMIT)
                assert process.returncode == 0 and "nothing lost" in out, err
            else:
                process.kill()
                process.wait()
                wait_until(lambda: made.ask("text") == before)
    finally:
        made.end()
    records, err = report(path)
    assert len(records) > 100 and ("records may be missing at the end" in err) == (killed == "attacher")


@pytest.mark.stress
def test_a_file_that_cannot_grow_keeps_what_it_has(target, tmp_path):
    path = tmp_path / "calls.dat"
    most = 400_000
    before = target.ask("text")
    process = subprocess.Popen(
        [*COMMAND, "record", "-p", str(target.pid), "-e", RETURNS, "-e", "p:in libz:*", "-o", path, "--duration", "4"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)),
    )
    _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 1 and "the disk is full, or a limit of the file's size is reached" in err
    assert target.ask("text") == before
    records, _ = report(path)
    assert records


@pytest.mark.parametrize(
    ("words", "said"),
    sampled(
        [
            (("-o", "/nosuch/calls.dat"), "/nosuch/calls.dat: its directory cannot be written to"),
            (("-o", "-"), "cannot be written to standard output"),
            (("-B", "large", "-e", "p:x libz:inflate"), "--buffer is not for a running process"),
            (("--live",), "--live is not for a running process"),
        ],
        2,
    ),
)
def test_what_cannot_be_done_is_refused_before_the_process_is_touched(target, words, said):
    state, text = target.ask("state"), target.ask("text")
    done = fprobe("record", "-p", target.pid, "-e", RETURNS, *words)
    assert done.returncode == 2 and said in done.stderr
    assert target.ask("state") == state and target.ask("text") == text
