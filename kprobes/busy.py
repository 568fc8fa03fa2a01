"""kprobe_running and its relatives: which kprobe this thread is handling.

What is per CPU in the kernel is per thread here. A thread is also marked as busy while it runs FPROBE_FL_KPROBE_SHARED
handlers.
"""

from __future__ import annotations

from typing import Any

from ftrace.core.tracer import tracer
from ftrace.hit.records import SHARED_BUSY
from kprobes.hit.runtime import kprobe_runtime
from sandbox.threads import contexts


def _task() -> Any:
    tracer()
    assert contexts.installed is not None
    return contexts.installed.task()


def kprobe_running() -> bool:
    """Whether this thread is handling a kprobe, or is marked as busy. False after a longjmp out of the handler."""
    _task()
    return bool(kprobe_runtime().image.call("kprobe_running_here"))


def kprobes_abandoned() -> int:
    """How many hits never ended because their handler was left by longjmp. Each is noticed at a later hit."""
    return int(kprobe_runtime().image.variable("kprobes_abandoned").value)


def kprobe_busy_begin() -> None:
    """Mark this thread as handling a kprobe: its hits of kprobes and of shared fprobes are missed."""
    task = _task()
    task.preempt += 1
    task.kprobe = SHARED_BUSY


def kprobe_busy_end() -> None:
    """Remove the mark of `kprobe_busy_begin`. The two do not nest: the first end removes the mark, as in the kernel."""
    task = _task()
    task.kprobe = 0
    task.preempt -= 1
