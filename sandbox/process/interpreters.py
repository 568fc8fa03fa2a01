"""Sub-interpreters are not supported: only the main interpreter can use these packages."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType


def check() -> None:
    """Raise RuntimeError in a sub-interpreter.

    Before ctypes is imported: up to Python 3.11 that has one state for all interpreters, and the main one's suffers.
    """
    if not _in_main():
        raise RuntimeError("fprobe works in the main interpreter only, not in sub-interpreters")


def _in_main() -> bool:
    for name in ("_interpreters", "_xxsubinterpreters"):  # from Python 3.13 on, and before
        try:
            interpreters = _imported(name)
        except ImportError:
            continue
        current, main = interpreters.get_current(), interpreters.get_main()
        return bool(current == main or (isinstance(current, tuple) and current[0] == main[0]))
    return _in_main_by_the_c_api()


def _imported(name: str) -> ModuleType:
    """The module, which stays out of `sys.modules`: faulthandler lists it in its reports of crashes."""
    is_known = name in sys.modules
    module = importlib.import_module(name)
    if not is_known:
        sys.modules.pop(name, None)
    return module


def _in_main_by_the_c_api() -> bool:
    import ctypes

    api = ctypes.pythonapi
    api.PyInterpreterState_Get.restype = api.PyInterpreterState_Main.restype = ctypes.c_void_p
    return bool(api.PyInterpreterState_Get() == api.PyInterpreterState_Main())
