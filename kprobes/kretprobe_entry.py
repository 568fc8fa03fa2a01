"""Entry of a function with a kretprobe."""

from __future__ import annotations

from ftrace.dispatch import pt_regs
from kprobes.records import Child
from sandbox.native import native, ptr, void
from sandbox.tasks import Task


@native
def enter_kretprobe(task: ptr[Task], child: ptr[Child], regs: ptr[pt_regs]) -> void:
    return
