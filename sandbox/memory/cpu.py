"""Features of this CPU, found by running code on it: vector state, shadow stacks, whether changed code is noticed."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

from sandbox.memory import mappings, pages
from sandbox.x86_64.save_area import AVX512, WANTED, SaveArea

_LEGACY_AND_HEADER = 576

# cpuid(leaf = edi, subleaf = esi) -> four words at rdx ; xgetbv(0) -> rax
_CPUID = bytes.fromhex("534989d089f889f10fa24189004189580441894808418950 0c5bc3".replace(" ", ""))
_XGETBV = bytes.fromhex("31c90f01d048c1e2204809d0c3")
_STATUS = Path("/proc/self/status")


class _Cpu:
    """CPUID and XGETBV, from a temporary page of code."""

    def __init__(self) -> None:
        self._text = mappings.allocate_text(None, mappings.PAGE, "fprobe-cpuid")
        self._text.write(self._text.base, _CPUID)
        self._text.write(self._text.base + 64, _XGETBV)
        prototype = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)
        self._cpuid = prototype(self._text.base)
        self.xgetbv = ctypes.CFUNCTYPE(ctypes.c_uint64)(self._text.base + 64)

    def cpuid(self, leaf: int, subleaf: int = 0) -> tuple[int, int, int, int]:
        words = ctypes.create_string_buffer(16)
        self._cpuid(leaf, subleaf, words)
        eax, ebx, ecx, edx = struct.unpack("<4I", words)
        return eax, ebx, ecx, edx

    def has_wide_masks(self) -> bool:
        """Whether mask registers have 64 bits (AVX512BW)."""
        return bool(self.cpuid(7)[1] >> 30 & 1)

    def close(self) -> None:
        self._text.unmap()


def save_area() -> SaveArea:
    """The features of this CPU. Raises OSError if it has no XSAVE (or the kernel does not allow it)."""
    cpu = _Cpu()
    try:
        if not cpu.cpuid(1)[2] >> 27 & 1:
            raise OSError(38, "this CPU has no XSAVE: vector registers cannot be saved around handlers")
        mask = cpu.xgetbv() & WANTED
        features = cpu.cpuid(0xD, 1)[0]
        tells_use = bool(features >> 2 & 1) and (not mask & AVX512 or cpu.has_wide_masks())
        if features >> 1 & 1:
            return SaveArea("xsavec", mask, _compacted_size(cpu, mask), tells_use)
        return SaveArea("xsave", mask, _standard_size(cpu, mask), tells_use)
    finally:
        cpu.close()


def _components(mask: int) -> list[int]:
    return [number for number in range(2, 63) if mask >> number & 1]


def _compacted_size(cpu: _Cpu, mask: int) -> int:
    size = _LEGACY_AND_HEADER
    for number in _components(mask):
        length, _offset, flags, _ = cpu.cpuid(0xD, number)
        if flags & 2:
            size = (size + 63) & -64
        size += length
    return (size + 63) & -64


def _standard_size(cpu: _Cpu, mask: int) -> int:
    ends = [_LEGACY_AND_HEADER]
    ends += [sum(cpu.cpuid(0xD, number)[:2]) for number in _components(mask)]
    return (max(ends) + 63) & -64


def notices_changed_code() -> bool:
    """Change a function that has been called, and call it again."""
    text = mappings.allocate_text(None, mappings.PAGE, "fprobe-changed")
    try:
        function = ctypes.CFUNCTYPE(ctypes.c_int)(text.base)
        results = []
        for number in (1, 2):
            text.write(text.base, b"\xb8" + number.to_bytes(4, "little") + b"\xc3")  # mov $number, %eax; ret
            pages.sync_cores()
            results.append(function())
        return results == [1, 2]
    finally:
        text.unmap()


def has_shadow_stacks() -> bool:
    """Whether a return to another address than the call's would end the process.

    A hook that returns through a call of its own is not concerned; one that exchanges a return address is.
    """
    fields = (line.partition(":") for line in _STATUS.read_text(errors="replace").splitlines())
    return any(name == "x86_Thread_features" and "shstk" in value.split() for name, _, value in fields)
