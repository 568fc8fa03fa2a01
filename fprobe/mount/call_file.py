"""The file fprobe/call: what is written to it is called, and it shows the result."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from typing import Any

from ftrace.tracing.files.nodes import Handle, Node, TextHandle


class CallFile(Node):
    """`prepare(line)` returns the call that a line `FUNC ARG...` means. Writers take turns.

    The file reads as `CALL = RESULT`, or as the sentence of the call's fault; of the last call only.
    """

    mode = 0o640

    def __init__(self, prepare: Callable[[str], Callable[[], Any]]) -> None:
        self._prepare = prepare
        self._turn = threading.Lock()
        self._result = ""

    def open(self, flags: int) -> Handle:
        return _CallHandle(lambda: self._result, self._call)

    def _call(self, text: str) -> None:
        """Make the calls of these lines. Raises OSError: EINVAL for a call that cannot be made, EFAULT for one that fails."""
        with self._turn:
            for line in filter(None, map(str.strip, text.splitlines())):
                self._result = self._made(line)

    def _made(self, line: str) -> str:
        try:
            call = self._prepare(line)
        except Exception as error:  # of the line: what it names, its number of arguments, a value
            self._result = f"{error}\n"
            raise OSError(errno.EINVAL, str(error)) from None
        try:
            return f"{call} = {call()}\n"
        except Exception as error:
            self._result = f"{error}\n"
            raise OSError(errno.EFAULT, str(error)) from None


class _CallHandle(TextHandle):
    is_slow = True
