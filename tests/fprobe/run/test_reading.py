"""`fprobe list`, `explain` and `disasm` of a running process: they read it, and change nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from attaching import Target, attached, fprobe, interrupted
from command import HAS_COMPILER
from sampled import sampled

LIBRARY = """
static __attribute__((noinline)) long hidden(long x) { return x * 3; }
__attribute__((noinline)) long twice(long x) { return hidden(x) + 7; }
"""


def document(*words):
    done = fprobe(*words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["processes"]


def test_functions_are_explained(target):
    state, text = target.ask("state"), target.ask("text")
    (process,) = document("explain", "-p", target.pid, "libz:deflate", "libz:inflate")
    assert process["refused"] == "" and [each["function"] for each in process["functions"]] == ["deflate", "inflate"]
    assert all(each["probeable"] and "jump" in each["entry"] for each in process["functions"])
    assert target.ask("state") == state and target.ask("text") == text


def test_a_process_that_cannot_be_attached_to_is_explained_too():
    process = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        process.stdin.write(b"x")
        process.stdin.flush()
        assert process.stdout.read(1) == b"x"  # its libraries are loaded
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        (found,) = document("explain", "-p", process.pid, "libc:malloc")
    finally:
        process.kill()
        process.wait()
    assert "is stopped" in found["refused"] and found["functions"][0]["probeable"]


def test_code_is_that_in_memory(target):
    (before,) = document("disasm", "-p", target.pid, "libz:deflate")
    assert before["loaded"][0]["address"] and "in_file" not in before
    with attached("stat", "-p", target.pid, "libz:deflate") as process:
        (now,) = document("disasm", "-p", target.pid, "libz:deflate", "--all")
        (explained,) = document("explain", "-p", target.pid, "libz:deflate")
        interrupted(process)
    assert now["loaded"][0] != before["loaded"][0]
    assert now["in_file"][: len(before["loaded"])] == before["loaded"]
    assert "in its file" in explained["functions"][0]["patched"]


@pytest.mark.parametrize("options", [("--stub",), ("--source",)])
def test_what_needs_a_probe_is_refused(target, options):
    done = fprobe("disasm", "-p", target.pid, "libz:deflate", *options)
    assert done.returncode == 2 and f"{options[0]} is not for a running process" in done.stderr


@pytest.mark.stress
@pytest.mark.skipif(not HAS_COMPILER, reason="no C compiler")
@pytest.mark.parametrize("way", sampled(["replaced", "deleted"], 1))
def test_a_library_that_is_replaced_on_disk_is_read_and_probed_as_it_is_in_memory(tmp_path, way):
    library = tmp_path / "libforeign.so"
    (tmp_path / "foreign.c").write_text(LIBRARY)
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", library, tmp_path / "foreign.c"], check=True)
    code = f"""
import ctypes, sys
twice = ctypes.CDLL({str(library)!r}).twice
print("ready", flush=True)
for line in sys.stdin:
    print(twice(5), flush=True)
"""
    made = Target("-c", code)
    try:
        (before,) = document("disasm", "-p", made.pid, "libforeign:twice")
        if way == "replaced":
            shutil.copy(sys.executable, tmp_path / "other")
            (tmp_path / "other").rename(library)
        else:
            Path(library).unlink()
        (after,) = document("disasm", "-p", made.pid, "libforeign:twice")
        assert after["loaded"] == before["loaded"]
        with attached("stat", "-p", made.pid, "libforeign:twice", "--json") as process:
            assert made.ask("") == 22
            (found,) = json.loads(interrupted(process))["processes"]
        assert found["functions"][0]["name"] == "twice" and found["functions"][0]["hits"] == 1
    finally:
        made.end()
