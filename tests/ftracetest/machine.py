"""The kernel that the tests find: stand-in functions and events, hit when real processes fork, run, sleep and open files.

The kernel's process events connector tells of every fork, exec and exit. What it told is carried out before the next request of
the mount is answered, so that a test which forks, and then reads the trace, finds what it has done.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sandbox
from ftrace.tracing.events.registry import event_registry
from ftrace.tracing.files.nodes import TextFile
from ftrace.tracing.instances.as_task import as_task
from ftrace.tracing.probe_args.arguments import dentry_layout
from ftrace.tracing.tracers.follow_fork import fork_following
from sandbox.symbols.table import core, symbol_table
from tests.ftracetest.events import Events

KERNEL = "kernel"
_DENTRY_NAME, _FILE_DENTRY = 0x28, 0x18
_FORK, _EXEC, _COMM, _EXIT = 0x1, 0x2, 0x200, 0x80000000
_HEAD = 36
"""Bytes before a process event: of netlink and of the connector."""
_TICK = 0.004
_EACH = 5
"""Ticks between two wakings of sleepers."""
_SLEEPERS = 6
"""Processes that are woken at a tick."""
_PRIO = 120
_SWAPPER = "swapper/0"


class Processes:
    """What the connector tells of the processes that descend from `first`."""

    def __init__(self, act: Callable[[str, tuple[Any, ...]], None]) -> None:
        self._act = act
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, 11)
        self._socket.setsockopt(socket.SOL_SOCKET, 33, 1 << 24)  # SO_RCVBUFFORCE
        self._socket.bind((0, 1))
        listen = struct.pack("<IIIIHHI", 1, 1, 0, 0, 4, 0, 1)
        self._socket.send(struct.pack("<IHHII", 16 + len(listen), 3, 0, 0, 0) + listen)
        self.comms: dict[int, str] = {}
        """The names of the live ones."""
        self._lock = threading.RLock()

    def follow(self, first: int) -> None:
        """Begin with a process."""
        self.comms[first] = comm_of(first)

    def drain(self) -> None:
        """Carry out what has happened."""
        with self._lock:
            while True:
                try:
                    data = self._socket.recv(4096)
                except BlockingIOError:
                    return
                except OSError:  # some were lost
                    continue
                what = struct.unpack_from("<I", data, _HEAD)[0]
                self._happened(what, struct.unpack_from("<6I", data, _HEAD + 16))

    def _happened(self, what: int, ids: tuple[int, ...]) -> None:
        if what == _FORK and ids[1] in self.comms and ids[2] == ids[3]:
            self.comms[ids[3]] = self.comms[ids[1]]
            self._act("fork", (self.comms[ids[1]], ids[1], ids[3]))
        elif ids[1] in self.comms and ids[0] == ids[1]:
            pid = ids[1]
            if what in (_EXEC, _COMM):
                self.comms[pid] = comm_of(pid) or self.comms[pid]
            if what == _EXEC:
                self._act("exec", (self.comms[pid], pid))
            elif what == _EXIT:
                self._act("exit", (self.comms.pop(pid), pid))


def comm_of(pid: int) -> str:
    """The name of a process; '' if it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text("utf-8", "surrogateescape").removesuffix("\n")
    except OSError:
        return ""


def prio_of(pid: int) -> int:
    """The priority of a process, as the scheduler counts."""
    try:
        return _PRIO + os.getpriority(os.PRIO_PROCESS, pid)
    except OSError:
        return _PRIO


class Machine:
    """The stand-in kernel; there is one in a process."""

    def __init__(self) -> None:
        here = Path(__file__).parent
        core.update((KERNEL, "driver"))
        self._module = sandbox.load(here / "kernel.c", name=KERNEL, cflags=("-fno-toplevel-reorder",))
        self._other = sandbox.load("define i64 @name_show() { ret i64 0 }", name="driver")
        self._functions: dict[str, Any] = {}
        self._banner()
        dentry_layout.name, dentry_layout.of_file = _DENTRY_NAME, _FILE_DENTRY
        self._events = Events(self._call)
        self._named: set[tuple[str, str]] = set()
        self.processes = Processes(self._act)
        self._modules: dict[str, Any] = {}
        self._ends = threading.Event()
        self._clock = threading.Thread(target=self._tick, name="kworker/0:1", daemon=True)

    def start(self, first: int) -> None:
        """Begin, with the process of the tests."""
        self.processes.follow(first)
        self._clock.start()

    def _banner(self) -> None:
        text = Path("/proc/version").read_bytes() + b"\0"
        ctypes.memmove(symbol_table.lookup("linux_proc_banner"), text, min(len(text), 512))

    def _call(self, function: str, *arguments: Any) -> None:
        found = self._functions.get(function)
        if found is None:
            address = symbol_table.lookup(function)
            found = self._functions[function] = ctypes.CFUNCTYPE(ctypes.c_long)(address)
        found(*arguments)

    # -- what happens -------------------------------------------------------------------------------------------

    def before_request(self, path: str, pid: int) -> None:
        """A process is about to open, read or write a file of the tree."""
        self.processes.drain()
        if pid == 0 or path.startswith("fprobe"):
            return
        name = ctypes.create_string_buffer(path.rpartition("/")[2].encode() or b"/")
        dentry = (ctypes.c_uint64 * 8)()
        dentry[_DENTRY_NAME // 8] = ctypes.addressof(name)
        file = (ctypes.c_uint64 * 6)()
        file[_FILE_DENTRY // 8] = ctypes.addressof(dentry)
        place = (ctypes.c_uint64 * 2)(0, ctypes.addressof(dentry))
        with as_task(pid, self.processes.comms.get(pid) or comm_of(pid)):
            self._create_directories()
            self._call("opened", place, file, dentry)
            self._events.fire("kmalloc", "vfs_open", 40, 64)
            self._events.fire("kmem_cache_free", "putname")
            self._events.fire("kmem_cache_free", "dput")
            self._events.fire("sys_exit", 257, 3)
            self._switch(self.processes.comms.get(pid) or "?", pid, _PRIO, 0, _SWAPPER, 0, _PRIO)

    def _create_directories(self) -> None:
        """The directories of the events that the last request has made."""
        names = {(event.group, event.name) for event in event_registry.events()}
        new, self._named = names - self._named, names
        for _, name in new:
            self._call("tracefs_create_dir", ctypes.create_string_buffer(name.encode()), None)

    def _switch(self, *values: Any) -> None:
        self._call("schedule")
        self._events.fire("sched_switch", *values)

    def _act(self, what: str, values: tuple[Any, ...]) -> None:
        comm, pid = values[:2]
        with as_task(pid, comm):
            if what == "fork":
                self._fork(comm, pid, values[2])
            elif what == "exec":
                self._execute(comm, pid)
            else:
                self._exit(comm, pid)

    def _fork(self, comm: str, pid: int, child: int) -> None:
        self._call("kernel_clone", None)
        if fork_following().is_following:
            fork_following().made(pid, child)
        self._events.fire("sched_process_fork", comm, pid, comm, child)
        self._events.fire("kmalloc", "kernel_clone", 512, 512)
        self._wake(comm, child, _PRIO)

    def _execute(self, comm: str, pid: int) -> None:
        try:
            file = str(Path(f"/proc/{pid}/exe").readlink())
        except OSError:
            file = f"/usr/bin/{comm}"
        self._call("do_execveat_common", -100, None, None)
        self._events.fire("sched_process_exec", file, pid, pid)

    def _exit(self, comm: str, pid: int) -> None:
        self._call("do_exit", 0)
        self._events.fire("sched_process_exit", comm, pid, _PRIO)
        self._events.fire("signal_generate", 17, 0, 1, comm, pid)
        self._switch(comm, pid, _PRIO, 16, _SWAPPER, 0, _PRIO)
        if fork_following().is_following:
            fork_following().ended(pid)

    def _wake(self, comm: str, pid: int, prio: int) -> None:
        self._events.fire("sched_waking", comm, pid, prio, 0)
        self._events.fire("sched_wakeup", comm, pid, prio, 0)

    def _tick(self) -> None:
        for count in itertools.count():
            if self._ends.wait(_TICK):
                return
            self.processes.drain()
            self._call("sched_tick", 1)
            self._events.fire("timer_start", 0x1000, 0x2000, 4294967295)
            self._call("schedule")
            for pid, comm in [] if count % _EACH else list(self.processes.comms.items())[-_SLEEPERS:]:
                self._sleeps(pid, comm)

    def _sleeps(self, pid: int, comm: str) -> None:
        """A process is woken, runs, and sleeps again."""
        prio = prio_of(pid)
        self._wake(comm, pid, prio)
        self._switch(_SWAPPER, 0, _PRIO, 0, comm, pid, prio)
        with as_task(pid, comm):
            self._switch(comm, pid, prio, 1, _SWAPPER, 0, _PRIO)

    # -- modules ------------------------------------------------------------------------------------------------

    def modules_file(self) -> TextFile:
        """A file that modprobe and rmmod of the tests write to: `+NAME`, `-NAME`."""
        return TextFile(lambda: "".join(f"{name}\n" for name in self._modules), self._change_modules)

    def interrupts_file(self) -> TextFile:
        """/proc/interrupts, which cannot be written."""
        return TextFile(lambda: "", self._refuse)

    def _refuse(self, _text: str) -> None:
        self._call("proc_reg_write", None, None, 1, None)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _change_modules(self, text: str) -> None:
        sign, name = text[:1], text[1:].strip().replace("-", "_")
        if sign == "-":
            if name not in self._modules:
                raise OSError(2, f"no module {name}")
            self._modules.pop(name).unload()
            return
        source = Path(__file__).with_name(f"{name}.c")
        if name not in self._modules:
            self._modules[name] = module = sandbox.load(source, name=name)
            module["module_init"]()

    def end(self) -> None:
        """Stop the clock."""
        self._ends.set()
        self._clock.join()
        time.sleep(0)
