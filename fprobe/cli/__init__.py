"""The command line: `fprobe VERB ...`.

Exit codes: 0 done; 1 the program or the probe failed; 2 the command line or the input is wrong; 130 ended by Ctrl-C.
"""

from __future__ import annotations

import sys

from fprobe.cli.interrupting import INTERRUPTED, ctrl_c


def main(prog_name: str | None = None) -> None:
    """Run the command that `sys.argv` asks for, and exit. Ctrl-C is handled before anything else is imported."""
    ctrl_c.install()
    try:
        from fprobe.cli.verbs import verbs

        verbs(prog_name=prog_name)
    except SystemExit:
        ctrl_c.hold()
        if ctrl_c.pressed:
            ctrl_c.report()
            sys.exit(INTERRUPTED)
        raise
