"""The tests' processes: what is put back after a test that shares one, what each has to leave as it was, and pipes."""

from __future__ import annotations

import gc
import logging
import os
import resource
import signal
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

_LOGGERS = ("fprobe", "ftrace", "kprobes", "sandbox")
_LIMITS = ("RLIMIT_AS", "RLIMIT_CORE", "RLIMIT_FSIZE", "RLIMIT_NOFILE", "RLIMIT_NPROC", "RLIMIT_STACK")
_TESTS = str(Path(__file__).parent)


def freeze() -> None:
    """Leave all objects out of later collections; not without a GIL, where Python 3.13 crashes at exit after that."""
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        gc.freeze()


def clear_up() -> None:
    """Leave the next test no probes, programs or logging handlers, and nothing in the maps of the tests' modules."""
    from ftrace.core.maps import Map
    from ftrace.core.tracer import detach_all
    from sandbox.loading.module import modules

    detach_all()
    for module in modules():
        module.unload()
    for logger in map(logging.getLogger, _LOGGERS):
        logger.handlers.clear()
        logger.filters.clear()
        logger.setLevel(logging.NOTSET)
    for value in [value for module in [*sys.modules.values()] if _is_ours(module) for value in vars(module).values()]:
        if isinstance(value, Map):
            value.clear()


def _is_ours(module: ModuleType) -> bool:
    return (getattr(module, "__file__", None) or "").startswith(_TESTS)


def keep_pipes_from_children() -> None:
    """Close the pipes that this process has now in its forked children.

    pytest-xdist knows by the end of a worker's pipe that the worker has died: a child that hangs would keep it open.
    """
    pipes = [int(link.name) for link in Path("/proc/self/fd").iterdir() if int(link.name) > 2 and link.is_fifo()]
    os.register_at_fork(after_in_child=lambda: [os.close(pipe) for pipe in pipes])


def state() -> dict[str, Any]:
    """What of the process a test may only change in a process of its own."""
    return {
        "working directory": str(Path.cwd()),
        "blocked signals": signal.pthread_sigmask(signal.SIG_BLOCK, []),
        **{f"handler of signal {int(number)}": signal.getsignal(number) for number in signal.valid_signals()},
        **{name: resource.getrlimit(getattr(resource, name)) for name in _LIMITS},
        **{f"${name}": value for name, value in os.environ.items()},
    }


def changes(before: dict[str, Any]) -> str:
    """What differs from this earlier state; '' if nothing does."""
    now = state()
    different = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    lines = [f"  {name}: {before.get(name)!r} before, now {now.get(name)!r}\n" for name in different]
    what = "the test has changed its process: it needs one of its own, by @isolated alone\n"
    return "".join([what, *lines]) if lines else ""
