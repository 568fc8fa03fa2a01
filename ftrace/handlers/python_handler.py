"""Python callables as handlers: their native records, and their exceptions."""

from __future__ import annotations

import atexit
import ctypes
import logging
import signal
import threading
from collections.abc import Callable
from functools import cache
from types import TracebackType
from typing import Any, NamedTuple

from ftrace.handlers.lending import Lending
from ftrace.runtime import runtime
from ftrace.x86_64.pt_regs import pt_regs
from sandbox.loading.native_image import NativeImage
from sandbox.native import Unit
from sandbox.process import fork

log = logging.getLogger("fprobe")


class HandlerErrors:
    """The exceptions of a probe's handlers: the first is kept and reported, the others are counted."""

    def __init__(self) -> None:
        self.first: BaseException | None = None
        self.count = 0

    def report(self, handler: Any, error: BaseException, traceback: TracebackType | None) -> None:
        """Record an exception; it never reaches the traced program."""
        self.count += 1
        if self.first is None:
            self.first = error.with_traceback(traceback)
            name = getattr(handler, "__qualname__", repr(handler))
            log.error("handler %s raised %s: %s", name, type(error).__name__, error, exc_info=self.first)


_making = fork.renew(threading.Lock())


def _image() -> NativeImage:
    """The native half of all Python handlers, made by the first thread that needs it."""
    with _making:
        return _made()


@cache
def _made() -> NativeImage:
    _check_interpreter()
    from ftrace.hit import python_call

    image = NativeImage.of(
        Unit("fprobe-python", [python_call.python_call, python_call.no_python_in_child, python_call.hold_off_states])
    )
    image.publish()
    fork.closely_around(_Forks(image))
    fork.at_fork(0, 0, image.address("no_python_in_child"))
    atexit.register(_switch_off, image)
    return image


def _switch_off(image: NativeImage) -> None:
    """The interpreter is about to end: skip Python handlers from now on."""
    from ftrace.hit.python_call import ENDING

    image.variable("python_switched_off").value |= ENDING


class _Forks:
    """Keeps threads from creating a thread state while the process is copied (ftrace.hit.python_call)."""

    def __init__(self, image: NativeImage) -> None:
        self._image = image

    def before(self) -> None:
        self._image.call_and_wait("hold_off_states")

    def after_in_parent(self) -> None:
        self._image.variable("thread_states_held_off").value -= 1

    def after_in_child(self) -> None:
        from ftrace.hit.python_call import FORKED

        self._image.variable("python_switched_off").value &= ~FORKED
        self._image.variable("thread_states_coming").value = 0  # no other thread exists here
        self.after_in_parent()


def _check_interpreter() -> None:
    """Raise RuntimeError where Python handlers cannot be called from native code."""
    import sysconfig

    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise RuntimeError("Python handlers need an interpreter with a GIL; use native handlers here")


def _note_blocked_signals() -> None:
    """Signals that this thread blocks do not indicate a signal handler (ftrace.hit.asynchronous)."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    runtime().image.variable("normal_signal_mask").value = sum(1 << number - 1 for number in blocked)


class PythonHandler(NamedTuple):
    """A Python handler for the hit path: code, its `fp`, and the objects that keep both alive."""

    address: int
    cookie: int
    keep: Any


def python_handler(
    handler: Callable[..., Any],
    this: Any,
    report: Callable[..., Any],
    data_size: int = 0,
    is_exit: bool = False,
    place: Callable[[int], int] = int,
) -> PythonHandler:
    """A handler that calls handler(this, entry_ip, ret_ip, regs, entry_data).

    `regs` is a pt_regs whose fields can be read and written; `entry_data` a writable memoryview of `data_size` bytes, or
    None. Both are valid only during the call (ftrace.handlers.lending). `place(entry_ip)` is the address of the probe, for the
    error of a later use. `report(handler, exception, traceback)` is called for exceptions. Raises RuntimeError where Python
    handlers cannot be called.
    """
    from ftrace.hit import python_call

    _note_blocked_signals()
    record: Any = python_call.PythonHandler.ctypes()
    lending = Lending(handler, this, place, record)
    objects = (handler, this, pt_regs.ctypes, lending.expire, report, None, KeyboardInterrupt)
    names = ("handler", "fp", "registers", "expire", "report", "none", "interrupt")
    for name, refers_to in zip(names, objects, strict=True):
        setattr(record, name, id(refers_to))
    record.data_size, record.is_exit = data_size, is_exit
    return PythonHandler(_image().address("python_call"), ctypes.addressof(record), (record, objects))
