"""`fprobe -p` of a Python program that has not imported `threading`: our thread imports it first, and is not the program's."""

from __future__ import annotations

import _thread
import logging
import subprocess
import sys
import threading
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))

from attaching import LIMIT, attached, fprobe, interrupted, rows

from fprobe.run import session
from fprobe.run.tracee.arming import keep_quiet

PROGRAM = """
import os, sys, zlib
print("threading" in sys.modules, flush=True)
for line in sys.stdin:
    zlib.crc32(b"x")
    try:
        exec(line)
    except BaseException as error:
        print(repr(error))
    sys.stdout.flush()
"""
FACTS = (
    "import threading as t; main = t.main_thread(); print(t.current_thread() is main, main.ident == t.get_ident(), "
    "main.native_id == t.get_native_id(), main.is_alive(), t.enumerate() == [main], t.Thread().name)"
)


@pytest.fixture
def program():
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout.readline() == "False\n"
    yield process
    process.kill()
    process.communicate()


def told(program, line):
    program.stdin.write(f"{line}\n")
    program.stdin.flush()
    return program.stdout.readline()


def test_the_program_ends_while_it_is_attached_to(program):
    with attached("stat", "-p", program.pid, "libz:crc32", "--json") as process:
        assert program.communicate("pass\n", timeout=LIMIT)[0] == "" and program.returncode == 0
        out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0 and rows(out)["crc32"]["hits"] == 1, err


def test_the_programs_main_thread_is_the_main_one_and_ours_is_not_listed(program):
    with attached("stat", "-p", program.pid, "libz:crc32", "--json") as process:
        assert told(program, FACTS) == "True True True True True Thread-1\n"
        thread = "w = t.Thread(target=lambda: (main.join(), print('after main'))); w.start(); print(t.active_count(), w.name)"
        assert told(program, thread).startswith("2 Thread-2")
        assert rows(interrupted(process))["crc32"]["hits"] == 2
    assert program.communicate(timeout=LIMIT)[0] == "after main\n"


def test_a_fork_after_detaching_prints_nothing(program):
    done = fprobe("stat", "-p", program.pid, "*:crc32", "--duration", "0.1")
    assert "attached" in done.stderr, done.stderr
    fork = "child = os.fork(); child or os._exit(3); print(os.waitpid(child, 0)[1] >> 8)"
    assert told(program, fork) == "3\n"
    assert told(program, FACTS) == "True True True True True Thread-1\n"
    assert told(program, fork) == "3\n"


def test_a_program_that_closes_all_descriptors_keeps_its_own_files(program, tmp_path):
    with attached("stat", "-p", program.pid, "libz:crc32", "--json") as process:
        opening = f"os.open('{tmp_path}/%d' % n, os.O_CREAT | os.O_RDWR)"
        told(program, f"os.closerange(3, 20000); own = [{opening} for n in range(100)]; print(len(own))")
        assert rows(interrupted(process))["crc32"]["hits"] == 1
    assert told(program, "print([os.write(each, b'own') for each in own] == [3] * 100)") == "True\n"
    assert {file.read_bytes() for file in tmp_path.iterdir()} == {b"own"}


def test_messages_of_a_thread_that_threading_does_not_know_do_not_list_it():
    counts, journal = session.create(session.Settings())
    ended = threading.Event()
    before, end = threading.enumerate(), keep_quiet(session.address_of(counts, journal))

    source = "logging.getLogger('ftrace').warning('%d of %s', 2, 'ours')\nended.set()\n"
    code = compile(source, session.__file__, "exec")  # a message is ours by its file
    _thread.start_new_thread(exec, (code, {"logging": logging, "ended": ended}))
    assert ended.wait(LIMIT)
    end()
    assert threading.enumerate() == before
    assert "2 of ours" in [entry.get("remark") for entry in session.entries(journal)]
