"""The native records that a hit finds by address: a probed place, its probes, its decoded instruction.

The trap handler reads the table of records without locks.
"""

from __future__ import annotations

from typing import TypeAlias

from ftrace.hit.address_table import Table, look_up
from sandbox.native import *

# Child.flags
OFF = 1
"""Disabled, or GONE."""
STOPPED = 2
"""A kretprobe that has been unregistered: its handlers are not called any more."""

# Child.kind
PRE_FOREIGN = 1
"""C code: every register and errno are saved around the call."""
PRE_PYTHON = 2
"""C code that runs Python; not called where an asynchronous signal interrupted code."""
POST_FOREIGN = 4
POST_PYTHON = 8
RETURN = 16
"""The probe of a kretprobe: `pre` is its entry handler."""
RETURN_FOREIGN = 32
RETURN_PYTHON = 64
FAULT_FOREIGN = 256
FAULT_PYTHON = 512
PRE_CALLBACK, POST_CALLBACK, RETURN_CALLBACK, FAULT_CALLBACK = 1024, 2048, 4096, 8192
"""Beside the flag of Python: it has the parameters of C code, since it is a callback of ctypes or cffi."""
PRE_PLAIN = 128
"""A native function that preserves every register but rax and r11, and does not use the registers of the hit."""

HIT_ACTIVE, HIT_SS, REENTER, HIT_SSDONE, POST_DUE, FAULT_DUE, FAULTING = 1, 2, 4, 8, 16, 32, 64
"""KprobeCtlblk.status. POST_DUE: the instruction was stepped, and its post handlers will run outside of the signal's frame.
FAULT_DUE: it has faulted, and its fault handlers will run there. FAULTING: fault handlers are running."""
HANDLER_FAULT_DUE = 128
"""A further bit of KprobeCtlblk.status: a handler has faulted, and its Python fault_handler will run outside of the frame."""

# PlaceRecord.execution: how the probed instruction is executed.
STEP, EMULATE, SYSCALL = 0, 1, 2
"""SYSCALL: a system call may block, not return, return twice, or change the signal mask. So it is executed in its slot with no
kprobe marked as running, and the breakpoint after it calls the post_handlers."""

RETURN_DATA = 8
"""Bytes of entry data of a call with kretprobes: the list of its instances."""

PreHandler: TypeAlias = fn[i32, u64, u64]
"""pre_handler(p, regs)"""
PostHandler: TypeAlias = fn[void, u64, u64, u64]
"""post_handler(p, regs, flags)"""
FaultHandler: TypeAlias = fn[i32, u64, u64, u64]
"""fault_handler(p, regs, trapnr)"""


@struct
class Child(Structure):
    """The native half of a kprobe. Its address is the `p` of native and C handlers."""

    address: u64  # the probed address
    nmissed: u64
    flags: u32
    kind: u32
    pre: PreHandler
    post: PostHandler
    pre_cookie: u64  # the handlers' argument `p`
    post_cookie: u64
    rp: u64  # RETURN: the native half of its kretprobe
    fault: FaultHandler
    fault_cookie: u64
    start: u64  # the address of the function
    symbol: u64  # its name, " [owner]", and which handlers these are, as C strings (kprobes.hit.attribution)
    owner: u64
    pre_text: u64
    post_text: u64
    fault_text: u64
    action: u64  # kprobe.action; kprobes do not use it


@struct
class ChildList(Structure):
    """The probes of a place, newest first. Immutable; replaced as a whole."""

    count: u32
    foreign: u32  # a handler is not a native function: no handler runs on a signal's frame
    has_post: u32
    plain: u32  # there is one child, and its pre_handler is PRE_PLAIN
    has_fault: u32  # 1: a child has a fault_handler; 2: one that is not a native function
    reserved: u32
    children: array[ptr[Child], 65536]


NO_REGISTER = 0xFFFF_FFFF
"""Operand.base and Operand.index: none."""


@struct
class Operand(Structure):
    """The memory operand of an emulated instruction (sandbox.x86_64.operand)."""

    base: u32  # the number of a word of pt_regs
    index: u32  # likewise
    scale: u32
    segment: u32
    width: u32
    reserved: u32
    displacement: u64


@struct
class Emulated(Structure):
    """An emulated instruction (kprobes.hit.emulate)."""

    operation: u32  # kprobes.x86_64.emulation.Operation, which explains the other fields
    condition: u32
    register: u32  # the number of a word of pt_regs
    width: u32
    immediate: u64
    target: u64
    operand: Operand


@struct
class PlaceRecord(Structure):
    """A probed place. It lives as long as the code there, and so do its slot and its detour."""

    address: u64
    children: ptr[ChildList]
    length: u64
    execution: u32
    original: u32  # the first byte of the instruction
    slot: u64  # the copy that is followed by a breakpoint
    step_end: u64  # ... and that breakpoint
    boosted: u64  # the copy that is followed by a jump back; 0: none
    detour: u64  # where a hit continues if its handlers do not run on the signal's frame
    optimized: u64  # the copy in the detour of a jump-optimised probe; 0: not optimised
    return_list: u64  # the ProbeList of calls whose return is hooked here
    return_stub: u64  # the return point of the stub that these calls return to
    emulated: Emulated


@struct
class Kretprobe(Structure):
    """The native half of a kretprobe: its handlers, and its instances."""

    hint: u64  # index of an instance that may be free
    instances: u64  # address of the first
    stride: u64  # bytes from one to the next
    count: u64  # how many there are
    recovered: u64  # the thread that has last looked for lost ones, and Task.abandoned at that time
    data_size: u64
    nmissed: u64
    entry: PreHandler
    handler: PreHandler
    entry_cookie: u64  # identifies a Python handler; else 0
    cookie: u64
    child: ptr[Child]
    pool: u64  # the ftrace Probe that counts the instances in use; 0: the list alone limits them
    flags: u32
    kind: u32
    entry_text: u64  # as Child.pre_text
    handler_text: u64
    action: u64  # as Child.action


@struct
class Instance(Structure):
    """struct kretprobe_instance: a call in progress. Its address is the `ri` of handlers.

    It is laid out like a node of the shadow stack: for a call through a fast return stub (kprobes.fast.return_stubs), the node
    is the instance, and only ret_addr, frame, rp, task and data are valid.
    """

    ret_addr: u64  # the return address; for every hook of its frame but the oldest, the trampoline's (KP-82)
    frame: u64  # address of the return slot
    next: u64  # the instance that was hooked before it for the same call, or 0
    reserved: array[u64, 2]
    task: u64  # native id of the thread; 0: the instance is free
    rp: ptr[Kretprobe]
    made: u64  # as in a node
    data: array[u64, 512]


SLOT_SIZE = 64
"""Size and alignment of a slot, in bytes. An address in a slot is looked up by the slot's address."""

current_table = global_var(u64, 0, name="kprobe_table")


@native
def find_record(address: u64) -> ptr[PlaceRecord]:
    """The record of a probed address, or of a slot's address; null if there is none."""
    return cast(ptr[PlaceRecord], look_up(cast(ptr[Table], load(addressof(current_table), "acquire")), address))


@native
def find_slot(address: u64) -> ptr[PlaceRecord]:
    """The record whose slot contains the address; null if there is none."""
    base = address & ~cast(u64, SLOT_SIZE - 1)
    record = find_record(base)
    if record == null or record.slot != base:
        return null
    return record
