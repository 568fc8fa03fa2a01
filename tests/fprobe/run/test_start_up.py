"""A start that takes long is not silent on a terminal."""

from __future__ import annotations

import json
import os
import re
import sys

import pytest
from terminal import Terminal

from fprobe.run import session
from fprobe.run.launcher.start_up import StartUp

AT_ONCE = """
import functools, fprobe.cli.console as console, fprobe.run.launcher.live as live
console.progress_line = functools.partial(console.progress_line, after=0)
live._SILENT = live._FIRST_UPDATE = 0.0
from fprobe.cli import main
main(prog_name="fprobe")
"""
PROGRAM = "import os, zlib; zlib.compress(b'x'); print('begun')"


def on_terminal(*words, **options):
    job = Terminal(sys.executable, "-c", AT_ONCE, *words, **options)
    seen = job.wait_for("ended 0")
    job.close()
    return seen


def test_run_says_what_it_does_and_erases_that_before_the_program_begins():
    seen = on_terminal("run", "--stat", "libz:deflate", "-c", PROGRAM)
    shown, _, after = seen.rpartition("\r\x1b[K")
    assert re.search("\r\x1b\\[Kpreparing the probes: [0-9] s", shown)
    assert after.startswith("begun\r\n") and "deflate [libz]" in after


@pytest.mark.stress
def test_attaching_says_what_it_does_until_it_is_done(target):
    words = ["stat", "-p", str(target.pid), "libz:deflate", "--duration", "0.1"]
    shown, _, after = on_terminal(*words).rpartition("\r\x1b[K")
    assert re.match(f"\r\x1b\\[Kreading process {target.pid}: [0-9] s", shown)
    assert after.startswith(f"fprobe: attached to {target.pid} ")


@pytest.mark.stress
def test_top_says_it_in_the_first_line_of_the_table():
    words = ["top", "--stat", "libz:deflate", "-d", "0.05", "-c", PROGRAM]
    said = re.compile("\x1b\\[Hpreparing the probes: [0-9] s\x1b\\[K")
    for _ in range(9):  # on a busy machine the program may be prepared before the first table is drawn
        drawn, _, after = on_terminal(*words).partition("\x1b[?1049l")
        assert "preparing" not in after
        if said.search(drawn):
            break
    assert said.search(drawn)


@pytest.mark.stress
def test_a_dumb_terminal_shows_nothing():
    assert on_terminal("run", "--stat", "libz:deflate", "-c", PROGRAM, term="dumb").startswith("begun\r\n")


@pytest.fixture
def journal():
    made = session.create(session.Settings())
    yield made[1]
    for each in made:
        os.close(each)


def write(journal, **entry):
    os.write(journal, json.dumps({"pid": 1, **entry}).encode() + b"\n")


def test_the_journal_tells_what_is_done_and_the_end_of_it(journal):
    start_up = StartUp("reading process 1")
    start_up.follow(journal)
    assert start_up.text_now() == "reading process 1"
    write(journal, doing="reading the functions that match libz:*")
    write(journal, doing="probing 2,000 functions")
    assert start_up.text_now() == start_up.text_now() == "probing 2,000 functions" and not start_up.is_over()
    write(journal, pattern="libz:*", functions=[])
    write(journal, armed=True)
    assert start_up.is_over() and start_up.text_now() == ""


def test_a_program_that_is_not_covered_is_not_waited_for(journal):
    start_up = StartUp()
    start_up.follow(journal)
    assert not start_up.is_over()
    write(journal, command=["python"], not_covered="it has no fprobe")
    assert start_up.is_over()
