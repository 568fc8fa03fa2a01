"""A type checker finds a handler with the wrong parameters, and knows of which type the action of an attachment is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from later import later

later("mypy")

ROOT = Path(__file__).parents[1]
TEXT = """\
from ctypes import CFUNCTYPE
from typing import Any
import fprobe
import kprobes
from fprobe import Count, Stat

def entry(fp: fprobe.fprobe, entry_ip: int, ret_ip: int, regs: Any, entry_data: Any) -> int:
    return 0

def pre(p: kprobes.kprobe, regs: Any) -> int:
    return 0

def returned(ri: kprobes.kretprobe_instance, regs: Any) -> None: ...

fprobe.attach("f", entry=entry, exit=entry)
fprobe.attach("f", entry=lambda *hit: 0)
kprobes.attach("f", pre=pre)
kprobes.attach_return("f", returned, entry=lambda ri, regs: 0)
reveal_type(fprobe.attach("f", action=Stat()).action)
fprobe.attach("f", entry=pre)  # wrong
kprobes.attach("f", pre=entry)  # wrong
kprobes.attach("f", post=pre)  # wrong
kprobes.attach_return("f", pre)  # wrong
fprobe.attach("f", entry=entry, action=Count())  # wrong
fprobe.fprobe(entry, pre)  # wrong
kprobes.kprobe(symbol_name="f", pre_handler=entry)  # wrong
kprobes.kretprobe(symbol_name="f", handler=entry)  # wrong
fprobe.fprobe(entry, CFUNCTYPE(None)())
kprobes.kretprobe(symbol_name="f", handler=returned, entry_handler=lambda ri, regs: 0)
"""


@pytest.mark.stress
def test_mypy_finds_wrong_handlers(tmp_path):
    path = tmp_path / "handlers_to_check.py"
    path.write_text(TEXT)
    command = [sys.executable, "-m", "mypy", str(path)]  # with the options, and so the cache, of `make types`
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    found = {int(line) for line in re.findall(r"handlers_to_check\.py:(\d+): error", done.stdout)}
    wanted = {number for number, line in enumerate(TEXT.splitlines(), 1) if line.endswith("# wrong")}
    assert found == wanted, done.stdout + done.stderr
    assert 'Revealed type is "fprobe.actions.Stat"' in done.stdout
