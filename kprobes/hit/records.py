"""The records that a hit reads: a probed place, the probes on it, what is known of its instruction."""

from __future__ import annotations

from typing import TypeAlias

from sandbox.native import Structure, array, fn, i32, ptr, struct, u32, u64, void

# Child.flags
OFF = 1
"""Disabled, or GONE."""
STOPPED = 2
"""A return probe that has been unregistered: no handler is called any more."""

# Child.kind
PRE_FOREIGN = 1
"""C code: every register is kept from it, and errno."""
PRE_PYTHON = 2
"""... that runs Python, which is passed over where an asynchronous signal interrupted code."""
POST_FOREIGN = 4
POST_PYTHON = 8
RETURN = 16
"""The probe of a kretprobe: `pre` is its entry handler."""
RETURN_FOREIGN = 32
RETURN_PYTHON = 64
FAULT_FOREIGN = 256
FAULT_PYTHON = 512
PRE_PLAIN = 128
"""A native function of ours that keeps every register but rax and r11, and does not look at those of the hit."""

HIT_ACTIVE, HIT_SS, REENTER, HIT_SSDONE, POST_DUE, FAULT_DUE, FAULTING = 1, 2, 4, 8, 16, 32, 64
"""KprobeCtlblk.status. POST_DUE: the instruction was stepped, and the post handlers run off the signal's frame;
FAULT_DUE: it has faulted, and so do the fault handlers; FAULTING: those are running."""
HANDLER_FAULT_DUE = 128
"""A bit of it: the handler has faulted, and its fault_handler in Python runs off the signal's frame."""

# Record.way: how the probed instruction is carried out.
STEP, EMULATE, SYSCALL = 0, 1, 2
"""SYSCALL: it may block, not return, return twice or change what signals are blocked. So it is executed in its slot as if no
kprobe were running, and its post_handlers, if there are any, are a matter of the breakpoint behind it."""

RETURN_DATA = 8
"""Bytes of entry data of a call with kretprobes: their instances that wait for it."""

PreHandler: TypeAlias = fn[i32, u64, u64]
"""pre_handler(p, regs)"""
PostHandler: TypeAlias = fn[void, u64, u64, u64]
"""post_handler(p, regs, flags)"""
FaultHandler: TypeAlias = fn[i32, u64, u64, u64]
"""fault_handler(p, regs, trapnr)"""


@struct
class Child(Structure):
    """The native half of a kprobe; the address of one is the `p` of native and C handlers."""

    address: u64  # the probed address
    nmissed: u64
    flags: u32
    kind: u32
    pre: PreHandler
    post: PostHandler
    pre_cookie: u64  # what the handlers get as `p`
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
    action: u64  # its owner's: what its handlers find there is theirs


@struct
class ChildList(Structure):
    """The probes of a place, newest first. Immutable; swapped in whole."""

    count: u32
    foreign: u32  # some handler is not a native function: none of them runs on a signal's frame
    has_post: u32
    plain: u32  # there is one child, and its pre_handler is PRE_PLAIN
    has_fault: u32  # 1: some child has a fault_handler; 2: and one of them is no native function
    reserved: u32
    children: array[ptr[Child], 65536]


NO_REGISTER = 0xFFFF_FFFF
"""Operand.base and Operand.index: none."""


@struct
class Operand(Structure):
    """Where a word of memory is that an emulated instruction reads (sandbox.x86_64.operand)."""

    base: u32  # which word of pt_regs
    index: u32  # likewise
    scale: u32
    segment: u32
    width: u32
    reserved: u32
    displacement: u64


@struct
class Emulated(Structure):
    """An instruction that is carried out without being executed (kprobes.x86_64.emulate)."""

    operation: u32  # kprobes.x86_64.emulation.Operation, which explains the others too
    condition: u32
    register: u32  # which word of pt_regs
    width: u32
    immediate: u64
    target: u64
    operand: Operand


@struct
class Record(Structure):
    """A probed place. It stays for as long as the code there does, and so do its slot and its detour."""

    address: u64
    children: ptr[ChildList]
    length: u64
    way: u32
    original: u32  # the first byte of the instruction
    slot: u64  # where the copy with a breakpoint behind it is
    step_end: u64  # ... and that breakpoint
    boosted: u64  # the copy with a jump back behind it; 0: none
    detour: u64  # where a hit goes on whose handlers do not run on the signal's frame
    optimized: u64  # the copy behind a jump-optimised probe's detour; 0: not optimised
    return_list: u64  # the ProbeList that calls come in with whose return is hooked here
    return_stub: u64  # the return point of the stub that those return into
    emulated: Emulated


@struct
class Kretprobe(Structure):
    """The native half of a kretprobe: its handlers, and its instances in a list without locks."""

    free: u64  # index of the first free instance, plus 1, in the low half; the high half counts the changes
    instances: u64  # address of the first
    stride: u64  # bytes from one to the next
    data_size: u64
    nmissed: u64
    entry: PreHandler
    handler: PreHandler
    entry_cookie: u64  # Python: what stands for the handler; else 0
    cookie: u64
    child: ptr[Child]
    pool: u64  # the ftrace Probe that counts the instances in use, or 0: then the list does
    flags: u32
    kind: u32
    entry_text: u64  # as Child.pre_text
    handler_text: u64
    action: u64  # as Child.action


@struct
class Instance(Structure):
    """A call that a kretprobe waits for: struct kretprobe_instance. The address of one is the `ri` of handlers.

    It is laid out like a node of the shadow stack, which is the instance of a call that came in through a fast return stub
    (kprobes.fast.fast_returns): then only ret_addr, frame, rp, task and data mean anything.
    """

    ret_addr: u64  # where the call returns to; for all but the oldest hook of its frame the trampoline (KP-82)
    frame: u64  # address of the return slot
    next_free: u64
    next: u64  # the instance that was hooked before it for the same call, or 0
    reserved: array[u64, 2]
    rp: ptr[Kretprobe]
    task: u64  # native id of the thread
    data: array[u64, 512]
