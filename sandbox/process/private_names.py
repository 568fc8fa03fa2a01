"""Undocumented names of CPython's standard library that these packages use. Another version of Python may lack one."""

from __future__ import annotations

import _ctypes
import _thread
import ctypes
import os
import sys


def missing() -> list[str]:
    """Those that this Python does not have."""
    used: dict[str, tuple[object, tuple[str, ...]]] = {
        "threading.Lock": (_thread.LockType, ("_at_fork_reinit",)),
        "threading.RLock": (_thread.RLock, ("_at_fork_reinit", "_is_owned")),
        "os.environ": (os.environ, ("_data", "encodekey", "encodevalue")),
        "ctypes.CDLL(None)": (ctypes.CDLL(None), ("_handle",)),
        "ctypes.CDLL(None).free": (ctypes.CDLL(None).free, ("_objects",)),
        "_ctypes": (_ctypes, ("dlclose",)),
        "sys": (sys, ("_getframe",)),
    }
    if "threading" in sys.modules:  # for threads of ours in a program that is attached to
        threading = sys.modules["threading"]
        used["threading"] = (threading, ("_active",))
        used["threading.main_thread()"] = (threading.main_thread(), ("_ident",))
    return [f"{owner}.{name}" for owner, (it, names) in used.items() for name in names if not hasattr(it, name)]


def check() -> None:
    """Raise RuntimeError, naming them, if any are missing."""
    if found := missing():
        raise RuntimeError(
            f"Python {sys.version.split()[0]} has no {', '.join(found)}, which fprobe uses; use another version of Python"
        )
