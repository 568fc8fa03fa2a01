"""`python -m tests.targets [NAMES]`: attaches to real programs under load, again and again, and detaches.

FPROBE_TARGETS is the number of attachments to each, by default 200. Afterwards the text of its libraries is compared with a copy
from before, and every answer of the program was right.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from fprobe.run.launcher.attached import Targets, attached
from fprobe.run.session import Settings
from sandbox.remote.refusals import Refused
from tests.targets.programs import Program, programs
from tests.targets.servers import servers

NUMBER = int(os.environ.get("FPROBE_TARGETS", "200"))
LIBRARIES = ("/libz.so", "/libc.so", "/libcrypto.so")
_SHOWN = 5


def spans(pid: int) -> list[tuple[int, int]]:
    """Where the code of these libraries and of the program is."""
    found, names = [], (*LIBRARIES, os.readlink(f"/proc/{pid}/exe"))  # noqa: PTH115  # the text of the link
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        span, rights, *_ = line.split()
        if "x" in rights and any(each in line for each in names):
            found.append(tuple(int(each, 16) for each in span.split("-")))
    return found


def text(pid: int, code: Sequence[tuple[int, int]]) -> list[bytes]:
    """The code there."""
    with open(f"/proc/{pid}/mem", "rb", 0) as memory:  # noqa: PTH123
        return [os.pread(memory.fileno(), end - start, start) for start, end in code]


def changed(pid: int, code: Sequence[tuple[int, int]], before: Sequence[bytes]) -> list[str]:
    """Where the code differs from what it was."""
    found = []
    for (start, _), one, other in zip(code, before, text(pid, code), strict=True):
        at = next((at for at in range(len(one)) if one[at] != other[at]), None) if one != other else None
        if at is not None:
            was, now = (each[at : at + 8].hex() for each in (one, other))
            found.append(f"the text of {pid} has changed at {start + at:#x}, {at:#x} after {start:#x}: {was} -> {now}")
    return found


def attach(program: Program, pid: int, seconds: float) -> int:
    """Attach once, and detach. Returns the hits."""
    settings = Settings(program.patterns)
    with (
        contextlib.redirect_stderr(io.StringIO()),
        attached(Targets((pid,), seconds, program.children), settings, bool) as processes,
    ):
        processes.wait()
    found = processes.results()
    for each in processes.members:
        each.close()
    errors = [error for process in found.processes for error in process.errors]
    if errors:
        raise Refused(errors[0])
    return sum(calls.hits for process in found.processes for calls in process.functions())


def run(name: str, program: Program) -> bool:
    """Attach `NUMBER` times. Returns whether all was well."""
    code = {pid: spans(pid) for pid in program.pids}
    before = {pid: text(pid, code[pid]) for pid in program.pids}
    failures, hits, longest = [], 0, 0.0
    for number in range(NUMBER):
        pid = program.pids[number % len(program.pids)]
        start = time.monotonic()
        try:
            hits += attach(program, pid, 0.05)
        except OSError as error:
            failures.append(f"attachment {number}: {error.strerror or error}")
        longest = max(longest, time.monotonic() - start)
        if program.errors():
            break
    failures += program.errors()
    try:
        failures += [each for pid in code for each in changed(pid, code[pid], before[pid])]
    except OSError as error:
        failures.append(f"a process has ended: {error}")
    counted = f"{len(failures)} failures, {hits:,} hits, {program.calls():,} answers"
    print(f"{name:<12} {NUMBER} attachments, {counted}; longest {longest:.2f} s")
    for failure in failures[:_SHOWN]:
        print(f"    {failure}")
    sys.stdout.flush()
    return not failures


def main(names: Sequence[str]) -> int:
    """Run the programs of these names, or all."""
    well = True
    for name, start in chain(programs(), servers()):
        if not names or name in names:
            try:
                program = start()
            except (OSError, AssertionError) as error:
                print(f"{name:<12} not started: {error}")
                well = False
                continue
            try:
                well &= run(name, program)
            finally:
                program.stop()
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
