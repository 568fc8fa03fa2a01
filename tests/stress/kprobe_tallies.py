"""Kprobes and kretprobes that count in memory of their own: [entries, exits, what did not agree]."""

from __future__ import annotations

import ctypes
from typing import Any

import kprobes
from sandbox.native import addressof, atomic_add, cast, ptr, u64


@kprobes.native
def tally_pre(p, regs):
    atomic_add(addressof(cast(ptr[u64], p.action)[0]), 1, "relaxed")


@kprobes.native
def tally_pre_regs(p, regs):
    notes = cast(ptr[u64], p.action)
    atomic_add(addressof(notes[0]), 1, "relaxed")
    if regs.ip != p.address + 1:
        atomic_add(addressof(notes[2]), 1, "relaxed")


@kprobes.native
def tally_post(p, regs, flags):
    notes = cast(ptr[u64], p.action)
    atomic_add(addressof(notes[1]), 1, "relaxed")
    if regs.ip == p.address + 1 or flags != 0:
        atomic_add(addressof(notes[2]), 1, "relaxed")


@kprobes.native
def tally_call(ri, regs):
    atomic_add(addressof(cast(ptr[u64], ri.rp.action)[0]), 1, "relaxed")


@kprobes.native
def tally_call_data(ri, regs):
    """Leaves in the call's data where its return address is."""
    atomic_add(addressof(cast(ptr[u64], ri.rp.action)[0]), 1, "relaxed")
    if ri.data[0] != 0:
        atomic_add(addressof(cast(ptr[u64], ri.rp.action)[2]), 1, "relaxed")
    ri.data[0] = regs.sp


@kprobes.native
def tally_call_cancel(ri, regs):
    atomic_add(addressof(cast(ptr[u64], ri.rp.action)[0]), 1, "relaxed")
    return 1


@kprobes.native
def tally_return(ri, regs):
    atomic_add(addressof(cast(ptr[u64], ri.rp.action)[1]), 1, "relaxed")


@kprobes.native
def tally_return_data(ri, regs):
    """A return leaves the stack 8 bytes above the return address."""
    notes = cast(ptr[u64], ri.rp.action)
    atomic_add(addressof(notes[1]), 1, "relaxed")
    if ri.data[0] + 8 != regs.sp:
        atomic_add(addressof(notes[2]), 1, "relaxed")


class TalliedKprobe(kprobes.kprobe):
    """A kprobe with the handlers above."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.notes = (ctypes.c_uint64 * 3)()
        self.action = ctypes.addressof(self.notes)

    def counted(self) -> int:
        """Hits that have been seen or missed."""
        return self.notes[0] + self.nmissed


class TalliedKretprobe(kprobes.kretprobe):
    """A kretprobe with the handlers above."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.notes = (ctypes.c_uint64 * 3)()
        self.action = ctypes.addressof(self.notes)

    def counted(self) -> int:
        """Calls that have been seen or missed."""
        return self.notes[0] + self.nmissed + self.kp.nmissed
