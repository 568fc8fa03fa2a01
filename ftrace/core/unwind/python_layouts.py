"""Where each version of CPython keeps its frames, for hits that read them; checked against known frames before it is used."""

from __future__ import annotations

import ctypes
import sys
import sysconfig
from typing import Any

from ftrace.core.runtime import runtime
from ftrace.hit.stacks.python_frames import PythonLayout
from sandbox.symbols.libraries import library_at

_KEYS = 32
"""The keys of pthread_key_create whose values are in the thread's descriptor."""
_KEY_SIZE = 16
_ENDBR64, _READ_FS = b"\xf3\x0f\x1e\xfa", b"\x64\x48\x8b\x04\x25"
"""endbr64; mov %fs:OFFSET, %rax, without its offset."""
_OF_3_11 = {"line": 72, "filename": 112, "name": 128, "lines": 136}
_OF_3_12 = {
    **_OF_3_11,
    "line": 68,
    "previous": 8,
    "code": 0,
    "place": 56,
    "owner": 70,
    "shim": 3,
    "ascii": 40,
    "other": 56,
}
LAYOUTS: dict[tuple[int, int], dict[str, int]] = {
    (3, 10): {
        "state_frame": 24, "code": 32, "previous": 24, "place": 96, "is_index": 1,
        "line": 40, "filename": 104, "name": 112, "lines": 120, "ascii": 48, "other": 72,
    },
    (3, 11): _OF_3_11 | {
        "state_frame": 56, "through": 9, "code": 32, "previous": 48, "place": 56, "owner": 69, "shim": 3,
        "first": 184, "ascii": 48, "other": 72,
    },
    (3, 12): _OF_3_12 | {"state_frame": 56, "through": 1, "first": 192},
    (3, 13): _OF_3_12 | {"state_frame": 72, "first": 200},
    (3, 14): _OF_3_12 | {"state_frame": 72, "owner": 74, "first": 208},
    (3, 15): _OF_3_12 | {"state_frame": 72, "owner": 74, "first": 208},
}  # fmt: skip
"""By version, the fields of `PythonLayout` that are offsets of the interpreter's structures."""


def why_unknown() -> str:
    """Why Python frames of this interpreter cannot be read; empty if they may be."""
    version = sys.version_info[:2]
    if version not in LAYOUTS:
        known = ", ".join(f"{major}.{minor}" for major, minor in LAYOUTS)
        return f"how Python {version[0]}.{version[1]} keeps its frames is not known, but of {known}"
    if sys.implementation.name != "cpython" or hasattr(sys, "gettotalrefcount") or _is_free_threaded():
        return (
            "how this build of Python keeps its frames is not known, but of CPython with its lock and without debugging"
        )
    return ""


def _is_free_threaded() -> bool:
    return bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def fill(layout: Any) -> bool:
    """Fill in a native PythonLayout for this interpreter and thread. False: where threads have their states is not known."""
    state = ctypes.pythonapi.PyGILState_GetThisThreadState
    state.restype = ctypes.c_void_p
    known = _variable_places(state) or _key_places()
    places = [each for each in known if runtime().key.read(each) == state()]
    if len(places) != 1:
        return False
    text = library_at(ctypes.cast(ctypes.pythonapi.PyEval_EvalCode, ctypes.c_void_p).value or 0)
    spans = text.text if text is not None else ()
    start, end = (min(low for low, _ in spans), max(high for _, high in spans)) if spans else (0, 0)
    values = LAYOUTS[sys.version_info[:2]] | {
        "of_thread": places[0],
        "interpreter": start,
        "interpreter_size": end - start,
        "code_type": id(type(fill.__code__)),
    }
    for name, _ in PythonLayout.ctypes._fields_:
        setattr(layout, name, values.get(name, 0))
    return True


def _key_places() -> list[int]:
    """Where a thread may have its value of a key, from %fs."""
    key = runtime().key
    return [key.offset + (number - key.number) * _KEY_SIZE for number in range(_KEYS)]


def _variable_places(function: Any) -> list[int]:
    """Where `function` of the interpreter, linked into the program, reads its thread-local variable (3.15), from %fs."""
    text = ctypes.string_at(ctypes.cast(function, ctypes.c_void_p).value or 0, 13).removeprefix(_ENDBR64)
    if not text.startswith(_READ_FS):
        return []
    return [int.from_bytes(text[len(_READ_FS) : len(_READ_FS) + 4], "little", signed=True)]
