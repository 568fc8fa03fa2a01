"""Python callables as handlers: their native records, their exceptions, and the arguments that they are lent.

Registers and entry data are valid for one call, and expired if the handler keeps them.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import logging
import signal
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple

from ftrace.core.runtime import runtime
from ftrace.core.summary import table
from ftrace.hit.x86_64.pt_regs import pt_regs
from sandbox.images.process_text import symbol_at
from sandbox.native import Unit
from sandbox.native.native_image import NativeImage
from sandbox.process import fork
from sandbox.process.once import once

log = logging.getLogger("fprobe")


class HandlerErrors:
    """The exceptions of a probe's handlers: the first is kept and reported, the others are counted."""

    def __init__(self) -> None:
        self.first: BaseException | None = None
        self.count = 0

    def __repr__(self) -> str:
        return f"<HandlerErrors: {self.count:,}, the first {self.first!r}>" if self.count else "<HandlerErrors: none>"

    def report(self, handler: Any, error: BaseException, traceback: TracebackType | None) -> None:
        """Record an exception; it never reaches the traced program."""
        self.count += 1
        if self.first is None:
            self.first = error.with_traceback(traceback)
            name = getattr(handler, "__qualname__", repr(handler))
            log.error("handler %s raised %s: %s", name, type(error).__name__, error, exc_info=self.first)


_LEFT = ctypes.create_string_buffer(
    b"fprobe: a Python handler has been left by longjmp: what it held, such as locks, stays so, and no other Python handler is "
    b"called in this thread. Use a native handler where a signal's handler or a C function jumps out.\n"
)
_LEFT_UNKNOWN = ctypes.create_string_buffer(
    b"fprobe: a Python handler has been left by longjmp: Python's state in this thread is undefined, and it may still hold the "
    b"GIL. No other Python handler is called there. Use a native handler where a signal's handler or a C function jumps out.\n"
)
"""Where this interpreter's state cannot be put back."""
_STATE_WORDS = 40
"""Words at the beginning of a PyThreadState, among which is its thread."""
_making = fork.renew(threading.Lock())


def _image() -> NativeImage:
    """The native half of all Python handlers, made by the first thread that needs it."""
    with _making:
        return _made()


@once
def _made() -> NativeImage:
    _check_interpreter()
    from ftrace.hit import interpreters, python_call, python_objects, python_states

    called = (
        python_call.python_call,
        python_call.no_python_in_child,
        python_call.hold_off_states,
        interpreters.in_sub_interpreter,
        python_states.put_back,
        *python_objects.FUNCTIONS,
    )
    image = NativeImage.of(Unit("fprobe-python", called), runtime().image)
    image.variable("task_offset").value = runtime().key.offset
    image.variable("python_split_counts").value = int(_is_free_threaded_build())
    _undo_left_handlers(image)
    _tell_interpreters_apart(image)
    image.publish()
    fork.innermost(_Forks(image))
    fork.at_fork(0, 0, image.address("no_python_in_child"))
    atexit.register(_switch_off, image)
    return image


def _undo_left_handlers(image: NativeImage) -> None:
    """Set the variables of ftrace.hit.python_states and python_left."""
    from ftrace.core.handlers import thread_states
    from ftrace.hit.python_states import StateLayout

    known, hits = thread_states.is_known(), runtime().image
    if known:
        image.variable("python_running_state").value = thread_states.address_of_running_state()
        thread_states.fill(StateLayout.ctypes.from_address(image.address("python_state_layout")))
    text = _LEFT if known else _LEFT_UNKNOWN
    hits.variable("python_left_text").value = ctypes.addressof(text)
    hits.variable("python_left_length").value = len(text.raw) - 1
    hits.variable("python_put_back").value = image.address("put_back")


def _tell_interpreters_apart(image: NativeImage) -> None:
    """Set the variables of ftrace.hit.interpreters, and have hits use it."""
    api = ctypes.PyDLL(None)
    api.PyInterpreterState_Main.restype = api.PyThreadState_Get.restype = ctypes.c_void_p
    image.variable("python_main_interpreter").value = api.PyInterpreterState_Main()
    if sys.version_info < (3, 12):
        state = (ctypes.c_uint64 * _STATE_WORDS).from_address(api.PyThreadState_Get())
        image.variable("python_thread_at").value = 8 * list(state).index(threading.get_ident())
        current = ctypes.cast(api._PyThreadState_UncheckedGet, ctypes.c_void_p).value
        image.variable("python_current_state").value = current or 0
    runtime().image.variable("sub_interpreter_test").value = image.address("in_sub_interpreter")


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


def _is_free_threaded_build() -> bool:
    import sysconfig

    return bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def has_gil() -> bool:
    """Whether only one thread of this process runs Python at a time."""
    return not _is_free_threaded_build() or sys._is_gil_enabled()  # type: ignore[attr-defined]


def _check_interpreter() -> None:
    """Raise RuntimeError where Python handlers cannot be called from native code."""
    if not has_gil():
        raise RuntimeError(
            "Python handlers need the GIL, which this interpreter runs without: set PYTHON_GIL=1, or use native handlers"
        )


def _note_blocked_signals() -> None:
    """Signals that this thread blocks do not indicate a signal handler (ftrace.hit.asynchronous)."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    runtime().image.variable("normal_signal_mask").value = sum(1 << number - 1 for number in blocked)


def may_enter_python() -> bool:
    """Have hits find out where the interpreter must not be entered, for C code that enters it by itself.

    False without the GIL, which such code does not need.
    """
    if not has_gil():
        return False
    _note_blocked_signals()
    _image()
    return True


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
    None. Both are valid only during the call. `place(entry_ip)` is the address of the probe, for the error of a later use.
    `report(handler, exception, traceback)` is called for exceptions. Raises RuntimeError where Python handlers cannot be called.
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


def kept_too_long(what: str, handler: str, probe: str, instead: str) -> ValueError:
    """The exception for a use of `what` after the handler has returned that it was given to."""
    return ValueError(
        f"{what} of the {probe} is used after its handler {handler} has returned; copy what you need inside the handler: "
        f"{instead}"
    )


def _registers_text(regs: Any) -> str:
    fields = (f"{name}={getattr(regs, name):#x}" for name, _ in pt_regs.ctypes._fields_)
    return f"pt_regs({', '.join(fields)})"


def _registers_html(regs: Any) -> str:
    return table(((name, f"{getattr(regs, name):#x}") for name, _ in pt_regs.ctypes._fields_), "pt_regs")


pt_regs.ctypes.__repr__ = _registers_text
pt_regs.ctypes._repr_html_ = _registers_html


class ExpiredRegisters(pt_regs.ctypes):  # type: ignore[misc]
    """A pt_regs whose handler has returned: every field raises ValueError."""

    def __repr__(self) -> str:
        return "<pt_regs, whose handler has returned>"

    def _repr_html_(self) -> str:
        import html

        return html.escape(repr(self))

    def __getattribute__(self, name: str) -> Any:
        if name == "_repr_html_" or name.startswith("__"):
            return super().__getattribute__(name)
        raise _used_late(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        raise _used_late(self, name)


def _used_late(regs: ExpiredRegisters, name: str) -> ValueError:
    handler, probe = regs.__dict__["expired"]
    return kept_too_long("regs", handler, probe(), f"{name} = regs.{name}")


class Lending:
    """The objects lent to one handler. `place(ip)`: the address of its probe, from the ip it was called with.

    `record` is the ftrace.hit.python_call.PythonHandler, which refers to the registers that its calls reuse.
    """

    def __init__(self, handler: Any, probe: Any, place: Callable[[int], int], record: Any) -> None:
        self._handler = getattr(handler, "__qualname__", repr(handler))
        self._kind = type(probe).__name__
        self._place = place
        self._record = record
        self._spare: Any = None
        self._renew()

    def _renew(self) -> None:
        self._spare = pt_regs.ctypes()
        self._record.spare, self._record.spare_memory = id(self._spare), ctypes.addressof(self._spare)
        self._record.spare_taken = 0

    def expire(self, regs: Any, data: memoryview | None, ip: int) -> None:
        """The handler has returned and its registers or entry data are still referred to. Their memory is their own and has
        been written back; a later use would have no effect, so it raises.
        """
        address = self._place(ip)
        regs.__dict__["expired"] = self._handler, lambda: f"{self._kind} at {_name(address)}"
        regs.__class__ = ExpiredRegisters
        if data is not None:
            with contextlib.suppress(BufferError):  # an array has been made of it
                data.release()
        if regs is self._spare:
            self._renew()


def _name(address: int) -> str:
    symbol = symbol_at(address)
    return symbol.name if symbol is not None else hex(address)
