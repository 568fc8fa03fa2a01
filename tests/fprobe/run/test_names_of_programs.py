"""Functions whose names are terminal sequences, ends of lines, or bytes that are not UTF-8, as any file can have them."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess

import pytest
from attaching import COMMAND, Target, fprobe, has_interpreter
from command import forked
from sampled import in_stress

SOURCE = r"""
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>
__attribute__((noipa)) int S31mredS0m(const char *s) { return s[0]; }
__attribute__((noipa)) int nlNfake99(const char *s) { return s[1]; }
__attribute__((noipa)) int work(const char *s) { return S31mredS0m(s) + nlNfake99(s); }
int main(int argc, char **argv) {
    prctl(PR_SET_NAME, "\033[31mc\n7 x");
    puts("ready"), fflush(stdout);
    for (int i = 0; i < 3 || argc > 1; i++) { work("\033[32mg\n{ s: \234"); usleep(1000); }
    return 0;
}
"""
RED, LINE = b"\x1b[1mrr\x1b[0m", b"nl\n{\x1b[mx\x9b"
SHOWN = (r"\x1b[1mrr\x1b[0m", r"nl\x0a{\x1b[mx\x9b")
pytestmark = pytest.mark.skipif(
    not has_interpreter() or not shutil.which("gcc"), reason="no interpreter to bring, or no gcc"
)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    odd = tmp_path_factory.mktemp("odd") / "odd"
    subprocess.run(["gcc", "-xc", "-O1", "-", "-o", odd], input=SOURCE, text=True, check=True, timeout=60)
    odd.write_bytes(odd.read_bytes().replace(b"S31mredS0m", RED).replace(b"nlNfake99", LINE))
    return odd


@pytest.fixture(scope="module")
def running(program):
    made = Target(program, "on", python="/usr/bin/env")
    yield made.pid
    made.end()


def is_plain(text):
    return all(letter.isprintable() or letter == "\n" for letter in text)


@pytest.mark.parametrize(
    "words",
    [
        "--trace odd:*[rl]*",
        in_stress("--stat * --by caller"),
        in_stress("--hist *"),
        in_stress("--stacks odd:*[rl]*"),
        in_stress("-e f:hit\todd:*[rl]*"),
    ],
)
def test_a_run_shows_each_on_its_line(program, words):
    done = forked(["run", *words.split(" "), str(program)], 60)
    assert done.returncode == 0 and is_plain(done.stderr), done.stderr
    assert all(re.search(rf"(?m)^.*{re.escape(each)}.*$", done.stderr) for each in SHOWN)


@pytest.mark.parametrize("words", ["list odd:*", in_stress("explain odd:*"), in_stress("list odd:* -v")])
def test_lists_of_a_process(running, words):
    verb, *rest = words.split()
    done = fprobe(verb, "-p", running, *rest)
    assert done.returncode == 0 and is_plain(done.stdout) and all(each in done.stdout for each in SHOWN)


@pytest.mark.stress
def test_names_in_json_are_both(running):
    done = fprobe("stat", "-p", running, "odd:*[rl]*", "--duration", "0.3", "--json")
    symbols = {row["name"]: row["symbol"] for row in json.loads(done.stdout)["processes"][0]["functions"]}
    assert symbols[SHOWN[0]] == RED.decode() and symbols[SHOWN[1]].encode("utf-8", "surrogateescape") == LINE


@pytest.mark.stress
def test_texts_of_histograms_are_on_one_line(running):
    words = ("-e", "p:seen odd:work s=+0(%di):string", "keys=s,common_pid.execname", "--duration", "0.3")
    done = fprobe("hist", "-p", running, *words)
    entries = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert is_plain(done.stdout) and len(entries) == 1 and r"{ s: \x1b[32mg\n{ s: \x9c " in entries[0], done.stdout
    assert r"\x1b[31mc\n7 x" in entries[0]


@pytest.mark.stress
def test_recordings(running, tmp_path):
    path = tmp_path / "odd.dat"
    words = ("-e", "p:seen odd:work s=+0(%di):string", "-e", "r:done odd:work", "-o", path, "--duration", "0.3")
    assert fprobe("record", "-p", running, *words).returncode == 0
    made = subprocess.run([*COMMAND, "report", path, "-f", "csv"], capture_output=True, timeout=60)
    rows = list(csv.DictReader(io.StringIO(made.stdout.decode("utf-8", "surrogateescape"), newline="")))
    assert {row["s"] for row in rows if row["event"] == "seen"} == {"\x1b[32mg\n{ s: \udc9c"}
    assert {row["comm"] for row in rows} <= {"\x1b[31mc 7 x", "<...>"}
    folded = fprobe("report", path, "-f", "folded").stdout
    assert is_plain(folded) and re.fullmatch(r"\\x1b\[31mc 7 x;work \d+\n", folded)
