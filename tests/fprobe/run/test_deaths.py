"""What each option of `fprobe run` reports about a program that a signal kills."""

from __future__ import annotations

import re
import signal

import pytest

COMPRESSES = "import ctypes, os, signal, zlib\nfor n in range(5): zlib.compress(b'x')\nzlib.crc32(b'x' * 999)\n"
DEATHS = {
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", signal.SIGKILL),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM)", signal.SIGTERM),
    "a fault": ("ctypes.string_at(1)", signal.SIGSEGV),
    "a fault under faulthandler": ("import faulthandler; faulthandler.enable(); ctypes.string_at(1)", signal.SIGSEGV),
    "abort in C": ("ctypes.CDLL(None).abort()", signal.SIGABRT),
    "abort in a thread": (
        "import threading; threading.Thread(target=os.abort).start(); signal.pause()",
        signal.SIGABRT,
    ),
}
QUICK = ("SIGKILL",)
OPTIONS = (
    *("--stat", "libz:deflate", "--hist", "libz:deflateEnd", "--trace", "libz:deflateInit2_"),
    *("--stacks", "libz:crc32_z", "-e", "p:packs libz:deflate flush=%si"),
)


def check(launch, tmp_path, how):
    death, number = DEATHS[how]
    report = tmp_path / "report"
    done = launch(*OPTIONS, "-o", str(report), source=COMPRESSES + death, as_json=False)
    assert done.returncode == -number
    text = report.read_text()
    assert "         5  deflate [libz]\n" in text  # --stat
    assert "deflateEnd [libz]: 5 calls, " in text and "#" * 10 in text  # --hist
    assert len(re.findall(r"deflateInit2_ \[libz\]\(strm=.*\) = 0;", text)) == 5  # --trace
    assert "1 calls  crc32_z [libz]" in text and re.search(r"<- <module> \(app.py:\d+\)", text)  # --stacks
    assert text.count(" packs: (deflate+0x0/") == 5 and text.count(" flush=0x4") == 5  # -e


@pytest.mark.parametrize("how", QUICK)
def test_a_program_that_dies_is_reported_by_every_option(launch, tmp_path, how):
    check(launch, tmp_path, how)


@pytest.mark.stress
@pytest.mark.parametrize("how", [how for how in DEATHS if how not in QUICK])
def test_however_it_dies(launch, tmp_path, how):
    check(launch, tmp_path, how)
