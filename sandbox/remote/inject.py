"""Running Python source in another process, on a thread that is made for it. A process without CPython gets one.

1. A thread of the process is stopped, any; the others continue.
2. It makes three system calls for us, mmap, mprotect and clone, at an instruction that exists. Then it continues where it was:
   nothing of the program's text or stack was written. If its tracer is killed, it does so alone (`sandbox.x86_64.signal_frame`).
3. The new thread calls pthread_create, and ends. The pthread waits for the GIL and runs the source
   (`sandbox.x86_64.remote_thread`); or it starts an interpreter first (`sandbox.x86_64.remote_interpreter`).

Python 3.14's own way, sys.remote_exec, is not used: it waits for the main thread's next bytecode, which may never come.

The thread is stopped by a process made for that: if this one is killed meanwhile, the stopped thread still continues.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import signal
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from sandbox.remote import interpreter, storage
from sandbox.remote.interpreter import Interpreter
from sandbox.remote.launched import HeldProgram
from sandbox.remote.process import RemoteProcess
from sandbox.remote.ptrace import StoppedThread, best_thread
from sandbox.remote.refusals import Refused, check, not_permitted
from sandbox.remote.sleeping import Sleep
from sandbox.remote.spare import Spare
from sandbox.remote.spare import find as find_spare
from sandbox.x86_64 import remote_interpreter, remote_thread, signal_frame
from sandbox.x86_64.remote_thread import PAGE, SYSCALL_RETURN, Places, Room
from sandbox.x86_64.syscalls import SYS_CLONE, SYS_MMAP, SYS_MPROTECT, SYS_MUNMAP

_READ_WRITE, _READ_EXECUTE = 3, 5
_PRIVATE_ANONYMOUS = 0x22
_CLONE = 0x100 | 0x200 | 0x400 | 0x800 | 0x10000 | 0x40000 | 0x80000 | 0x200000 | 0x1000000
"""Flags of a thread, with VM, FS, FILES, SIGHAND, THREAD, SYSVSEM, SETTLS, CHILD_CLEARTID and CHILD_SETTID."""
_SANITIZERS = ("libtsan.so", "liblsan.so", "libclang_rt.tsan")
"""Libraries with functions that each thread needs the sanitizer to have begun for."""
_TRIES = 5
_ROUNDS, _BETWEEN = 5, 0.1
"""How often it is tried while no thread stops, and seconds in between."""
_PATIENCE = 20_000
"""How often the new thread yields the processor, at its end, until the stopped one is released."""
_UNKNOWN = (errno.EBUSY, errno.ESRCH)
"""Errors after which it is not known whether a system call was made."""
_UNCERTAIN, _UNANSWERED = errno.EINPROGRESS, errno.ECHILD
"""What is answered then; and where nothing was."""
_VERSION = re.compile(r"python3\.(\d+)")
_OLDEST = 10
_ANSWER = struct.Struct("<iQ")
_FRAME = 3200
"""Bytes of a signal's frame with the registers of AVX-512; with those of AMX in use, it is larger."""
_SIGNAL = 1 << 15
"""Bytes of a stack that a signal and its handler may use."""
CONTEXT = "0x" + "feedface" * 2
"""In the source: the address of the context, in whose part STATUS it reports."""


class Brought(NamedTuple):
    """An interpreter that is brought along, and where its data are after the source."""

    interpreter: Interpreter
    at: Mapping[str, int]


@dataclass
class Prepared:
    """All that is written into the process, and where; made before a thread is stopped."""

    process: RemoteProcess
    addresses: Mapping[str, int]
    layout: storage.Layout
    tls: bytes
    source: bytes
    brought: Brought | None = None
    """The interpreter, where the process has none."""
    spare: Spare | None = None
    """Unused memory for the way back during the first system call."""
    sleeps: Mapping[int, Sleep] = field(default_factory=dict)
    """What its threads slept in when this was made."""

    @property
    def room(self) -> Room:
        """The parts of the mapping."""
        return Room(len(self.source), len(self.tls), self.layout.pthread)

    @property
    def code(self) -> bytes:
        """The code of the new threads."""
        places = Places(self.room.pointer + self.layout.thread_id, self.layout.specific)
        if self.brought is None:
            return remote_thread.code(self.addresses, self.room, places)
        offsets = remote_interpreter.OFFSETS[self.brought.interpreter.minor]
        return remote_interpreter.code(self.addresses, self.brought.at, offsets, self.room, places)


class Running:
    """Source that runs in a process. `base`: address of its mapping there, which it unmaps at its end."""

    def __init__(self, prepared: Prepared, base: int) -> None:
        self._process = prepared.process
        self.is_brought = prepared.brought is not None
        """Whether the process has had no interpreter."""
        self.context = base + prepared.room.context

    def status(self) -> bytes | None:
        """What the source has reported (`sandbox.x86_64.remote_thread.STATUS`); None if it is over, or the process has ended."""
        try:
            if self._process.read(self.context + remote_thread.DONE, 1) != b"\0":
                return None
            found = self._process.read(self.context + remote_thread.STATUS, remote_thread.STATUS_SIZE)
        except OSError:
            return None
        if found[:1] not in (b"", b"\0"):
            with contextlib.suppress(OSError):
                self._process.write(self.context + remote_thread.STATUS, b"\0")  # taken
        return found or None

    def pthread_error(self) -> int:
        """The errno of pthread_create; 0 as long as it has none."""
        with contextlib.suppress(OSError, struct.error):
            return int(struct.unpack("<I", self._process.read(self.context + remote_thread.CREATED, 4))[0])
        return 0

    def cancel(self) -> None:
        """Do not run the source if it has not begun."""
        with contextlib.suppress(OSError):
            self._process.write(self.context + remote_thread.CANCELLED, b"\1")

    def close(self) -> None:
        """Close the process's memory."""
        self._process.close()


def prepare(pid: int, source: str, first: str = "", *, is_held: bool = False) -> Prepared:
    """Find all that is needed in process `pid`, which nothing has touched after this. Raises Refused.

    `first`: what an interpreter that is brought along runs before. `is_held`: this process has started it, and it is stopped.
    """
    for _ in range(_TRIES):
        try:
            if not is_held:
                check(pid)
            return _prepared(pid, source, first)
        except Refused:
            raise
        except OSError:  # a library was unloaded while it was looked at, or another program was executed
            time.sleep(0.01)
    raise Refused(f"the libraries of process {pid} change faster than they can be looked at; try again", errno.EAGAIN)


def _check_sanitizers(process: RemoteProcess) -> None:
    """Raise Refused where a thread that the sanitizer's runtime has not begun would end the program."""
    program = Path(f"/proc/{process.pid}/exe").readlink().name
    for image in process.each_image(lambda name: name == program or name.startswith(_SANITIZERS)):
        if image.path.rpartition("/")[2].startswith(_SANITIZERS) or image.addresses(["__tsan_init"]):
            sentence = "ThreadSanitizer or LeakSanitizer, which end a program in which threads of others run"
            raise Refused(f"process {process.pid} has {sentence}; build it without -fsanitize=thread and leak")


def _prepared(pid: int, source: str, first: str) -> Prepared:
    process = RemoteProcess(pid)
    try:
        sleeps = {thread: Sleep(thread) for thread in process.threads}
        libc = process.image(lambda name: name.startswith(("libc.so", "libc-2")))
        loader = process.image(lambda name: name.startswith(("ld-linux", "ld-2")))
        if libc is None or loader is None:
            raise Refused(f"process {pid} does not use glibc: it is statically linked, or has another C library (musl)")
        _check_sanitizers(process)
        wanted = (*remote_thread.FUNCTIONS, remote_thread.KEYS, *remote_interpreter.FUNCTIONS)
        addresses = libc.addresses((*wanted, *storage.DESCRIPTIONS))
        missing = [name for name in wanted if name not in addresses]
        if missing:
            raise Refused(f"the C library of process {pid} is older than glibc 2.34: it does not export {missing[0]}")
        layout = storage.layout_of(process, addresses)
        tls = storage.image_of(process, loader, layout)
        _ = (
            process.system_call,
            process.restorer,
        )  # which are looked for in the C library's text: not while a thread stands
        python, brought, contents = _python(process), None, source.encode() + b"\0"
        if not python:
            found = interpreter.find_for(pid)
            data = remote_interpreter.data(
                first.encode() + contents, os.fsencode(found.library), os.fsencode(found.home)
            )
            brought, contents = Brought(found, data.at), data.contents
    except BaseException:
        process.close()
        raise
    return Prepared(
        process, {**addresses, **python}, layout, tls, contents, brought, find_spare(process, _FRAME), sleeps
    )


def _python(process: RemoteProcess) -> dict[str, int]:
    """The addresses of the functions of its CPython; none if it has none. Raises Refused if that is not supported."""
    found = process.exporting(remote_thread.PYTHON[0], lambda name: name.startswith(("libpython", "python")))
    if found is None:
        return {}
    image = found[0]
    version = _VERSION.search(image.path)
    if version and int(version[1]) < _OLDEST:
        raise Refused(f"process {process.pid} is Python 3.{version[1]}; the oldest that is supported is 3.{_OLDEST}")
    return image.addresses(remote_thread.PYTHON)


def start(prepared: Prepared, pidfd: int) -> Running:
    """Start the source. Raises Refused if the process cannot be traced, or has no memory for it.

    `pidfd`: of the process, from before `prepare`: if it has ended, its number may be another's.
    On a busy machine no thread may get to run within 100 ms. Then nothing was stopped, and it is tried again.
    """
    for _ in range(_ROUNDS):
        number, base = _answered(prepared, pidfd)
        if number != errno.EBUSY:
            break
        time.sleep(_BETWEEN)
    if number:
        raise _refusal(prepared.process.pid, number)
    return Running(prepared, base)


def _answered(prepared: Prepared, pidfd: int) -> tuple[int, int]:
    """What `_tried` returns in a process of its own: a thread that has not stopped is released only by the end of its tracer."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setsid()
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            with contextlib.suppress(OSError):
                os.nice(-20)
            os.write(writer, _ANSWER.pack(*_tried(prepared, pidfd)))
        finally:
            os._exit(0)
    os.close(writer)
    answer = b""
    while len(answer) < _ANSWER.size and (more := os.read(reader, _ANSWER.size)):
        answer += more
    os.close(reader)
    os.waitpid(child, 0)
    return _ANSWER.unpack(answer) if len(answer) == _ANSWER.size else (_UNANSWERED, 0)


def start_held(prepared: Prepared, pidfd: int, program: HeldProgram) -> Running:
    """Start the source in a program that stays stopped. Raises Refused."""
    try:
        return Running(prepared, _made_by(prepared, program.thread(prepared.process.system_call), pidfd))
    except OSError as error:
        raise _refusal(prepared.process.pid, error.errno or errno.EFAULT) from None


def _refusal(pid: int, number: int) -> Refused:
    if number == errno.EPERM:
        try:
            check(pid)  # another tracer may have come meanwhile
        except Refused as refused:
            return refused
        return not_permitted(pid)
    if number == errno.ESRCH:
        return Refused(_ended(pid), number)
    if number == errno.EBUSY:
        return Refused(
            f"no thread of process {pid} stopped within 100 ms, at {_ROUNDS} tries; it was left as it is", number
        )
    if number == _UNCERTAIN:
        return Refused(f"process {pid} could not be controlled any more while it started a thread for fprobe", number)
    if number == _UNANSWERED:
        return Refused(f"the part of fprobe that stops process {pid} was ended; the process goes on. Try again", number)
    if number == errno.EFAULT:
        return Refused(f"process {pid} has changed its memory while a thread was started there; try again", number)
    return Refused(f"process {pid} could not start a thread: {os.strerror(number)}", number)


def _ended(pid: int) -> str:
    return f"process {pid} has ended, or has executed another program; if it is there, try again"


def _tried(prepared: Prepared, pidfd: int) -> tuple[int, int]:
    """An errno, or 0 and the address of the mapping. A thread that ends meanwhile, or does not stop, is replaced by another."""
    number = errno.ESRCH
    try:
        threads = best_thread(prepared.process.pid, prepared.process.threads)
    except FileNotFoundError:  # it has ended, and its parent has taken notice
        return number, 0
    for thread in threads[:_TRIES]:
        try:
            stopped = StoppedThread(thread, prepared.process.system_call, prepared.sleeps.get(thread))
            return 0, _made_by(prepared, stopped, pidfd)
        except OSError as error:
            number = error.errno or errno.EFAULT
            if number not in (errno.ESRCH, errno.EBUSY):
                break
    return number, 0


def _made_by(prepared: Prepared, thread: StoppedThread, pidfd: int) -> int:
    """Let a thread of the process make the new one. Returns the address of the mapping. Raises OSError."""
    process, room, code = prepared.process, prepared.room, prepared.code
    thread_id = room.pointer + prepared.layout.thread_id
    with thread as stopped:
        is_over = bool(select.select([pidfd], [], [], 0)[0])  # the thread is another process's
        if is_over or process.read(process.system_call, len(SYSCALL_RETURN)) != SYSCALL_RETURN:
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        way_back = _WayBack(prepared, stopped)
        base = stopped.system_call(SYS_MMAP, 0, room.whole, _READ_WRITE, _PRIVATE_ANONYMOUS, -1, 0)
        way_back.write(base + room.way_back)
        at, stack = base + thread_id, base + room.stack
        pointer, context = base + room.pointer, base + room.context
        try:
            guards = storage.guards(process, stopped.registers.fs_base)
            block = storage.block_of(prepared.layout, base + room.pointer, guards)
            process.write(base, code)
            source = prepared.source.replace(CONTEXT.encode(), f"{base + room.context:#018x}".encode())
            process.write(base + room.context + remote_thread.PATIENCE, struct.pack("<I", _PATIENCE))
            process.write(base + room.context + remote_thread.SOURCE, source)
            process.write(base + room.storage, prepared.tls + block)
            process.write(base + room.stack, struct.pack("<Q", base))
            stopped.system_call(SYS_MPROTECT, base, PAGE, _READ_EXECUTE)
            stopped.system_call(SYS_CLONE, _CLONE, stack, 0, at, pointer, r12=context)
        except OSError as error:
            if error.errno in _UNKNOWN:  # the new thread may be running
                raise OSError(_UNCERTAIN, os.strerror(_UNCERTAIN)) from None
            way_back.write_first()
            stopped.system_call(SYS_MUNMAP, base, room.whole)
            raise
    with contextlib.suppress(OSError):  # it has ended
        way_back.restore()
        process.write(base + room.context + remote_thread.RELEASED, struct.pack("<I", 1))
    return base


class _WayBack:
    """The frame by which a stopped thread continues alone if this process is killed.

    It is where a signal's would be if the thread's stack is one that a signal can use: one may come then. Else it is in `spare`
    memory: a stack may be as small as a goroutine needs.
    """

    def __init__(self, prepared: Prepared, thread: StoppedThread) -> None:
        self._process, self._thread, self._spare = prepared.process, thread, prepared.spare
        self._vector = signal_frame.in_use(thread.vector_state())
        self._needed = signal_frame.size(len(self._vector))
        below = thread.below_stack(self._needed)
        is_spare = self._spare is not None and self._needed <= _FRAME
        self._is_on_stack = not is_spare or self._process.is_stack(below - _SIGNAL, thread.registers.rsp)
        self._first = below if self._is_on_stack or self._spare is None else self._spare.address
        self.write_first()

    def write_first(self) -> None:
        """Use it where it does not need our mapping. Raises OSError."""
        self._write(self._first)

    def write(self, at: int) -> None:
        """Use that address in our mapping from now on, unless it is on the stack: a signal's frame fits below."""
        if not self._is_on_stack:
            self._write(at)

    def _write(self, at: int) -> None:
        if self._process.restorer is not None:  # else the C library was changed
            self._process.write(at, self._thread.frame(at, self._process.restorer, self._vector))
            self._thread.stack = at

    def restore(self) -> None:
        """The thread does not need it any more. Raises OSError."""
        if not self._is_on_stack and self._spare is not None:
            self._process.write(self._spare.address, self._spare.contents)


def wait(running: Running, seconds: float, is_interrupted: Callable[[], bool]) -> bytes | None:
    """The first report of the source; empty if there is none within that time, None if the source has ended before."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not is_interrupted():
        found = running.status()
        if found is None or found[:1] != b"\0" or running.pthread_error():
            return found
        time.sleep(0.002)
    return b""
