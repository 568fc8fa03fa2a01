"""The machine of the transcripts: the stand-in kernel, its memory, and `hit`."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import kprobes
import sandbox
from fprobe.tracefs import tracefs
from ftrace.tracing.events import dynevent
from ftrace.tracing.events.registry import TraceEvent, event_registry
from ftrace.tracing.instances.error_log import error_log
from ftrace.tracing.probe_args.arguments import dentry_layout
from ftrace.tracing.probe_args.layout import COMMON_SIZE, Field
from ftrace.tracing.tracefs.tree import Tracefs
from sandbox.symbols.table import symbol_table
from tests.golden import place
from tests.golden.place import BASE, SIZE

KERNEL = "kernel"
"""The module that plays the kernel proper: its symbols are printed without a module."""
_STRINGS = {
    0x50: b"ABCdef", 0x200: b"hello world", 0x280: b"one", 0x2A0: b"two two", 0x2C0: b'"q"\ttab', 0x300: b"",
    0x1000: b"x" * 4095,
}  # fmt: skip
_NOT_PROBED = ("notifier_call_chain", "kprobe_dispatcher", "preempt_schedule", "do_int3")
_TASK = (("char[16]", "comm", 16), ("pid_t", "pid", 4), ("int", "prio", 4))
_STATIC = {
    ("sched", "sched_switch"): (
        *((kind, f"prev_{name}", size) for kind, name, size in _TASK),
        ("long", "prev_state", 8),
        *((kind, f"next_{name}", size) for kind, name, size in _TASK),
    ),
    ("sched", "sched_wakeup"): (*_TASK, ("int", "target_cpu", 4)),
}
"""Tracepoints that every kernel has, with their fields: type, name and size. They are never hit."""
_FIRST_FD = 3
_NEW_MODE = 0o666
_PR_SET_NAME = 15


def memory_image() -> bytes:
    """The bytes at BASE, as FORMAT.md lists them."""
    image = bytearray(SIZE)

    def put(offset: int, form: str, *values: int) -> None:
        struct.pack_into("<" + form, image, offset, *values)

    put(0, "Qq", 0xFEDCBA9876543281, -2)
    for offset, target in ((0x10, 0x100), (0x18, 0x200), (0x20, 0x280), (0x28, 0x2A0), (0x30, 0x2C0)):
        put(offset, "Q", BASE + target)
    put(0x38, "QQ", 0, 0xDEAD0000)
    put(0x60, "8H", *(0x1000 * i + i for i in range(8)))
    put(0x70, "4i", 0, -1, 2000, -3)
    put(0x100, "I", 4242)
    put(0x108, "QQ", BASE + 0x200, BASE)
    for offset, text in _STRINGS.items():
        image[offset : offset + len(text)] = text
    return bytes(image)


def _fields(given: Sequence[tuple[str, str, int]]) -> list[Field]:
    offset, made = COMMON_SIZE, []
    for kind, name, size in given:
        made.append(Field(kind, name, offset, size, not kind.startswith("char")))
        offset += size
    return made


class Machine:
    """A freshly booted machine; there is one in a process."""

    def __init__(self) -> None:
        path = Path(__file__).with_name("kernel.c")
        self.module = sandbox.load(path, name=KERNEL, cflags=("-fcf-protection=branch", "-fno-toplevel-reorder"))
        self._driver = sandbox.load("define i64 @name_show() { ret i64 0 }", name="driver")  # one of many of that name
        for name in _NOT_PROBED:
            kprobes.kprobe_add_ksym_blacklist(self.module.symbol(name).address)
        self._open_result = ctypes.c_long.from_address(symbol_table.named("open_result")[0].address)
        dentry_layout.name, dentry_layout.of_file = 0x28, 0x48
        self._static = [TraceEvent(*names, _fields(fields), '""') for names, fields in _STATIC.items()]
        for event in self._static:
            event_registry.add(event)
        self._image = memory_image()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._map()
        self.tracefs: Tracefs = tracefs
        """The files that commands use."""

    def _map(self) -> None:
        if place.is_reserved:
            place.free()
        if not place.map_at_base(mmap.PROT_READ | mmap.PROT_WRITE):
            raise OSError(ctypes.get_errno(), f"no memory can be mapped at {BASE:#x}")

    def close(self) -> None:
        """Take the machine out of the process. Its events are disabled and deleted."""
        for event in event_registry.events():
            event.set_enabled(False)
        dynevent.release_all()
        for event in self._static:
            event_registry.remove(event)
        error_log.clear()
        dentry_layout.name = dentry_layout.of_file = None
        self._driver.unload()
        self.module.unload()
        place.free()
        place.is_reserved = place.map_at_base(0)

    def hit(self, words: list[str]) -> None:
        """`hit CALL ARGUMENTS , CALL ARGUMENTS ...`, in a thread that is called `hit`."""
        with self._task("hit") as thread:
            for call in " ".join(words).split(","):
                thread.submit(self._call, call.split()).result()

    def opened(self, path: str, flags: int) -> None:
        """A command opens a file: a system call like those of `hit`."""
        self.as_process(lambda: self._open(path, flags & ~os.O_NONBLOCK))

    def as_process(self, action: Callable[[], None]) -> None:
        """What a command of its own does, in a thread of its own."""
        with self._task("sh") as thread:
            thread.submit(action).result()

    @contextlib.contextmanager
    def _task(self, name: str) -> Iterator[ThreadPoolExecutor]:
        """A thread that plays a process. It is gone at the end, and its slot is free: the machine has one CPU."""
        tid = 0

        def begin() -> None:
            nonlocal tid
            tid = threading.get_native_id()
            self._libc.prctl(_PR_SET_NAME, name.encode())

        with ThreadPoolExecutor(1, initializer=begin) as thread:
            yield thread
        while Path(f"/proc/self/task/{tid}").exists():
            time.sleep(0.0005)

    def _call(self, words: list[str]) -> None:
        ctypes.memmove(BASE, self._image, len(self._image))
        kind, *given = words
        if kind == "open":
            self._open(given[0])
            return
        numbers = [int(number, 0) for number in given]
        if kind == "listen":
            for _ in range(numbers[2] if len(numbers) > 2 else 1):
                self._system_call(50, *numbers[:2])
        elif kind == "bind":
            for _ in range(numbers[2] if len(numbers) > 2 else 1):
                self._system_call(49, numbers[0], BASE, numbers[1])
        elif kind == "spair":
            self._system_call(53, *numbers[:3], BASE)
        elif kind == "sock":
            self._system_call(41, *numbers[:3])
        else:
            raise ValueError(f"hit {kind}: not a call of FORMAT.md")

    def _open(self, path: str, flags: int = os.O_RDONLY) -> None:
        text = ctypes.create_string_buffer(path.encode("utf-8", "surrogateescape"))
        self._open_result.value = _FIRST_FD if self._exists(path) else -errno.ENOENT
        self._system_call(257, -100, ctypes.addressof(text), flags, _NEW_MODE if flags & os.O_CREAT else 0)

    def _exists(self, path: str) -> bool:
        if path.startswith("/"):
            return Path(path).exists()
        try:
            return bool(self.tracefs.find(path))
        except OSError:
            return False

    def _system_call(self, number: int, *arguments: int) -> None:
        self.module["entry_SYSCALL_64_after_hwframe"](number, *arguments, *[0] * (4 - len(arguments)))
