"""Ending the process while the program is still running."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NoReturn


def end_process(code: int) -> NoReturn:
    """End the process at once: in an orderly exit, a thread that runs native code would outlive the memory that it uses."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
