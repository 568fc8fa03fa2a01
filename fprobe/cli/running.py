"""Running the program in a separate thread, while the main thread waits for it, for its `exit`, and for Ctrl-C.

Native code cannot be interrupted: it continues after Ctrl-C, so the process has to end while it runs. A function that is
registered with the C library cannot be removed: it is called at every exit, even after Python has been finalised. So it is
native code, which calls Python only while `Listener.interested` is set.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from fprobe.cli.interrupting import ctrl_c
from sandbox.native import *
from sandbox.native.native_image import NativeImage
from sandbox.process.once import once

STACK_SIZE = 1 << 26
"""Bytes of stack of the program's thread."""
_INTERVAL = 0.05


@struct
class Listener:
    """`interested`: 1 while `call` may be called."""

    interested: u64
    call: fn[void, i32]


listener = global_var(Listener, name="exit_listener")


@native
def program_exits(status: i32, argument: u64) -> void:
    if listener.interested != 0:
        listener.call(status)


@once
def _image() -> NativeImage:
    image = NativeImage.of(Unit("fprobe-exiting", [program_exits]))
    ctypes.CDLL(None).on_exit(ctypes.c_void_p(image.address("program_exits")), None)
    return image


@contextmanager
def exit_callback(call: Callable[[int], None]) -> Iterator[None]:
    """Inside the block, a thread that calls `exit` calls `call(status)` first.

    To finish work in Python, `call` must not return before the process ends.
    """
    record: Any = Listener
    native_listener = record.ctypes.from_address(ctypes.addressof(_image().variable("exit_listener")))
    callback = ctypes.CFUNCTYPE(None, ctypes.c_int32)(call)
    native_listener.call = ctypes.cast(callback, ctypes.c_void_p).value
    native_listener.interested = 1
    try:
        yield
    finally:
        native_listener.interested = 0


@dataclass
class Outcome:
    """How a call ended. `interrupted`: it has not returned, and is left running. `exited`: the status that it passed to
    `exit`."""

    result: Any = None
    error: BaseException | None = None
    interrupted: bool = False
    exited: int | None = None

    @property
    def returned(self) -> bool:
        """Whether there is a result."""
        return self.error is None and not self.interrupted and self.exited is None


def run(call: Callable[[], Any], poll: Callable[[], bool] = lambda: False) -> Outcome:
    """Run `call` in a separate thread until it returns, raises or exits, or Ctrl-C is pressed. The caller holds Ctrl-C.

    Meanwhile this thread calls `poll` every 50 ms, or again at once if it returned True.
    """
    if ctrl_c.pressed:
        return Outcome(interrupted=True)
    outcome = Outcome()
    done = threading.Event()
    with exit_callback(lambda status: _exited(status, outcome, done)):
        thread = Path(f"/proc/self/task/{_start(lambda: _work(call, outcome, done))}")
        while not ctrl_c.pressed:
            if done.wait(0 if poll() else _INTERVAL):
                return outcome
            if not thread.exists() and not done.is_set():
                outcome.error = RuntimeError(
                    "the program ended its thread by the system call exit, and its status is lost"
                )
                return outcome
    return outcome if done.is_set() else Outcome(interrupted=True)


def _work(call: Callable[[], Any], outcome: Outcome, done: threading.Event) -> None:
    """Make the call, in the program's thread."""
    try:
        outcome.result = call()
        _flush_c_streams()
    except BaseException as error:
        outcome.error = error
    finally:
        done.set()


def _exited(status: int, outcome: Outcome, done: threading.Event) -> NoReturn:
    """The program has called `exit`: end the wait, and keep its thread until the process ends."""
    _flush_c_streams()
    outcome.exited = status
    done.set()
    while True:
        time.sleep(3600)


def _flush_c_streams() -> None:
    """Flush the C library's streams, so that the program's output precedes ours."""
    ctypes.CDLL(None).fflush(None)


def _start(work: Callable[[], None]) -> int | None:
    """Returns the thread's native id."""
    before = threading.stack_size(STACK_SIZE)
    try:
        thread = threading.Thread(target=work, name="program", daemon=True)
        thread.start()
        return thread.native_id
    finally:
        threading.stack_size(before)
