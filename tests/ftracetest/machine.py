"""The kernel that the tests find: stand-in functions and events, hit when real processes fork, run, sleep and open files.

The kernel's process events connector tells of every fork, exec and exit. What it told is carried out before the next request of
the mount is answered, so that a test which forks, and then reads the trace, finds what it has done.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sandbox
from fprobe.tracefs import tracefs
from ftrace.tracing.events import dynevent
from ftrace.tracing.files.nodes import TextFile
from ftrace.tracing.instances.as_task import as_task
from ftrace.tracing.probe_args.arguments import dentry_layout
from sandbox.symbols.table import core, symbol_table

KERNEL = "kernel"
_EVENTS = {
    "sched/sched_switch": "prev_comm=+0($arg1):string prev_pid=$arg2:s32 prev_prio=$arg3:s32 prev_state=$arg4:s64 "
    "next_comm=+0($arg5):string next_pid=$arg6:s32 next_prio=+8($stack):s32",
    "sched/sched_wakeup": "comm=+0($arg1):string pid=$arg2:s32 prio=$arg3:s32 target_cpu=$arg4:s32",
    "sched/sched_waking": "comm=+0($arg1):string pid=$arg2:s32 prio=$arg3:s32 target_cpu=$arg4:s32",
    "sched/sched_process_fork": "parent_comm=+0($arg1):string parent_pid=$arg2:s32 child_comm=+0($arg3):string "
    "child_pid=$arg4:s32",
    "sched/sched_process_exec": "filename=+0($arg1):string pid=$arg2:s32 old_pid=$arg3:s32",
    "sched/sched_process_exit": "comm=+0($arg1):string pid=$arg2:s32 prio=$arg3:s32",
    "signal/signal_generate": "sig=$arg1:s32 errno=$arg2:s32 code=$arg3:s32 comm=+0($arg4):string pid=$arg5:s32",
    "kmem/kmalloc": "call_site=$arg1:symbol ptr=$arg2:x64 bytes_req=$arg3:u64 bytes_alloc=$arg4:u64",
    "kmem/kmem_cache_free": "call_site=$arg1:symbol ptr=$arg2:x64",
    "timer/timer_start": "timer=$arg1:x64 function=$arg2:x64 expires=$arg3:u64",
    "raw_syscalls/sys_exit": "id=$arg1:s64 ret=$arg2:s64",
}
"""Events that every kernel has: their fields, of the arguments of trace_NAME()."""
_FUNCTIONS = {"kmem/kmem_cache_free": "trace_kmem_cache_free_event"}
_DENTRY_NAME, _FILE_DENTRY = 0x28, 0x18
_FORK, _EXEC, _COMM, _EXIT = 0x1, 0x2, 0x200, 0x80000000
_HEAD = 36
"""Bytes before a process event: of netlink and of the connector."""
_TICK = 0.02
_SLEEPERS = 6
"""Processes that are woken at a tick."""
_PRIO = 120
_SWAPPER = b"swapper/0"


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
        core.add(KERNEL)
        self._module = sandbox.load(here / "kernel.c", name=KERNEL, cflags=("-fno-toplevel-reorder",))
        self._other = sandbox.load("define i64 @name_show() { ret i64 0 }", name="driver")
        self._functions: dict[str, Any] = {}
        self._banner()
        dentry_layout.name, dentry_layout.of_file = _DENTRY_NAME, _FILE_DENTRY
        self._define_events()
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

    @staticmethod
    def _define_events() -> None:
        """Static events: probe events that no file lists and that nobody can delete."""
        for name, fields in _EVENTS.items():
            function = _FUNCTIONS.get(name, f"trace_{name.partition('/')[2]}")
            tracefs.write("dynamic_events", f"f:{name} {function} {fields}", append=True)
            dynevent.dyn_event_remove(dynevent.dynamic_events()[-1])

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
            self._call("opened", place, file, dentry)
            comm = (self.processes.comms.get(pid) or "?").encode()
            self._call("switched", comm, pid, _PRIO, ctypes.c_long(0), _SWAPPER, 0, _PRIO)

    def _act(self, what: str, values: tuple[Any, ...]) -> None:
        comm, pid = values[:2]
        name = comm.encode()
        with as_task(pid, comm):
            if what == "fork":
                self._call("forked", name, pid, name, values[2])
                self._call("woken", name, values[2], prio_of(values[2]))
            elif what == "exec":
                try:
                    file = os.readlink(f"/proc/{pid}/exe").encode()
                except OSError:
                    file = name
                self._call("executed", file, pid)
            else:
                self._call("exited", name, pid, _PRIO)
                self._call("switched", name, pid, _PRIO, ctypes.c_long(16), _SWAPPER, 0, _PRIO)

    def _tick(self) -> None:
        while not self._ends.wait(_TICK):
            self.processes.drain()
            self._call("ticked")
            for pid, comm in list(self.processes.comms.items())[-_SLEEPERS:]:
                self._sleeps(pid, comm)

    def _sleeps(self, pid: int, comm: str) -> None:
        """A process is woken, runs, and sleeps again."""
        name, prio = comm.encode(), prio_of(pid)
        self._call("woken", name, pid, prio)
        self._call("switched", _SWAPPER, 0, _PRIO, ctypes.c_long(0), name, pid, prio)
        with as_task(pid, comm):
            self._call("switched", name, pid, prio, ctypes.c_long(1), _SWAPPER, 0, _PRIO)

    # -- modules ------------------------------------------------------------------------------------------------

    def modules_file(self) -> TextFile:
        """A file that modprobe and rmmod of the tests write to: `+NAME`, `-NAME`."""
        return TextFile(lambda: "".join(f"{name}\n" for name in self._modules), self._change_modules)

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
