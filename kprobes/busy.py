"""kprobe_running and its relatives: which kprobe this thread is handling.

A CPU is a thread here. FPROBE_FL_KPROBE_SHARED handlers mark their task as busy for as long as they run.
"""

from __future__ import annotations

from typing import Any

from ftrace.hit.dispatch import SHARED_BUSY
from ftrace.tracer import tracer
from kprobes.hit.runtime import kprobe_runtime
from sandbox.threads import contexts


def _task() -> Any:
    tracer()
    assert contexts.installed is not None
    return contexts.installed.task()


def kprobe_running() -> bool:
    """Whether this thread is handling a kprobe, or is kept busy. Not any more once its handlers have been left by longjmp."""
    _task()
    return bool(kprobe_runtime().image.call("kprobe_running_here"))


def kprobes_abandoned() -> int:
    """How many hits have been found, at a later one, to have been left in a handler, by longjmp: they never came to an end."""
    return int(kprobe_runtime().image.variable("kprobes_abandoned").value)


def kprobe_busy_begin() -> None:
    """Make this thread look as if it were handling a kprobe: kprobes and shared fprobes that it hits are missed."""
    task = _task()
    task.preempt += 1
    task.kprobe = SHARED_BUSY


def kprobe_busy_end() -> None:
    """The end of what `kprobe_busy_begin` began. Not nestable: the first end clears the mark, as in the kernel."""
    task = _task()
    task.kprobe = 0
    task.preempt -= 1
