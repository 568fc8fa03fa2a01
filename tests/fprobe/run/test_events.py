"""`fprobe run -e`: probe events of a program, as the kernel's text and as JSON, whatever became of the program."""

from __future__ import annotations

import re
import signal
import zlib

import pytest
from built_library import build_library, needs_compilers

PACKS = """
import os, sys, zlib
def pack(times):
    for _ in range(times):
        zlib.compress(b"x" * 1000)
pack(3)
"""
ASKED, RESULT = "p:asked libz:deflate flush=%si:s32", "r:result libz:deflate value=$retval:s32"


@pytest.mark.stress
def test_the_report_is_the_text_of_the_file_trace(launch):
    done = launch("-e", ASKED, "-e", RESULT, source=PACKS + "print('out')", as_json=False)
    process, *lines = done.err.splitlines()
    assert (done.returncode, done.out) == (0, "out\n")
    pid = re.match(r"# process (\d+): ", process)[1]
    front = rf" +\S+-{pid} +\[000\] \.\.\.\.\. +\d+\.\d{{6}}: "
    asked = front + r"asked: \(deflate\+0x[04]/0x[0-9a-f]+ \[libz\.so[.\d]*\]\) flush=4"
    # where zlib is built into an interpreter without symbols, as Debian's, the caller has no name
    caller = r"\S+\+0x[0-9a-f]+/0x[0-9a-f]+ \[zlib\S*\]" if hasattr(zlib, "__file__") else r"0x[0-9a-f]+"
    result = front + rf"result: \({caller} <- deflate \[libz\.so[.\d]*\]\) value=1"
    assert len(lines) == 6
    for line, pattern in zip(lines, [asked, result] * 3, strict=True):
        assert re.fullmatch(pattern, line), line


@pytest.mark.stress
def test_what_a_killed_program_and_its_forked_child_recorded(launch):
    source = (
        PACKS
        + "if not os.fork():\n    pack(2)\n    os.kill(os.getpid(), 9)\nos.wait()\npack(4)\nos.kill(os.getpid(), 9)"
    )
    done = launch("-e", ASKED, source=source)
    parent, child = done.report["processes"]
    assert done.returncode == -signal.SIGKILL
    assert child["forked_by"] == parent["pid"]
    for process, times in ((parent, 7), (child, 2)):
        assert process["probe_events_lost"] == 0
        assert [(each["event"], each["tid"], each["fields"]["flush"]) for each in process["probe_events"]] == [
            ("asked", process["pid"], 4)
        ] * times


@pytest.mark.stress
def test_functions_of_libraries_that_are_loaded_later(launch):
    source = "import sqlite3\nsqlite3.connect(':memory:').close()"
    place = "libsqlite3:sqlite3_open_v2"
    done = launch("-e", f"p:asked {place}", "-e", f"f:opened {place}%return value=$retval:s32", source=source)
    events = done.report["processes"][0]["probe_events"]
    assert [each["event"] for each in events] == ["asked", "opened"]
    assert events[1]["fields"]["value"] == 0


NAMES = ("a/b", "a+b", "a+4", "ns::f")
ODD = "".join(
    f'int f{n}(int x) __asm__("\\"{name}\\""); int f{n}(int x) {{ return x; }}' for n, name in enumerate(NAMES)
)


@pytest.mark.stress
@needs_compilers
def test_symbols_that_look_like_more_than_a_name(launch, tmp_path):
    build_library(library := tmp_path / "libodd.so", ODD)
    source = f"import ctypes; library = ctypes.CDLL({str(library)!r}); [library[name](7) for name in {NAMES}]"
    events = [f"{kind}:{kind}{n} libodd:{name}" for n, name in enumerate(NAMES) for kind in "prf"]
    done = launch(*[word for event in [*events, "p:at libodd:a+4+0x0"] for word in ("-e", event)], source=source)
    recorded = [event["event"] for event in done.report["processes"][0]["probe_events"]]
    assert sorted(recorded) == sorted([f"{kind}{n}" for n in range(len(NAMES)) for kind in "prf"] + ["at"])


def test_a_wrong_definition_is_told_and_the_program_runs(launch):
    done = launch("-e", "p:asked libz:deflate x=%nosuch", source="print('ran')", as_json=False)
    assert (done.returncode, done.out) == (1, "ran\n")
    assert "# Invalid register name\n  p:asked libz:deflate x=%nosuch\n" in done.err
    done = launch("-e", "x:asked libz:deflate", source="print('ran')", as_json=False)
    assert (done.returncode, done.out) == (2, "")
    assert "-e is 'x:asked libz:deflate'; give a line p, r or f, such as 'p:asked libz:deflate strm=%di'" in done.err


@pytest.mark.stress
def test_a_function_that_never_comes_is_named(launch):
    done = launch("-e", "p:asked libz:deflat", source="pass", as_json=False)
    assert done.returncode == 1
    assert "no function of [libz.so.1] matches 'deflat'; did you mean libz:deflate" in done.err


def test_addresses_in_code_outside_of_libraries_have_names(launch):
    """They were numbers, of the function itself, too."""
    source = "import sandbox, sandbox.demo; sandbox.load(sandbox.demo.source(), name='demo')['demo_main'](1)"
    done = launch("-e", "f:x vfs_read", "-e", "f:y vfs_read%return", source=source, as_json=False)
    assert " x: (vfs_read [demo])" in done.err
    assert re.search(r" y: \(ksys_read\+0x\w+ \[demo\] <- vfs_read \[demo\]\)", done.err), done.err


def test_kprobes_on_a_function_whose_library_is_given_by_a_pattern(launch):
    source = "import zlib; zlib.crc32(b'')"
    for kind in "pr":
        done = launch("-e", f"{kind}:x libz*:crc32", source=source, as_json=False)
        assert done.returncode == 0 and " x: (" in done.err
    done = launch("-e", "p:x libz*:crc*", source=source, as_json=False)
    assert done.returncode == 1
    assert "p and r are on one function, and 'libz*:crc*' matches" in done.out + done.err
