"""A program that calls `exit`: the summary is there, and what it printed too."""

from __future__ import annotations

import pytest
from command import HAS_COMPILER


@pytest.mark.parametrize(("status", "code"), [(0, 0), (3, 1)])
def test_trace(run, programs, status, code):
    found = run("trace", "*", "--program", "exits.ll", "--call", "main", status, code=code, cwd=programs).out
    assert f"leave(status={status}) {{" in found
    assert "bye\n" in found
    assert (
        f"main({status}) called exit({status})\n2 functions matched: 2 attached, 0 skipped\n2 hits, 0 misses\n" in found
    )
    assert "not returned: main > leave" in found


def test_trace_json(run, programs):
    found = run("trace", "*", "--program", "exits.ll", "--call", "main", "3", "--json", code=1, cwd=programs)
    assert (found.objects[-1]["type"], found.objects[-1]["exited"]) == ("summary", 3)
    assert found.err == "bye\n"


def test_stat_json(run, programs):
    found = run("stat", "*", "--program", "exits.ll", "--call", "main", "0", "--json", cwd=programs).document
    assert (found["result"], found["exited"]) == (None, 0)
    assert {row["name"]: row["hits"] for row in found["functions"]} == {"main": 1, "leave": 1}


BARE_EXIT = """
#include <sys/syscall.h>
#include <unistd.h>
__attribute__((noinline)) long step(long n) { __asm__ volatile(""); return n + 1; }
int main(void) { for (int i = 0; i < 10; i++) step(i); syscall(SYS_exit, 3); return 0; }
"""


@pytest.mark.skipif(not HAS_COMPILER, reason="no C compiler")
@pytest.mark.parametrize("verb", [("stat", "step"), ("record", "-e", "f:steps step", "-o", "steps.dat")])
def test_a_program_that_ends_its_thread_by_the_system_call_is_not_waited_for(run, tmp_path, verb):
    (tmp_path / "bare.c").write_text(BARE_EXIT)
    found = run(*verb, "--program", "bare.c", code=1, cwd=tmp_path)
    assert "ended its thread by the system call exit" in found.err
    assert "10 hits" in found.out or " 10  step" in found.out
