"""How many of our files a second registration passes: an operation is read on few pages."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from isolation import isolated

import fprobe
import kprobes
import sandbox
import sandbox.demo

ROOT = Path(__file__).parents[1]
PACKAGES = tuple(f"{ROOT / package}/" for package in ("sandbox", "ftrace", "kprobes", "fprobe"))
OF_AN_FPROBE = 15
OF_A_KPROBE = 21
OF_A_KPROBE_INSIDE = 30
"""... at an instruction after the entry, in a function that has been decoded. One file less while the optimiser's thread runs."""


def files(action: Callable[[], None]) -> set[str]:
    """The files of the functions that are called."""
    passed = set()

    def note(frame: Any, event: str, _argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGES):
            passed.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return passed


def entry(fp, entry_ip, ret_ip, regs, entry_data):
    return 0


def pre(p, regs):
    return 0


@isolated
def test_an_fprobes_registration_passes_few_files():
    sandbox.load(sandbox.demo.source(), name="demo")
    fp = fprobe.fprobe(entry)
    fprobe.register_fprobe(fp, "vfs_*")
    fprobe.unregister_fprobe(fp)
    passed = files(lambda: fprobe.register_fprobe(fp, "vfs_*"))
    fprobe.unregister_fprobe(fp)
    assert len(passed) <= OF_AN_FPROBE, sorted(passed)


@isolated
def test_a_kprobes_registration_passes_few_files():
    sandbox.load(sandbox.demo.source(), name="demo")
    kprobes.register_kprobe(kprobes.kprobe(symbol_name="vfs_read", pre_handler=pre))
    passed = files(lambda: kprobes.register_kprobe(kprobes.kprobe(symbol_name="vfs_write", pre_handler=pre)))
    assert len(passed) <= OF_A_KPROBE, sorted(passed)


@isolated
def test_a_kprobes_registration_inside_a_function_passes_few_files():
    module = sandbox.load(sandbox.demo.source(), name="demo")
    first = module.symbol("vfs_write").address
    site = next(place for place in range(first + 1, first + 64) if is_probed(place))
    passed = files(lambda: kprobes.register_kprobe(kprobes.kprobe(addr=site, pre_handler=pre)))
    assert len(passed) <= OF_A_KPROBE_INSIDE, sorted(passed)


def is_probed(address: int) -> bool:
    """Whether a kprobe can be there: it is the first byte of an instruction."""
    p = kprobes.kprobe(addr=address, pre_handler=pre)
    try:
        kprobes.register_kprobe(p)
    except OSError:
        return False
    kprobes.unregister_kprobe(p)
    return True
