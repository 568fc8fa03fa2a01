"""Guarding the calls into loaded modules: a fault in one is raised as SandboxFault in its caller."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator

from ftrace.core.unwind.unwinding import FrameDescription, describe_entrances
from ftrace.hit.faults import RANGES, Range
from sandbox.memory import mappings
from sandbox.native.native_image import NativeImage
from sandbox.process import fork
from sandbox.symbols import source_lines
from sandbox.symbols.table import symbol_table
from sandbox.threads import faults
from sandbox.threads.signals import SIGBUS, SIGFPE, SIGILL, SIGSEGV, SignalDispatcher
from sandbox.threads.tasks import Fault

_SIGNALS = (SIGSEGV, SIGBUS, SIGFPE, SIGILL)
_REGISTERS = [
    *("r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15"),
    *("di", "si", "bp", "bx", "dx", "ax", "cx", "sp", "ip", "flags"),
]


class FaultGuard:
    """Guards calls into loaded modules, and knows the ranges of their code."""

    def __init__(
        self, image: NativeImage, signals: SignalDispatcher, tasks: Callable[[], list[ctypes.Structure]]
    ) -> None:
        self._image = image
        self._tasks = tasks
        self._entries: dict[int, int] = {}
        self._ranges: dict[object, list[tuple[int, int]]] = {}
        self._free: Iterator[tuple[mappings.TextMapping, int]] = iter(())
        self._described: list[FrameDescription] = []
        self._count = image.variable("fault_count")
        self._seen = 0
        self._lock = fork.renew(threading.RLock())  # the handler of a signal may come here inside
        for number in _SIGNALS:
            signals.add_consumer(number, image.address("fault_signal"))
        faults.installed = faults.Guard(self.entry, self.check)

    def cover(self, owner: object, spans: list[tuple[int, int]]) -> None:
        """Take faults in these address ranges as `owner`'s; an empty list ends that."""
        with self._lock:
            self._ranges.pop(owner, None)
            if spans:
                self._ranges[owner] = spans
            everything = [span for spans in self._ranges.values() for span in spans][:RANGES]
            count = self._image.variable("fault_range_count")
            count.value = 0
            base = self._image.address("fault_ranges")
            for index, (start, end) in enumerate(everything):
                record = Range.ctypes.from_address(base + index * Range.size)
                record.start, record.end = start, end
            count.value = len(everything)

    def entry(self, address: int) -> int:
        """Code that calls the function at `address` guarded."""
        found = self._entries.get(address)
        if found is not None:
            return found
        # In this order: code that has text open for writing may link a handler, and `cover` it.
        with mappings.text_mutex, self._lock:
            if address not in self._entries:
                self._entries[address] = self._emit(address)
            return self._entries[address]

    def _emit(self, address: int) -> int:
        """mov $address,%r11 ; mov $guard,%r10 ; jmp *%r10"""
        guard = self._image.address("sandbox_guard")
        code = b"\x49\xbb" + address.to_bytes(8, "little") + b"\x49\xba" + guard.to_bytes(8, "little") + b"\x41\xff\xe2"
        page, where = self._free_entry(address)
        page.write(where, code)
        return where

    def _free_entry(self, near: int) -> tuple[mappings.TextMapping, int]:
        """Space for one entry. It is taken by one operation, so that a signal handler that interrupts takes another."""
        found = next(self._free, None)
        while found is None:
            page = mappings.allocate_text((near, near), mappings.PAGE, "fprobe-guards")
            self._described.append(describe_entrances("guards", page.base, mappings.PAGE))
            self._free = iter([(page, at) for at in range(page.base, page.base + mappings.PAGE, 32)])
            found = next(self._free, None)
        return found

    def check(self) -> None:
        """Raise the fault of the call that has just returned in this thread, if it had one."""
        if self._count.value == self._seen:
            return
        thread = threading.get_native_id()
        for task in self._tasks():
            if task.tid == thread and task.fault.pending:
                task.fault.pending = 0
                with self._lock:
                    self._seen += 1
                raise _as_exception(task.fault)


def _as_exception(fault: object) -> faults.SandboxFault:
    record = Fault.ctypes.from_buffer_copy(fault)  # the next fault of this thread overwrites it
    registers = dict(zip(_REGISTERS, record.registers, strict=True))
    ip = registers["ip"]
    stack = [symbol_table.describe(address) for address in record.calls[: record.depth]]
    in_probe = bool(record.in_probe)
    where, source = symbol_table.describe(ip), source_lines.at(ip)
    handler = bytes(record.handler.letters[: record.handler.length]).decode("utf-8", "surrogateescape")
    return faults.SandboxFault(record.signal, record.address, ip, where, registers, stack, in_probe, source, handler)
