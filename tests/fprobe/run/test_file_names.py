"""Hazard: a file may have any name, which is taken for a pattern, a line of a report, or text in UTF-8."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from attaching import has_interpreter
from command import HAS_COMPILER, forked
from sampled import sampled

from sandbox.memory.address_space import mappings
from sandbox.symbols.file_names import names_of

pytestmark = pytest.mark.skipif(
    not HAS_COMPILER or not has_interpreter(), reason="no C compiler, or no shared libpython: see fprobe doctor"
)
SOURCE = r"""
#include <unistd.h>
#include <stdlib.h>
__attribute__((noinline)) int work(int a, int b) { __asm__ volatile(""); return a + b; }
int main(int number, char **words) {
    for (int i = 0; i < 10; i++) work(i, 2);
    if (number > 1) { if (write(1, "ready\n", 6) != 6) return 1; for (;;) { work(1, 2); usleep(1000); } }
    return 0;
}
"""
NAMES = [
    b"p\xff", b"new\nline", b"star*", b"1234", b"[br]", b"-lead", b"a (deleted)", b"trail ", b" lead", b"a: b",
    b"back\\slash", b"\"quo'te", b"per%cent%s", b"\xe2\x80\xa8", b"e\x1b[31m", b"<m>", b"{b}", b"x" * 255, b"r\rx",
]  # fmt: skip


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    path = tmp_path_factory.mktemp("names") / "program"
    subprocess.run(["cc", "-O1", "-g", "-x", "c", "-", "-o", path], input=SOURCE, text=True, check=True)
    return path


@pytest.fixture
def named(compiled, tmp_path):
    """Makes a copy of the program with that name. Returns its path."""

    def make(name):
        path = os.fsdecode(os.fsencode(tmp_path) + b"/" + name)
        os.link(compiled, path)
        return path

    return make


@pytest.mark.stress
@pytest.mark.parametrize("name", sampled(NAMES, 2))
def test_functions_of_a_program_with_that_name(named, name, tmp_path):
    report = tmp_path / "report.json"
    words = ["run", "--stat", "work", "--trace", "main", "--hist", "work", "-e", "p:mine work a=%di:s32"]
    done = forked([*words, "--json", "-o", str(report), "--", named(name)], 60)
    assert (done.returncode, done.stderr) == (0, "")
    (process,) = json.loads(report.read_text())["processes"]
    assert [row["hits"] for row in process["functions"] if row["name"] == "work"] == [10]
    assert [each["fields"]["a"] for each in process["probe_events"]] == list(range(10))


@pytest.mark.parametrize("name", sampled(NAMES, 1))
def test_a_running_program_with_that_name(named, name):
    path = named(name)
    with subprocess.Popen([path, "on"], stdout=subprocess.PIPE) as target:
        assert target.stdout.readline() == b"ready\n"
        listed = forked(["list", "-p", str(target.pid), "wor?"], 60)
        every = forked(["list", "-p", str(target.pid)], 60)
        done = forked(["run", "-p", str(target.pid), "--stat", "work", "--duration", "0.2"], 60)
        target.kill()
    assert (listed.returncode, listed.stderr) == (0, "")
    assert listed.stdout.startswith("work [") and f"\n{listed.stdout}" in every.stdout
    assert done.returncode == 0, done.stderr
    assert done.stderr.isprintable() or all(line.isprintable() for line in done.stderr.split("\n"))
    assert " work [" in done.stdout


@pytest.mark.parametrize("format_", sampled(["parquet", "perfetto", "csv"], 1))
def test_reports_of_a_program_whose_name_is_no_utf_8(named, tmp_path, format_):
    pytest.importorskip({"parquet": "pyarrow", "perfetto": "perfetto"}.get(format_, "csv"))
    report = tmp_path / "report"
    words = ["run", "--trace", "work", "--format", format_, "-o", str(report)]
    done = forked([*words, "--", named(b"p\xff")], 60)
    assert (done.returncode, done.stderr) == (0, "")
    assert (b"p\xff" if format_ == "csv" else rb"p\xff") in report.read_bytes()


@pytest.mark.stress
def test_a_recording_of_a_program_whose_name_is_no_utf_8(named, tmp_path):
    recording, table = tmp_path / "trace.dat", tmp_path / "calls.parquet"
    with subprocess.Popen([named(b"p\xff"), "on"], stdout=subprocess.PIPE) as target:
        assert target.stdout.readline() == b"ready\n"
        words = ["-e", "f:mine work a=$arg1", "--duration", "0.2"]
        assert forked(["record", "-p", str(target.pid), "-o", str(recording), *words], 60).returncode == 0
        target.kill()
    done = forked(["report", str(recording), "-o", str(table)], 60)
    assert (done.returncode, done.stderr) == (0, "")
    assert rb"p\xff" in table.read_bytes()


def test_names_of_a_library():
    assert {"libz", "libz.so.1", "libz.so.1.2"} - names_of("libz.so.1.2") == {"libz.so.1"}
    assert {"libcrypt", "libcrypt-2.31", "libstdc__"} <= names_of("libcrypt-2.31.so") | names_of("libstdc++.so.6")


def test_mappings_of_files_with_any_name(compiled, tmp_path):
    import mmap

    held = []
    for name in NAMES:
        path = os.fsencode(tmp_path) + b"/" + name
        os.link(compiled, path)
        with open(path, "rb") as file:  # noqa: PTH123
            held.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    found = {os.fsencode(path).rpartition(b"/")[2] for _, _, _, path in mappings()}
    assert {name.replace(b"\n", rb"\012") for name in NAMES} <= found
