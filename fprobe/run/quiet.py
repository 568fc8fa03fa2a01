"""Redirects this project's warnings in the program to the launcher's journal, to keep them out of the program's output."""

from __future__ import annotations

import logging
import warnings

from fprobe.run import session

_PACKAGES = ("fprobe", "kprobes", "ftrace", "sandbox")


class _Journal(logging.Handler):
    def __init__(self, address: str) -> None:
        super().__init__(logging.WARNING)
        self._address = address

    def emit(self, record: logging.LogRecord) -> None:
        session.note(self._address, remark=record.getMessage())


def keep_quiet(address: str) -> None:
    """Write this project's log messages to the journal, and ignore its RuntimeWarnings."""
    handler = _Journal(address)
    for name in _PACKAGES:
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.propagate = False
        warnings.filterwarnings("ignore", category=RuntimeWarning, module=rf"{name}(\.|$)")
