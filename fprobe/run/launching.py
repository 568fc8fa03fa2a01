"""Starting the program and waiting for it, so that whoever started the launcher sees what Python would have shown."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from fprobe.run import session

START = Path(__file__).with_name("start")
"""The directory with the module that Python imports at its start."""

_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""What somebody sends to the launcher is meant for the program."""
_FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
"""What the terminal sends to both."""
_CHANGED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def environment(address: str) -> dict[str, str]:
    """The launcher's environment, with what the program's Python finds us by."""
    made = dict(os.environ)
    before = made.get("PYTHONPATH")
    if before is not None:
        made[session.PYTHONPATH] = before
    made["PYTHONPATH"] = os.pathsep.join([str(START), *([before] if before else [])])
    made[session.VARIABLE] = address
    return made


def replace(words: Sequence[str]) -> None:
    """Become the program: nothing is asked for. Does not return."""
    _restore_signals()
    os.execv(sys.executable, [sys.executable, *words])


class Program:
    """The program, running. `words`: what follows `python`; `output`: a descriptor in place of its output and errors."""

    def __init__(self, words: Sequence[str], environ: Mapping[str, str], output: int | None = None) -> None:
        held = signal.pthread_sigmask(signal.SIG_BLOCK, [*_FORWARDED, *_FROM_TERMINAL])
        self.pid = os.fork()
        if not self.pid:
            if output is not None:
                os.dup2(output, 1)
                os.dup2(output, 2)
            _become(words, environ, held)
        for number, handler in (*((n, _ignored) for n in _FROM_TERMINAL), *((n, self._forward) for n in _FORWARDED)):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, held)

    def _forward(self, number: int, _frame: object) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        """The status that the program ended with, as waitpid gives it. The launcher stops when the program is stopped."""
        while True:
            _, status = os.waitpid(self.pid, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                return status
            if _is_stopped(self.pid):
                os.kill(os.getpid(), signal.SIGSTOP)


def _become(words: Sequence[str], environ: Mapping[str, str], mask: set[signal.Signals] | set[int]) -> None:
    try:
        _restore_signals()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execve(sys.executable, [sys.executable, *words], environ)
    except BaseException as error:
        os.write(2, f"fprobe: {sys.executable}: {error}\n".encode())
    finally:
        os._exit(127)


def _restore_signals() -> None:
    """Python and the command line have changed some, which would be inherited."""
    for number in _CHANGED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _ignored(_number: int, _frame: object) -> None:
    """The terminal has sent it to the program, too."""


def _is_stopped(pid: int) -> bool:
    """Whether it still is: somebody may have continued it before the launcher looked."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return False
    return fields[0] in (b"T", b"t")


def end_like(status: int) -> None:
    """End as the program has ended: with its exit code, or by its signal. Does not return."""
    if os.WIFEXITED(status):
        os._exit(os.WEXITSTATUS(status))
    number = os.WTERMSIG(status)
    _without_core()
    signal.signal(number, signal.SIG_DFL) if number not in (signal.SIGKILL, signal.SIGSTOP) else None
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    os._exit(128 + number)


def _without_core() -> None:
    """The program has left one, if any: not the launcher too."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
