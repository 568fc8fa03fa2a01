"""Faults of guarded calls: the signal is turned into a return to whoever made the call, and Python raises SandboxFault."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ftrace.hit.rethook import below, entry_ip, node_abandon
from ftrace.unwinding import FrameDescription, describe_entrances
from sandbox import faults, fork, memory, source_lines
from sandbox.native import (
    Structure,
    addressof,
    array,
    atomic_add,
    bool_,
    cast,
    global_var,
    native,
    null,
    ptr,
    struct,
    u32,
    u64,
    void,
)
from sandbox.signals import SIGBUS, SIGFPE, SIGILL, SIGSEGV, ucontext
from sandbox.symbols import symbol_table
from sandbox.tasks import Fault, Guard, Task, current

if TYPE_CHECKING:
    from ftrace.runtime import Runtime

RANGES = 512
_SHADOW_DEPTH = 32
_SI_ADDR = 16
_SIGNALS = (SIGSEGV, SIGBUS, SIGFPE, SIGILL)
_REGISTERS = [
    "r8",
    "r9",
    "r10",
    "r11",
    "r12",
    "r13",
    "r14",
    "r15",
    "di",
    "si",
    "bp",
    "bx",
    "dx",
    "ax",
    "cx",
    "sp",
    "ip",
    "flags",
]


@struct
class Range(Structure):
    """Code in which a fault ends the call and not the process."""

    start: u64
    end: u64


ranges = global_var(array[Range, 512], name="fault_ranges")
range_count = global_var(u64, 0, name="fault_range_count")
fault_count = global_var(u64, 0, name="fault_count")


@native
def is_guarded_code(ip: u64) -> bool_:
    for index in range(min(range_count, 512)):  # noqa: SIM110 (the language has no any())
        if ranges[index].start <= ip and ip < ranges[index].end:
            return True
    return False


@native
def note_calls(task: ptr[Task], fault: ptr[Fault], oldest: u64) -> void:
    """The entry addresses of the hooked calls inside the guarded one."""
    node = task.top
    fault.depth = 0
    for index in range(32):
        if cast(u64, node) <= oldest or node == task.bottom:
            return
        fault.calls[index] = entry_ip(node)
        fault.depth = index + 1
        node = below(node)


@native
def note_fault(task: ptr[Task], signal: u32, info: u64, context: ptr[ucontext], guard: ptr[Guard]) -> void:
    fault = addressof(task.fault)
    fault.signal = cast(u64, signal)
    fault.address = cast(ptr[u64], info + _SI_ADDR)[0]
    fault.in_probe = 1 if cast(u64, task.rec) != guard.rec else 0
    registers = addressof(context.r8)
    for index in range(18):
        fault.registers[index] = registers[index]
    note_calls(task, fault, guard.top)
    fault.pending = 1


@native
def leave_guard(context: ptr[ucontext], guard: ptr[Guard]) -> void:
    """Make the interrupted thread go on as if the guarded call had returned 0."""
    context.bx = guard.bx
    context.bp = guard.bp
    context.r12 = guard.r12
    context.r13 = guard.r13
    context.r14 = guard.r14
    context.r15 = guard.r15
    context.ax = 0
    context.dx = 0
    context.sp = guard.sp + 8
    context.ip = guard.parent
    context.eflags &= ~cast(u64, 0x400)


@native
def leave_kprobe(task: ptr[Task], context: ptr[ucontext]) -> void:
    """A kprobe's handler does not go on: neither does what it kept for its time."""
    if task.trap == 1:
        context.mask = task.trap_mask
    if task.trap != 0:
        task.context = task.trap_level
    task.trap = 0
    task.kprobe = 0
    task.kprobe_status = 0
    task.kprobe_child = 0
    task.stepping = 0


@native
def fault_signal(signal: u32, info: u64, context: ptr[ucontext]) -> bool_:
    """A synchronous signal: if a guarded call's own code raised it, the call is over."""
    task = current()
    if task == null or task.guard == addressof(task.guards[0]) or not is_guarded_code(context.ip):
        return False
    guard = cast(ptr[Guard], addressof(cast(ptr[Guard], task.guard)[-1]))
    note_fault(task, signal, info, context, guard)
    while cast(u64, task.top) > guard.top:
        node_abandon(task, task.top)
    task.list = 0
    task.rec = cast(u32, guard.rec)
    leave_kprobe(task, context)
    task.guard = guard
    leave_guard(context, guard)
    atomic_add(addressof(fault_count), 1, "acq_rel")
    return True


class FaultGuard:
    """Guards the calls into loaded modules, and tells which code is theirs."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._entries: dict[int, int] = {}
        self._ranges: dict[object, list[tuple[int, int]]] = {}
        self._page: memory.TextMapping | None = None
        self._used = memory.PAGE
        self._described: list[FrameDescription] = []
        self._count = runtime.image.variable("fault_count")
        self._seen = 0
        self._lock = fork.renew(threading.Lock())
        for number in _SIGNALS:
            runtime.signals.add_consumer(number, runtime.image.address("fault_signal"))
        faults.installed = faults.Guard(self.entry, self.check)

    def cover(self, owner: object, spans: list[tuple[int, int]]) -> None:
        """Take faults in these address ranges as `owner`'s; an empty list ends that."""
        with self._lock:
            self._ranges.pop(owner, None)
            if spans:
                self._ranges[owner] = spans
            everything = [span for spans in self._ranges.values() for span in spans][:RANGES]
            count = self._runtime.image.variable("fault_range_count")
            count.value = 0
            base = self._runtime.image.address("fault_ranges")
            for index, (start, end) in enumerate(everything):
                record = Range.ctypes.from_address(base + index * Range.size)
                record.start, record.end = start, end
            count.value = len(everything)

    def entry(self, address: int) -> int:
        """Code that calls the function at `address` guarded."""
        with self._lock:
            if address not in self._entries:
                self._entries[address] = self._emit(address)
            return self._entries[address]

    def _emit(self, address: int) -> int:
        """mov $address,%r11 ; mov $guard,%r10 ; jmp *%r10"""
        guard = self._runtime.image.address("sandbox_guard")
        code = b"\x49\xbb" + address.to_bytes(8, "little") + b"\x49\xba" + guard.to_bytes(8, "little") + b"\x41\xff\xe2"
        if self._page is None or self._used + 32 > memory.PAGE:
            self._page = memory.allocate_text((address, address), memory.PAGE, "fprobe-guards")
            self._described.append(describe_entrances("guards", self._page.base, memory.PAGE))
            self._used = 0
        where = self._page.base + self._used
        self._page.write(where, code)
        self._used += 32
        return where

    def check(self) -> None:
        """Raise the fault of the call that has just returned in this thread, if it had one."""
        if self._count.value == self._seen:
            return
        thread = threading.get_native_id()
        for task in self._runtime.tasks():
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
    return faults.SandboxFault(record.signal, record.address, ip, where, registers, stack, in_probe, source)
