"""Replay transcripts of a real kernel and print what differs.

    python -m tests.golden [-q] [--mount] [FILE...]

Without files: those of tests/golden/data. With --mount, the commands use the tree as it is mounted, in a namespace of its own.
Each file runs in a process of its own. Prints a diff and a score, the steps that came out the same of all, for each file.
Exits with 0 if nothing differs.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sandbox.symbols import perfmap
from tests import namespaces
from tests.golden import place
from tests.golden.transcript import Step, differs, outcome, parse

if TYPE_CHECKING:
    from tests.golden.machine import Machine
    from tests.golden.replay import Replayer

DATA = Path(__file__).with_name("data")
_SECONDS = 120


def replay(path: Path, quiet: bool, mounts: bool) -> bool:
    """Replay one file in this process; whether nothing differs."""
    from tests.golden.machine import Machine
    from tests.golden.replay import Replayer

    steps = parse(place.moved(path.read_text("utf-8", "surrogateescape")))
    machine = Machine()
    with _files_of(machine) if mounts else contextlib.nullcontext():
        return _compare(path, steps, Replayer(machine), quiet)


@contextlib.contextmanager
def _files_of(machine: Machine) -> Iterator[None]:
    """The machine's files are those of the mounted tree."""
    from fprobe.tracefs import mount
    from tests.golden.mounted import MountedFiles

    os.cpu_count = lambda: 1  # as the machine that was recorded
    with tempfile.TemporaryDirectory(prefix="tracefs-") as top, mount(top):
        machine.tracefs = MountedFiles(Path(top))
        yield


def _compare(path: Path, steps: list[Step], replayer: Replayer, quiet: bool) -> bool:
    from tests.golden.replay import run_step

    same = 0
    for expected in steps:
        got = run_step(replayer, expected)
        if not differs(expected, got):
            same += 1
        elif not quiet:
            print("\n".join(difference(expected, got)).encode("utf-8", "backslashreplace").decode())
    print(f"{path.name}: {same}/{len(steps)}", flush=True)
    return same == len(steps)


def difference(expected: Step, got: Step) -> list[str]:
    """A diff of a step."""
    import difflib

    lines = [f"$ {expected.command[:300]}"]
    sides = [outcome(step) for step in (expected, got)]
    return lines + [line for line in difflib.ndiff(*sides) if not line.startswith("? ")]


def main(arguments: list[str]) -> int:
    """The command line."""
    os.environ.setdefault(perfmap.OPT_OUT, "1")
    quiet = "-q" in arguments
    here, mounts = "--here" in arguments, "--mount" in arguments
    paths = [Path(word) for word in arguments if not word.startswith("-")] or sorted(DATA.glob("*.txt"))
    if here:
        if mounts:
            namespaces.enter()
        return int(not replay(paths[0], quiet, mounts))
    good = 0
    for path in paths:
        options = ["-q"] * quiet + ["--mount"] * mounts
        command = [sys.executable, "-m", "tests.golden", "--here", *options, str(path)]
        try:
            good += not subprocess.run(command, timeout=_SECONDS, check=False).returncode
        except subprocess.TimeoutExpired:
            print(f"{path.name}: no end after {_SECONDS} seconds", flush=True)
    print(f"{good} of {len(paths)} without a difference")
    return int(good != len(paths))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
