"""Code that can be probed: compiling, loading, symbols, executable memory, per-thread records."""

from __future__ import annotations

import time

from sandbox.process import interpreters

interpreters.check()

from sandbox import moved  # noqa: E402 (where the check fails, none of our modules is to stay imported)
from sandbox.lazy import exports  # noqa: E402

moved.install()

IMPORTED = time.time_ns()
"""When this package was first imported, in nanoseconds since 1970: modules that define something were loaded later."""

__all__, __getattr__, __dir__ = exports(__name__, __file__)
