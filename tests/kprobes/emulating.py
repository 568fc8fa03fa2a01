"""The native emulation alone, on a pt_regs that the test fills in."""

from __future__ import annotations

import ctypes

from ftrace.hit.x86_64.pt_regs import pt_regs
from kprobes.hit.emulate import GUARDED_ACCESS, carry_out
from kprobes.hit.records import PlaceRecord
from kprobes.place import describe_emulated
from kprobes.x86_64.classify import classify
from sandbox.native import Unit, addressof, cast, native, ptr, u64
from sandbox.native.native_image import NativeImage
from sandbox.x86_64.instruction import Instruction


@native
def emulate(record: u64, regs: u64, following: u64) -> u64:
    return cast(u64, carry_out(addressof(cast(ptr[PlaceRecord], record).emulated), cast(ptr[pt_regs], regs), following))


class Emulator:
    """Carries instructions out as a probe on them would."""

    def __init__(self) -> None:
        self._image = NativeImage.of(Unit("emulating", (emulate,), assembly=GUARDED_ACCESS, bounded=False))

    def carry_out(self, insn: Instruction, regs: ctypes.Structure) -> None:
        record = PlaceRecord.ctypes()
        emulation = classify(insn, preemptible=True).emulation
        assert emulation is not None
        describe_emulated(record, emulation)
        assert self._image.call("emulate", ctypes.addressof(record), ctypes.addressof(regs), insn.end) == 1
