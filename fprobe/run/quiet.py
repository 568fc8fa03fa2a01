"""What the packages here have to say in the program: it goes to the launcher's journal, not into the program's output."""

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
    """From now on warnings of ours are entries of the journal."""
    handler = _Journal(address)
    for name in _PACKAGES:
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.propagate = False
        warnings.filterwarnings("ignore", category=RuntimeWarning, module=rf"{name}(\.|$)")
