"""Programs in the foreground of a pseudo-terminal."""

from __future__ import annotations

import codecs
import os
import pty
import select
import signal
import sys
import time
from pathlib import Path

SHELL = str(Path(__file__).with_name("shell.py"))


class Terminal:
    """A program in a shell's foreground, on a terminal."""

    def __init__(self, *command):
        self.pid, self._master = pty.fork()
        if not self.pid:
            os.execv(sys.executable, [sys.executable, SHELL, *command])
        self.output = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()  # a read may end within a character

    def press(self, keys):
        os.write(self._master, keys)

    def wait_for(self, text, seconds=60):
        end = time.monotonic() + seconds
        while text not in self.output:
            assert time.monotonic() < end, self.output
            if select.select([self._master], [], [], 0.2)[0]:
                try:
                    self.output += self._decoder.decode(os.read(self._master, 65536))
                except OSError:  # the shell has ended
                    raise AssertionError(self.output) from None
        return self.output

    def close(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._master)
