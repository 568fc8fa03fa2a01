"""fprobe record and fprobe report: from the command line to each format, and what can go wrong."""

import json
import signal
import subprocess
import time

import pytest
from command import COMMAND, environment


@pytest.fixture(scope="module")
def recorded(run, programs, tmp_path_factory):
    """A recording of three nested calls of fact."""
    path = tmp_path_factory.mktemp("recorded") / "calls.dat"
    done = run(
        "record", "-e", "f:in fact n=$arg1", "-e", "f:out fact%return v=$retval", "-o", str(path),
        "--program", str(programs / "prog.ll"), "--call", "main", "3",
    )  # fmt: skip
    return path, done


def test_record_says_what_was_recorded(recorded):
    path, done = recorded
    assert done.out.splitlines()[0] == "# recording in, out, calling main(3)"
    assert "hits, 0 misses" in done.out and "nothing lost" in done.out
    assert path.stat().st_mode & 0o777 == 0o600


def test_report_as_text_tree_folded_and_chrome(run, recorded):
    path, _ = recorded
    text = run("report", str(path)).out
    assert " in: (fact+0x0/" in text and " n=0x3\n" in text and "<- fact [prog]) v=6\n" in text
    tree = run("report", str(path), "--format", "tree").out
    assert " | fact(n=0x3) {" in tree and " |     fact(n=0x1) = v=1;" in tree and " | } = v=6 /* fact */" in tree
    folded = run("report", str(path), "--format", "folded").out
    stack, value = folded.splitlines()[-1].rsplit(" ", 1)
    assert (stack.endswith("fact;fact;fact") and int(value) > 0) or "func_square" in folded
    events = json.loads(run("report", str(path), "--format", "chrome").out)["traceEvents"]
    phases = [event["ph"] for event in events]
    assert phases.count("B") == phases.count("E") == 3 and {"M"} < set(phases)


def test_report_json_is_an_object_for_each_record(run, recorded):
    found = [json.loads(line) for line in run("report", str(recorded[0]), "--json").out.splitlines()]
    assert [item["fields"]["n"] for item in found if item["event"] == "in"] == [3, 2, 1]
    assert {"time_ns", "cpu", "tid", "comm", "lost", "group"} <= set(found[0])


def test_record_with_a_filter_as_json(run, programs, tmp_path):
    path = tmp_path / "filtered.dat"
    done = run(
        "record", "-e", "p:sums fact n=%di:u64", "--filter", "n > 1", "-o", str(path), "--json",
        "--program", str(programs / "prog.ll"), "--call", "main", "3",
    )  # fmt: skip
    document = json.loads(done.out)
    assert (document["hits"], document["missed"], document["lost"]) == (3, 0, 0)
    assert document["events"] == ["kprobes/sums"] and document["file"] == str(path)
    assert run("report", str(path)).out.count("sums:") == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-e", "p:x vfs_read a=%zz"], "Invalid register name\n  p:x vfs_read a=%zz\n                 ^\n"),
        (["-e", "p:x vfs_raed"], "Invalid probed address or symbol\n  p:x vfs_raed\n      ^\n"),
        (["-e", "p:x vfs_read a=%di", "--filter", "b > 1"], "Field not found\n  b > 1\n    ^\n"),
        (["-e", "p:x vfs_read", "--trigger", "hist:keys=zz"], "Couldn't find field\n  hist:keys=zz\n            ^\n"),
        (["-e", "p:x vfs_read", "-o", "/nowhere/trace.dat"], "/nowhere/trace.dat: No such file or directory"),
        (["-e", "p:x vfs_read", "-o", "/dev/null"], "/dev/null: not a regular file; give another name with -o"),
    ],
)
def test_bad_input_is_a_sentence(run, tmp_path, words, message):
    output = [] if "-o" in words else ["-o", str(tmp_path / "trace.dat")]
    done = run("record", *words, *output, code=2)
    assert f"fprobe: {message}" in done.err and "Traceback" not in done.err


def test_a_link_is_not_followed(run, tmp_path):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "trace.dat").symlink_to(tmp_path / "victim")
    done = run("record", "-e", "p:x vfs_read", "-o", str(tmp_path / "trace.dat"), code=2)
    assert "symbolic link" in done.err
    assert (tmp_path / "victim").read_text() == "precious"


def test_report_of_something_else(run, tmp_path):
    (tmp_path / "other").write_text("hello")
    done = run("report", str(tmp_path / "other"), code=2)
    assert done.err == f"fprobe: {tmp_path / 'other'}: not a trace.dat\n"
    assert "No such file" in run("report", str(tmp_path / "nothing"), code=2).err


def test_ctrl_c_keeps_what_was_recorded(run, programs, tmp_path):
    path = tmp_path / "endless.dat"
    words = ["record", "-e", "p:spins tick n=%di", "-o", str(path), "--program", str(programs / "endless.ll")]
    with subprocess.Popen(
        [*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        deadline = time.monotonic() + 60
        while (not path.exists() or path.stat().st_size < 8 << 12) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "interrupted" in out and "KiB of records" in out
    assert run("report", str(path)).out.count("spins:") > 100
