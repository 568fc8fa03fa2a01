"""Hazard: a program with one thread forks while ours runs there: in the child a lock that our thread held is never given back."""

from __future__ import annotations

import ctypes
import mmap
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from attaching import Target, attached, has_interpreter, interrupted
from sampled import in_stress

from sandbox.memory.pages import PAGE, PROT_EXEC, PROT_READ, mprotect
from sandbox.x86_64 import fork_gate

SOURCE = Path(__file__).with_name("forker.c")
COMPILER = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), "")
ANSWERS = 20


class Gate:
    """A fork gate of this process, which no fork uses."""

    def __init__(self):
        self._memory = mmap.mmap(-1, fork_gate.WHOLE)
        self._memory.write(fork_gate.CODE)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        mprotect(self._base, PAGE, PROT_READ | PROT_EXEC)

    def __getattr__(self, name):
        return ctypes.CFUNCTYPE(None)(self._base + getattr(fork_gate, name.upper()))

    def number(self, offset):
        return ctypes.c_uint32.from_address(self._base + offset).value


def begun(call):
    """Calls it in a thread. Returns what waits for its end, and says whether there was one."""
    done = threading.Event()
    threading.Thread(target=lambda: (call(), done.set()), daemon=True).start()
    return done.wait


def test_a_fork_waits_until_no_thread_is_inside_and_keeps_others_outside():
    gate = Gate()
    gate.enter()
    forks = begun(gate.prepare)
    assert not forks(0.05) and gate.number(fork_gate.FORKING) == 1
    gate.leave()
    assert forks(ANSWERS)
    enters = begun(gate.enter)
    assert not enters(0.05) and gate.number(fork_gate.HOLDERS) <= 1
    gate.parent()
    assert enters(ANSWERS)
    assert (gate.number(fork_gate.HOLDERS), gate.number(fork_gate.FORKING)) == (1, 0)
    gate.child()
    assert gate.number(fork_gate.HOLDERS) == 0


@pytest.mark.stress
def test_a_fork_does_not_wait_for_ever():
    gate = Gate()
    gate.enter()
    assert begun(gate.prepare)(ANSWERS)


@pytest.mark.stress
@pytest.mark.skipif(
    not COMPILER or not has_interpreter(), reason="no C compiler, or no shared libpython: see fprobe doctor"
)
@pytest.mark.parametrize("times", [1, in_stress(40)])
def test_children_that_are_forked_while_it_is_attached_to_end(tmp_path, times):
    program = tmp_path / "forker"
    subprocess.run([COMPILER, "-O1", SOURCE, "-o", program], check=True)
    made = Target(python=program)
    try:
        for _ in range(times):
            with attached("stat", "-p", made.pid, "libc:strerror", "libc:fork") as command:
                interrupted(command)
        answer = made.ask("")
    finally:
        made.end()
    assert answer["forks"] > 100 and answer["hung"] == 0
