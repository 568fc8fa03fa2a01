"""Exit handlers under `fprobe run`: the program's are traced, those of what the probes bring are not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest
from command import COMMAND, forked
from sampled import sampled

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")

LIBRARY = """
#include <stdlib.h>
__attribute__((noipa)) void NAME_works(int n) { __asm__ volatile (""); }
static void at_exit(void) { NAME_works(1); NAME_works(2); }
__attribute__((constructor)) static void begin(void) { atexit(at_exit); }
__attribute__((destructor)) static void end(void) { NAME_works(3); }
"""


def build(directory, name):
    source, library = directory / f"{name}.c", directory / f"lib{name}.so"
    source.write_text(LIBRARY.replace("NAME", name))
    subprocess.run(["cc", "-O1", "-fPIC", "-shared", "-o", library, source], check=True)
    return library


def rows(directory, options, program, **environment):
    report = directory / "report"
    words = ["run", "--json", "-o", str(report), *options, "-c", program]
    if environment:
        subprocess.run([*COMMAND, *words], check=True, timeout=60, env={**os.environ, **environment})
    else:
        assert forked(words, 60).returncode == 0
    processes = json.loads(report.read_text())["processes"]
    return [row for process in processes for row in process["functions"]]


@pytest.mark.stress
def test_the_programs_exit_handlers_are_traced(tmp_path):
    """Of a library that is there before the probes, and of one that the program loads: three calls at the exit of each."""
    early, late = build(tmp_path, "early"), build(tmp_path, "late")
    program = f"import ctypes; ctypes.CDLL({str(late)!r}).late_works(0)"
    options = ["--stat", "libearly:early_works", "--stat", "liblate:late_works"]
    found = rows(tmp_path, options, program, LD_PRELOAD=str(early))
    assert {row["name"]: row["hits"] for row in found} == {"early_works": 3, "late_works": 4}


@pytest.mark.stress
def test_events_of_the_programs_exit_handlers_are_recorded(tmp_path):
    """A kprobe and an fprobe that are not those of `--stat`."""
    late = build(tmp_path, "late")
    program = f"import ctypes; ctypes.CDLL({str(late)!r}).late_works(0)"
    options = ["--event", "f:works liblate:late_works n=$arg1:s32", "--event", "p:freed libc:free"]
    report = tmp_path / "report"
    assert forked(["run", "-o", str(report), *options, "-c", program], 60).returncode == 0
    works = [line for line in report.read_text().splitlines() if " works: " in line]
    assert [line.rpartition("n=")[2] for line in works] == ["0", "1", "2", "3"]


@pytest.mark.stress
@pytest.mark.parametrize("function", sampled(["free", "qsort", "munmap"], 1))
def test_exit_handlers_of_what_the_probes_bring_are_not_traced(function, tmp_path):
    found = rows(tmp_path, ["--by", "caller", "--stat", f"libc:{function}"], "pass")
    callers = [row["caller"] for row in found]
    assert not [each for each in callers if "llvm" in each or "crypto" in each]


@pytest.mark.stress
def test_a_program_without_openssl_runs_without_it(tmp_path):
    program = "import zlib; zlib.compress(b'x'); print(open('/proc/self/maps').read().count('libcrypto'))"
    words = ["run", "-o", str(tmp_path / "report"), "--stat", "libz:deflate", "-c", program]
    assert forked(words, 60).stdout == "0\n"


@pytest.mark.stress
def test_what_fprobe_does_in_the_program_is_not_traced(tmp_path):
    """It opens files as it arms, as a library comes and at the end; the program opens one of them later."""
    late = build(tmp_path, "late")
    program = f"import ctypes; ctypes.CDLL({str(late)!r}).late_works(0); open('/proc/self/status').close()"
    options = ["--trace", "libc:open64", "--stat", "liblate:late_works"]
    report = tmp_path / "report"
    assert forked(["run", "--json", "-o", str(report), *options, "-c", program], 60).returncode == 0
    (process,) = json.loads(report.read_text())["processes"]
    opened = [text for call in process["calls"] for text in call["strings"].values() if text.startswith("/proc/")]
    assert opened == ["/proc/self/status"]
