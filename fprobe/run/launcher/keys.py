"""The keys of a terminal, each as it is pressed."""

from __future__ import annotations

import codecs
import os
import re
import select
import termios
from typing import Any

_KEY = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.)|.", re.DOTALL)
"""A sequence that a terminal sends for a key without a character, or a character."""
_LOCAL_FLAGS, _SPECIAL = 3, 6
"""Where tcgetattr has them."""


class Keys:
    """The keys of the terminal that has this descriptor. Between `enter` and `leave` they come one by one and are not echoed;
    Ctrl-C and Ctrl-Z are signals as ever.

    In the background there are none: reading and changing the terminal would stop this process.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._before: list[Any] | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")

    @property
    def is_entered(self) -> bool:
        """Whether keys are read."""
        return self._before is not None and self._is_in_foreground()

    def enter(self) -> None:
        """Change the terminal, also again after another program has changed it."""
        if not self._is_in_foreground():
            return
        self._before = self._before or termios.tcgetattr(self.descriptor)
        changed = termios.tcgetattr(self.descriptor)
        changed[_LOCAL_FLAGS] &= ~(termios.ICANON | termios.ECHO)
        changed[_SPECIAL][termios.VMIN], changed[_SPECIAL][termios.VTIME] = 1, 0
        termios.tcsetattr(self.descriptor, termios.TCSANOW, changed)

    def leave(self) -> None:
        """Restore the terminal."""
        if self.is_entered:
            termios.tcsetattr(self.descriptor, termios.TCSANOW, self._before or [])
        self._before = None

    def pressed(self) -> list[str]:
        """The keys that were pressed since the last call."""
        if not self.is_entered or not select.select([self.descriptor], [], [], 0)[0]:
            return []
        try:
            data = os.read(self.descriptor, 1 << 10)
        except OSError:  # the terminal is gone
            data = b""
        if not data:
            self._before = None
        return _KEY.findall(self._decoder.decode(data))

    def _is_in_foreground(self) -> bool:
        try:
            return os.tcgetpgrp(self.descriptor) == os.getpgrp()
        except OSError:  # not this process's terminal, or it is gone
            return False
