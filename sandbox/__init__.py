"""Where code comes from and where it lives: compiling, loading, symbols, executable memory, tasks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandbox.adoption import adopt as adopt
    from sandbox.faults import SandboxFault as SandboxFault
    from sandbox.loading import load as load
    from sandbox.module import Module as Module
    from sandbox.module import ModuleState as ModuleState
    from sandbox.module import find_module as find_module
    from sandbox.module import modules as modules
    from sandbox.module import register_module_notifier as register_module_notifier
    from sandbox.module import unregister_module_notifier as unregister_module_notifier
    from sandbox.native_program import function as function
    from sandbox.symbols import symbol_table as symbol_table

IMPORTED = time.time_ns()
"""When this package was first imported, in nanoseconds since 1970: modules that define something were loaded later."""

_HOMES = {
    "adopt": "adoption",
    "function": "native_program",
    "load": "loading",
    "SandboxFault": "faults",
    "Module": "module",
    "ModuleState": "module",
    "find_module": "module",
    "modules": "module",
    "register_module_notifier": "module",
    "unregister_module_notifier": "module",
    "symbol_table": "symbols",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> object:
    # On demand, so that whoever needs one module of the package does not pay for all of them.
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
