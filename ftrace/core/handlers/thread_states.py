"""Where CPython 3.10 to 3.12 keeps in a thread's state what ftrace.hit.python_states puts back; checked before it is used."""

from __future__ import annotations

import ctypes
import sys
import threading
from typing import Any

from ftrace.core.unwind import python_layouts
from ftrace.hit.python_states import StateLayout

_LAYOUTS: dict[tuple[int, int], dict[str, Any]] = {
    (3, 10): {
        "chain": 48, "frame": 24, "counter": 160, "exceptions": 144, "handled": 3,
        "words": (144, 88, 96, 104), "halves": (32,), "thread": 176, "first_exception": 112,
    },
    (3, 11): {
        "chain": 56, "counter": 136, "exceptions": 120, "handled": 1,
        "words": (120, 96, 104, 112, 296, 304, 312), "halves": (32,), "thread": 152, "first_exception": 320,
    },
    (3, 12): {
        "chain": 56, "counter": 120, "exceptions": 104, "handled": 1,
        "words": (104, 96, 232, 240, 248), "halves": (28, 36), "thread": 136, "first_exception": 256,
    },
}  # fmt: skip
"""`words` and `halves`: fields of 8 and 4 bytes, which are put back as they were: the exceptions that are being handled and
raised, the stack of Python's frames, and how deep calls may still be nested."""


def is_known() -> bool:
    """Whether this interpreter's layout is known, and this thread's state looks like it."""
    if python_layouts.why_unknown() or sys.version_info[:2] not in _LAYOUTS:
        return False
    layout = _LAYOUTS[sys.version_info[:2]]
    state = _this_state()
    if _word(state + layout["thread"]) != threading.get_ident():
        return False
    item = _word(state + layout["exceptions"])
    while item and item != state + layout["first_exception"]:
        item = _word(item + 8 * layout["handled"])  # previous_item
    return item != 0


def fill(layout: Any) -> None:
    """Fill in a native StateLayout for this interpreter. Called where `is_known()`."""
    version = sys.version_info[:2]
    frames = python_layouts.LAYOUTS[version]
    values = {name: frames.get(name, 0) for name in ("place", "through")} | _LAYOUTS[version]
    for name, _ in StateLayout.ctypes._fields_:
        value = values.get(name, 0)
        if isinstance(value, tuple):
            getattr(layout, name)[: len(value)] = value
        else:
            setattr(layout, name, value)


def address_of_running_state() -> int:
    """The address of the function that returns the state of the thread that holds the GIL."""
    return ctypes.cast(ctypes.pythonapi._PyThreadState_UncheckedGet, ctypes.c_void_p).value or 0


def _this_state() -> int:
    get = ctypes.PyDLL(None).PyGILState_GetThisThreadState
    get.restype = ctypes.c_size_t
    return int(get())


def _word(address: int) -> int:
    return int(ctypes.c_uint64.from_address(address).value)
