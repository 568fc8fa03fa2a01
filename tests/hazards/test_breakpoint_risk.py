"""HAZARDS 2: a breakpoint that a thread reaches with SIGTRAP blocked ends the process. Who attaches one is told.

That is so where signal masks cannot be watched (test_signal_masks.py).
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest
from built_library import build_library, built_library, needs_compilers
from isolation import isolated

import fprobe

pytestmark = needs_compilers

# A loop begins after one byte, where a jump would have to go on.
SOURCE = """
#define LOOP(name) __asm__(".globl " name "\\n.type " name ",@function\\n" name ": push %rbx\\n1: mov $5, %eax\\n" \\
                           " dec %rdi\\n jnz 1b\\n pop %rbx\\n ret\\n.size " name ",.-" name);
LOOP("first_loop") LOOP("other_loop")
long plain(long x) { return x * 3 + 1; }
"""


@isolated(FPROBE_DENY="masks")
def test_a_warning_names_functions_that_only_a_breakpoint_can_patch_once():
    built_library("libloops", SOURCE)
    messages = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())
    logging.getLogger("ftrace").addHandler(handler)
    fprobe.attach("libloops:plain", action=fprobe.Stat()).attach().detach()
    assert messages == []
    for _ in range(2):
        fprobe.attach("libloops:*", action=fprobe.Stat()).attach().detach()
    (message,) = messages
    assert message.startswith("a breakpoint patches first_loop and 1 more [libloops")
    assert "a call while SIGTRAP is blocked" in message
    assert "ends the process" in message


@pytest.mark.stress
def test_the_report_of_a_run_says_so(tmp_path):
    build_library(tmp_path / "libloops.so", SOURCE)
    program = f"import ctypes; each = ctypes.CDLL('{tmp_path}/libloops.so'); each.first_loop(3)"
    run = [sys.executable, "-m", "fprobe", "run", "--stat", "libloops:first_loop", "-c", program]
    done = subprocess.run(run, timeout=100, capture_output=True, text=True, env={**os.environ, "FPROBE_DENY": "masks"})
    assert done.returncode == 0
    assert "# a breakpoint patches first_loop [libloops" in done.stderr
