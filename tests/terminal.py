"""Programs in the foreground of a pseudo-terminal."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from pathlib import Path

SHELL = str(Path(__file__).with_name("shell.py"))


class Terminal:
    """A program in a shell's foreground, on a terminal of this type and size, rows and columns."""

    def __init__(self, *command, term="xterm", size=(24, 80)):
        self.pid, self.master = pty.fork()
        if not self.pid:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
            os.execve(sys.executable, [sys.executable, SHELL, *command], {**os.environ, "TERM": term})
        self.output = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()  # a read may end within a character

    def press(self, keys):
        os.write(self.master, keys)

    def wait_for(self, text, seconds=60):
        end = time.monotonic() + seconds
        while text not in self.output:
            assert time.monotonic() < end, self.output
            if select.select([self.master], [], [], 0.2)[0]:
                try:
                    self.output += self._decoder.decode(os.read(self.master, 65536))
                except OSError:  # the shell has ended
                    raise AssertionError(self.output) from None
        return self.output

    def resize(self, rows, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def close(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.master)
