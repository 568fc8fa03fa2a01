"""Contexts: normal, softirq, irq and NMI, as ftrace's recursion protection distinguishes them.

irq: a signal that the thread sends to itself, and whose native handler makes the call. softirq: an explicit call. NMI: the
handler of a breakpoint.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sandbox.native import *
from sandbox.threads.signals import SIGSYS, is_sent, ucontext
from sandbox.threads.tasks import ContextCall, Task, current, task_get
from sandbox.x86_64.syscalls import SYS_GETPID, SYS_TGKILL

if TYPE_CHECKING:
    from sandbox.native.native_image import NativeImage
    from sandbox.threads.signals import SignalDispatcher

NORMAL, SOFTIRQ, IRQ, NMI = range(4)
NAMES = ("normal", "softirq", "irq", "nmi")
SIGNAL = SIGSYS
"""An asynchronous signal that is rarely used; passed on if it is not ours."""
_ARGUMENTS = 8


@native
def make_call(call: ptr[ContextCall]) -> void:
    function = cast(fn[u64, u64, u64, u64, u64, u64, u64, u64, u64], call.address)
    call.result = function(
        call.arguments[0], call.arguments[1], call.arguments[2], call.arguments[3],
        call.arguments[4], call.arguments[5], call.arguments[6], call.arguments[7],
    )  # fmt: skip


@native
def context_signal(signal: u32, info: u64, context: ptr[ucontext]) -> bool_:
    """The signal that `context_call` has raised: make the call in irq context."""
    task = current()
    if task == null or task.call == null or not is_sent(info):
        return False
    call = task.call
    task.call = null
    outer = task.context
    task.context = IRQ
    make_call(call)
    task.context = outer
    return True


@native
def context_call(level: u64, call: ptr[ContextCall]) -> void:
    """Make a call at a context level, in this thread, and return when it has."""
    task = task_get()
    if task == null:
        return
    if level == IRQ:
        task.call = call
        signal_fence()
        pid = syscall(SYS_GETPID, 0, 0, 0, 0, 0, 0)
        syscall(SYS_TGKILL, pid, cast(u64, task.tid), SIGNAL, 0, 0, 0)
        return
    outer = task.context
    task.context = cast(u32, level)
    make_call(call)
    task.context = outer


FUNCTIONS = (context_signal, context_call)


class Contexts:
    """The contexts of a running native image."""

    def __init__(self, image: NativeImage, signals: SignalDispatcher) -> None:
        self._image = image
        signals.add_consumer(SIGNAL, image.address("context_signal"))

    def task(self) -> Any:
        """The calling thread's task record."""
        return Task.ctypes.from_address(self._image.call("task_get") & (1 << 64) - 1)

    def call_in(self, level: str, address: int, arguments: Sequence[int] = ()) -> int:
        """Call the function at `address` in a context; up to eight 64-bit arguments; its result as a signed number.

        Raises ValueError for a context that is neither 'softirq' nor 'irq', or too many arguments.
        """
        if level not in ("softirq", "irq"):
            raise ValueError(f"level is {level!r}; it must be 'softirq' or 'irq'")
        if len(arguments) > _ARGUMENTS:
            raise ValueError(f"{len(arguments)} arguments given; the maximum is {_ARGUMENTS}")
        call: Any = ContextCall.ctypes()
        call.address = address
        call.arguments[: len(arguments)] = [argument & (1 << 64) - 1 for argument in arguments]
        self._image.call_and_wait("context_call", NAMES.index(level), ctypes.addressof(call))
        return ctypes.c_int64(call.result).value


installed: Contexts | None = None


def _contexts() -> Contexts:
    if installed is None:
        raise RuntimeError("contexts exist once function tracing has been started (ftrace.core.tracer.tracer())")
    return installed


def call_in(level: str, address: int, arguments: Sequence[int] = ()) -> int:
    """See `Contexts.call_in`."""
    return _contexts().call_in(level, address, arguments)


def current_context() -> str:
    """'normal', 'softirq', 'irq' or 'nmi': where the calling thread is."""
    return NAMES[_contexts().task().context] if installed else NAMES[NORMAL]


def preemptible() -> bool:
    """False in interrupt-like contexts, while a recursion lock is held, and while a kprobe is running or said to be."""
    task = _contexts().task()
    return task.context == NORMAL and not task.rec & _LOCKED and not task.preempt and not task.kprobe


_LOCKED = 0x7FE
"""Any recursion bit in Task.rec (ftrace.hit.recursion)."""
