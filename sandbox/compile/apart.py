"""Compiling and linking in a separate process.

On some errors in a program (inline assembly that does not assemble, a type that the machine lacks, a section that does not fit
into memory, damaged bitcode) LLVM ends the process. Programs that may have them are therefore first compiled and linked on trial
in a child process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

from sandbox.compile.codegen import ProgramError

REFUSED = 3
"""The exit status of a child that reports on standard error what is wrong with the program."""


def run(entry: str, source: bytes, origin: str, **options: Any) -> bytes:
    """What the child's function `entry` ("module.function"), which is given `options`, makes of `source`.

    Raises ProgramError with what the function refused, or with what LLVM said if it ended the child.
    """
    module, _, function = entry.rpartition(".")
    code = f"from {module} import {function}; {function}()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", code, json.dumps({"origin": origin, **options})]
    done = subprocess.run(command, input=source, capture_output=True, env=environment, check=False)
    if not done.returncode:
        return done.stdout
    said = done.stderr.decode("utf-8", "surrogateescape")
    if done.returncode == REFUSED:
        raise ProgramError(said)
    errors = [_shortened(line) for line in said.splitlines() if "error:" in line.lower() or "Assertion" in line]
    raise ProgramError(f"{origin}: LLVM cannot compile it: {'; '.join(errors) or _ended(done.returncode)}")


def _shortened(line: str) -> str:
    """Of a failed assertion its text, without where in LLVM it is."""
    return line[line.find("Assertion") :] if "Assertion" in line else line


def _ended(status: int) -> str:
    if status < 0:
        return f"the compiling process was ended by {signal.Signals(-status).name}"
    return f"status {status}"
