"""The command line: `fprobe VERB ...`.

Exit codes: 0 done; 1 the program or the probe failed; 2 the command line or the input is wrong; 130 ended by Ctrl-C.
`run` and `top` end as Python does: by the signal.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

_STANDARD_ERROR = 2
_COMPLETION = "_FPROBE_COMPLETE"
"""What the scripts of shells ask for."""
_LIKE_PYTHON = ("run", "top")
"""Verbs that Ctrl-C ends as it ends Python, since they stand for it."""


def main(prog_name: str | None = None) -> None:
    """Run the command that `sys.argv` asks for, and exit. Ctrl-C is handled before anything else is imported."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # an exception would be shown as a traceback of the next import
    from fprobe.cli.interrupting import INTERRUPTED, ctrl_c
    from fprobe.run.ending import end_by_signal

    _occupy_closed()
    ctrl_c.install()
    try:
        if _COMPLETION in os.environ:
            import fprobe.cli.bash  # noqa: F401  # click finds it
        from fprobe.cli.verbs import verbs

        verbs(prog_name=prog_name)
    except OSError as error:
        from sandbox.process.writing import DISK_FULL

        if error.errno not in DISK_FULL:
            raise
        sys.stderr.write(f"fprobe: {error.strerror}\n")
        _give_up_output()
        sys.exit(1)
    except SystemExit:
        _give_up_output()
        ctrl_c.hold()
        if ctrl_c.pressed:
            ctrl_c.report()
            if sys.argv[1:2] and sys.argv[1] in _LIKE_PYTHON:
                end_by_signal(signal.SIGINT)
            sys.exit(INTERRUPTED)
        raise


def _occupy_closed() -> None:
    """Keep our files from getting the numbers of standard descriptors that are closed, which output would then go to.

    What is written there is lost, as it was; in programs that are run they are closed.
    """
    with contextlib.suppress(OSError):
        while (taken := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= _STANDARD_ERROR:
            if taken:
                stream = open(taken, "w", closefd=False)  # noqa: SIM115  # for as long as the process lives
                setattr(sys, ("stdout", "stderr")[taken - 1], stream)
        os.close(taken)


def _give_up_output() -> None:
    """Write what waits to be written, or drop it: Python's own end would fail with it, and change the exit code."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
