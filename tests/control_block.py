"""What a thread keeps for its kprobes."""

from __future__ import annotations

import ctypes
from typing import Any

from kprobes.hit.control import KprobeCtlblk
from sandbox.threads.tasks import Task


def control_block(task: Any) -> Any:
    """The KprobeCtlblk of a thread's record."""
    return KprobeCtlblk.ctypes.from_address(ctypes.addressof(task) + Task.offset("kprobe_ctlblk"))


def marks_of(task: Any, fields: tuple[str, ...], control: tuple[str, ...]) -> dict[str, int]:
    """What these fields of the record, and of its control block, hold."""
    block = control_block(task)
    return {name: getattr(task, name) for name in fields} | {name: getattr(block, name) for name in control}
