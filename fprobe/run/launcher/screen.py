"""Where `fprobe top` shows its table: a terminal, where each table replaces the previous one, or a file."""

from __future__ import annotations

import errno
import fcntl
import os

from fprobe.run.launcher.keys import Keys
from sandbox.process import terminal
from sandbox.process.printable import printable_line
from sandbox.process.writing import as_bytes, write_all

_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_OTHER_SCREEN, _BACK = "\x1b[?1049h", "\x1b[?1049l"
_BOUNDLESS = 1 << 30


class Screen:
    """The output of the table. `replaces`: whether each table replaces the previous one.

    `keys`: those of the terminal, if they are wanted and can be read; else None.
    """

    def __init__(self, descriptor: int, *, with_keys: bool = False) -> None:
        self._descriptor = descriptor
        self.replaces = terminal.takes_escapes(descriptor)
        self.keys = Keys(descriptor) if with_keys and self.replaces and _is_readable(descriptor) else None
        self.failure: OSError | None = None
        """Why nothing can be written any more; nobody who reads it is none."""
        self.is_closed = False
        """Whether nothing can be written any more."""

    @property
    def size(self) -> tuple[int, int]:
        """Number of rows and of columns."""
        return terminal.size(self._descriptor) if os.isatty(self._descriptor) else (_BOUNDLESS, _BOUNDLESS)

    @property
    def keyboard(self) -> list[int]:
        """The descriptor that keys are read from, if they are read now."""
        return [self.keys.descriptor] if self.keys is not None and self.keys.is_entered else []

    def __enter__(self) -> Screen:
        self._write(_OTHER_SCREEN if self.replaces else "")
        if self.keys is not None:
            self.keys.enter()
        return self

    def __exit__(self, *_: object) -> None:
        if self.keys is not None:
            self.keys.leave()
        self._write(_BACK if self.replaces else "")

    def show(self, lines: list[str]) -> None:
        """Show a table: as much as there is space for where it replaces the previous one."""
        if self.replaces:
            shown = [printable_line(line) for line in lines[: max(self.size[0] - 1, 1)]]
            self._write(_HOME + "".join(f"{line}{_CLEAR_LINE}\r\n" for line in shown) + _CLEAR_BELOW)
        else:
            self.print([*lines, ""])

    def print(self, lines: list[str]) -> None:
        """Print lines that stay."""
        self._write("".join(f"{printable_line(line)}\n" for line in lines))

    def _write(self, text: str) -> None:
        if self.is_closed:
            return
        try:
            write_all(self._descriptor, as_bytes(text))
        except OSError as error:  # the program continues
            self.is_closed = True
            self.failure = error if error.errno != errno.EPIPE else None


def _is_readable(descriptor: int) -> bool:
    return fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
