"""Signals: the only module that installs handlers.

One native dispatcher per synchronous signal calls its consumers in order; a signal that no consumer claims goes to the
previous handler, or takes its default action.
"""

from __future__ import annotations

import ctypes
import os
import threading
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

from sandbox.native import *
from sandbox.threads.system_calls import block_signals
from sandbox.threads.tasks import ASYNCHRONOUS
from sandbox.x86_64.syscalls import (
    SYS_GETPID,
    SYS_GETTID,
    SYS_KILL,
    SYS_RT_SIGACTION,
    SYS_RT_SIGQUEUEINFO,
    SYS_RT_TGSIGQUEUEINFO,
    SYS_TGKILL,
)

if TYPE_CHECKING:
    from sandbox.native.native_image import NativeImage

SIGTRAP, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGSYS = 5, 11, 7, 8, 4, 31
_ON_INTERRUPTED_STACK = (SIGTRAP, SIGSYS)
"""Below these, handlers of probes run, for which an alternate stack can be too small."""
CONSUMERS = 8
_OWN = 64
"""Threads of ours that are known."""
_SI_TKILL, _SI_QUEUE = -6, -1
_SIGINFO = 128
"""Bytes of a siginfo."""
_SI_CODE = 2
"""Index of the 32-bit word of siginfo that says where a signal comes from: 0 or less is a process."""
_TRAP_TRACE, _TRAP_HWBKPT = 2, 4
_SA_SIGINFO, _SA_RESTORER, _SA_ONSTACK, _SA_NODEFER = 0x4, 0x0400_0000, 0x0800_0000, 0x4000_0000
_SA_RESETHAND, _TRAP_BIT = 0x8000_0000, 1 << 4
_SIG_DFL, _SIG_IGN = 0, 1


@struct
class ucontext(Structure):
    """struct ucontext up to the signal mask."""

    flags: u64
    link: u64
    stack_sp: u64
    stack_flags: u64
    stack_size: u64
    r8: u64
    r9: u64
    r10: u64
    r11: u64
    r12: u64
    r13: u64
    r14: u64
    r15: u64
    di: u64
    si: u64
    bp: u64
    bx: u64
    dx: u64
    ax: u64
    cx: u64
    sp: u64
    ip: u64
    eflags: u64
    cs: u64
    error: u64
    trap_number: u64
    old_mask: u64
    cr2: u64
    vectors: u64  # address of the vector registers' image
    reserved: array[u64, 8]
    mask: u64  # the signals that are blocked again when the handler returns


Consumer = fn[bool_, u32, u64, ptr[ucontext]]
"""consumer(signal, siginfo, context): whether the signal was its own."""

Action = fn[void, u32, u64, ptr[ucontext]]


@struct
class SignalRecord(Structure):
    """The dispatcher's state for one signal number. `previous` has the layout of the kernel's struct sigaction."""

    consumers: array[u64, 8]
    count: u64
    previous_handler: u64
    previous_flags: u64
    previous_restorer: u64
    previous_mask: u64


records = global_var(array[SignalRecord, 32], name="signal_records")
own_threads = global_var(array[u64, 64], name="own_threads")
"""The numbers of our own threads, from which signals that are sent to the process are kept away; 0: no further one."""
blocked_offset = global_var(u64, 0, name="trap_blocked_offset")
"""Where, from %fs, a thread has TRAP_BLOCKED if the program has blocked SIGTRAP there; 0: masks are as the program sets them."""
blocked_epoch = global_var(u64, 0, name="trap_blocked_epoch")
"""A multiple of EPOCH: the word's other bits. They differ in a word from before masks were last left as the program sets them."""
TRAP_BLOCKED, TRAP_PENDING, EPOCH = 16, 1, 256
pending_trap = global_var(u64, 0, name="trap_pending")
"""1: a SIGTRAP has been sent to the process, to a thread where the program has blocked it."""
awaiting_trap = global_var(u64, 0, name="trap_awaited_by")
"""The number of a thread that waits for SIGTRAP, in sigwait() and its like; 0: none is known."""
restorer = extern("sandbox_restorer", fn[void])


@native(inline=True)
def is_sent(info: u64) -> bool_:
    """Whether a process or a timer has sent the signal: no instruction has caused it, or will again."""
    return cast(ptr[i32], info)[_SI_CODE] <= 0


@native(inline=True)
def is_step(info: u64) -> bool_:
    """Whether a SIGTRAP says that an instruction has been stepped, or that the CPU watches it: no breakpoint is before it."""
    code = cast(ptr[i32], info)[_SI_CODE]
    return code >= _TRAP_TRACE and code <= _TRAP_HWBKPT


@native
def pass_on(signal: u32, info: u64, context: ptr[ucontext]) -> void:
    """Pass an unclaimed signal to the previous handler, or repeat the fault with the default action."""
    record = addressof(records[cast(u64, signal)])
    handler = record.previous_handler
    if handler > _SIG_IGN:
        if signal != SIGTRAP:  # as the kernel before it calls a handler; SIGTRAP stays unblocked
            own = cast(u64, 1) << (cast(u64, signal) - 1) if record.previous_flags & _SA_NODEFER == 0 else u64(0)
            block_signals((record.previous_mask | own) & ~_TRAP_BIT)
            if record.previous_flags & _SA_RESETHAND != 0:
                record.previous_handler = _SIG_DFL
        cast(Action, handler)(signal, info, context)
        return
    if is_sent(info) and record.previous_handler == _SIG_IGN:
        return
    record.previous_handler = _SIG_DFL
    syscall(SYS_RT_SIGACTION, cast(i64, signal), cast(i64, addressof(record.previous_handler)), 0, 8, 0, 0)
    if is_sent(info):
        thread = syscall(SYS_GETTID, 0, 0, 0, 0, 0, 0)
        syscall(SYS_TGKILL, syscall(SYS_GETPID, 0, 0, 0, 0, 0, 0), thread, cast(i64, signal), 0, 0, 0)
    elif signal == SIGTRAP and not is_step(info):
        context.ip -= 1


@native
def send_to_thread(thread: u64, info: u64) -> void:
    """Send a SIGTRAP anew, from the same sender; as sigqueue() does, for the kernel lets no thread say that it was kill()."""
    copied: array[u64, 16] = zeroed
    for index in range(_SIGINFO // 8):
        copied[index] = cast(ptr[u64], info)[index]
    cast(ptr[i32], addressof(copied[0]))[_SI_CODE] = _SI_QUEUE
    pid = syscall(SYS_GETPID, 0, 0, 0, 0, 0, 0)
    syscall(SYS_RT_TGSIGQUEUEINFO, pid, cast(i64, thread), SIGTRAP, cast(i64, addressof(copied[0])), 0, 0)


@native
def keep_for_process(info: u64) -> void:
    """A SIGTRAP that was sent to the process: for a thread that waits for it, or the first that will, or unblocks it."""
    atomic_exchange(addressof(pending_trap), 1)
    waiting = atomic_add(addressof(awaiting_trap), 0)  # after the store: the waiting thread does it in the other order
    if waiting != 0 and atomic_exchange(addressof(pending_trap), 0) != 0:
        send_to_thread(waiting, info)


@native
def is_kept_pending(signal: u32, info: u64, context: ptr[ucontext]) -> bool_:
    """Whether the program has blocked this signal, which was sent, in this thread. It is sent again when it is unblocked."""
    if (
        signal != SIGTRAP
        or blocked_offset == 0
        or read_fs(blocked_offset) & ~TRAP_PENDING != blocked_epoch | TRAP_BLOCKED
    ):
        return False
    thread = cast(u64, syscall(SYS_GETTID, 0, 0, 0, 0, 0, 0))
    if load(addressof(awaiting_trap), "relaxed") == thread:  # it is about to wait: then it finds the signal
        context.mask |= TRAP_BLOCKED
        block_signals(TRAP_BLOCKED)
        send_to_thread(thread, info)
    elif cast(ptr[i32], info)[_SI_CODE] == _SI_TKILL:
        cast(ptr[u64], read_fs(0) + blocked_offset)[0] |= TRAP_PENDING
    else:
        keep_for_process(info)
    return True


@native
def is_own_thread() -> bool_:
    thread = cast(u64, syscall(SYS_GETTID, 0, 0, 0, 0, 0, 0))
    is_ours = False
    for index in range(_OWN):
        if own_threads[index] == thread:
            is_ours = True
    return is_ours


@native
def leave_to_program(signal: u32, info: u64, context: ptr[ucontext]) -> void:
    """In a thread of ours: what was sent to the process is for the program's threads, or stays pending until they take it."""
    bit = cast(u64, 1) << (cast(u64, signal) - 1)
    block_signals(bit)
    context.mask |= bit
    pid = syscall(SYS_GETPID, 0, 0, 0, 0, 0, 0)
    code = cast(ptr[i32], info)[_SI_CODE]
    if code < 0 and code != _SI_TKILL:
        syscall(SYS_RT_SIGQUEUEINFO, pid, cast(i64, signal), cast(i64, info), 0, 0, 0)
    else:
        syscall(SYS_KILL, pid, cast(i64, signal), 0, 0, 0, 0)


@native
def signal_dispatch(signal: u32, info: u64, context: ptr[ucontext]) -> void:
    record = addressof(records[cast(u64, signal)])
    # A signal that was sent is no fault of the code it interrupts, and a step has no breakpoint.
    if (signal == SIGSYS or not is_sent(info)) and not (signal == SIGTRAP and is_step(info)):
        for index in range(load(addressof(record.count), "acquire")):
            if cast(Consumer, record.consumers[index])(signal, info, context):
                return
    if not is_sent(info):
        pass_on(signal, info, context)
    elif is_own_thread():
        leave_to_program(signal, info, context)
    elif not is_kept_pending(signal, info, context):
        pass_on(signal, info, context)


@native
def displaced_handlers(dispatcher: u64) -> u64:
    """The signals with consumers whose installed handler is not `dispatcher`, as bits."""
    displaced: u64 = 0
    action: array[u64, 4] = zeroed
    for signal in range(32):
        if records[signal].count != 0:
            syscall(SYS_RT_SIGACTION, signal, 0, cast(i64, addressof(action[0])), 8, 0, 0)
            if action[0] != dispatcher:
                displaced |= cast(u64, 1) << cast(u64, signal)
    return displaced


class _KernelAction(ctypes.Structure):
    """The kernel's struct sigaction."""

    _fields_ = [
        ("handler", ctypes.c_uint64), ("flags", ctypes.c_uint64), ("restorer", ctypes.c_uint64), ("mask", ctypes.c_uint64),
    ]  # fmt: skip


_libc = ctypes.CDLL(None, use_errno=True)


def _sigaction(signal: int, action: _KernelAction | None) -> _KernelAction:
    old = _KernelAction()
    new = ctypes.byref(action) if action is not None else None
    if _libc.syscall(SYS_RT_SIGACTION, signal, new, ctypes.byref(old), 8):
        raise OSError(ctypes.get_errno(), f"sigaction for signal {signal}: {os.strerror(ctypes.get_errno())}")
    return old


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, 4)


warn: Callable[[str], None] = _warn
"""How it is told that another handler has taken our place."""


_known_own: set[int] = set()
_tables: list[tuple[ctypes.Array[ctypes.c_uint64], NativeImage]] = []
"""Each with the image that it is in, which must not be unmapped before a thread of ours ends."""


def take_own_thread() -> None:
    """The caller's is a thread of ours from now on: a signal that is sent to the process is none for it."""
    _known_own.add(threading.get_native_id())
    _publish_own()


def release_own_thread() -> None:
    """It ends."""
    _known_own.discard(threading.get_native_id())
    _publish_own()


def _publish_own() -> None:
    numbers = sorted(_known_own)[:_OWN]
    for table, _ in _tables:
        table[:] = [*numbers, *[0] * (_OWN - len(numbers))]


class SignalDispatcher:
    """The installed dispatchers of a native image."""

    def __init__(self, image: NativeImage) -> None:
        self._image = image
        _tables.append(((ctypes.c_uint64 * _OWN).from_address(image.address("own_threads")), image))
        _publish_own()
        self._records = image.address("signal_records")
        self._dispatcher = image.address("signal_dispatch")
        self._restorer = image.address("sandbox_restorer")
        self._installed: set[int] = set()
        self._warned: set[int] = set()

    def add_consumer(self, signal: int, address: int, first: bool = False) -> None:
        """Ask the native function at `address` whether a `signal` is its own: after those added before, or `first` of all."""
        record = SignalRecord.ctypes.from_address(self._records + signal * SignalRecord.size)
        if record.count == CONSUMERS:
            raise OSError(28, f"signal {signal} has {CONSUMERS} consumers already")
        place = record.count
        while first and place > 0:
            record.consumers[place] = record.consumers[place - 1]
            place -= 1
        record.consumers[place] = address
        record.count += 1
        if signal not in self._installed:
            self._install(signal, record)

    def _install(self, signal: int, record: ctypes.Structure) -> None:
        old = _sigaction(signal, None)
        record.previous_handler, record.previous_flags = old.handler, old.flags
        record.previous_restorer, record.previous_mask = old.restorer, old.mask
        flags = _SA_SIGINFO | _SA_RESTORER | _SA_NODEFER | (0 if signal in _ON_INTERRUPTED_STACK else _SA_ONSTACK)
        mask = ASYNCHRONOUS if signal == SIGTRAP else 0
        _sigaction(signal, _KernelAction(self._dispatcher, flags, self._restorer, mask))
        self._installed.add(signal)

    @property
    def handled(self) -> frozenset[int]:
        """The signals whose handler is ours."""
        return frozenset(self._installed)

    def withdraw(self) -> None:
        """Give the signals back to the handlers before ours, where no other code has replaced ours.

        Nothing may be probed. A thread that has met a breakpoint has its signal before this.
        """
        for signal in sorted(self._installed):
            record = SignalRecord.ctypes.from_address(self._records + signal * SignalRecord.size)
            if _sigaction(signal, None).handler == self._dispatcher:
                previous = (
                    record.previous_handler,
                    record.previous_flags,
                    record.previous_restorer,
                    record.previous_mask,
                )
                _sigaction(signal, _KernelAction(*previous))
                self._installed.discard(signal)

    def install_again(self) -> None:
        """Install the handlers for all signals that have consumers, after `withdraw`."""
        for signal in range(32):
            record = SignalRecord.ctypes.from_address(self._records + signal * SignalRecord.size)
            if record.count and signal not in self._installed:
                self._install(signal, record)

    def check(self) -> None:
        """Warn, once for each signal, if other code has replaced our handler."""
        displaced = self._image.call("displaced_handlers", self._dispatcher)
        for signal in sorted(self._installed - self._warned) if displaced else ():
            if displaced >> signal & 1:
                self._warned.add(signal)
                warn(f"another handler for signal {signal} was installed over fprobe's")
