"""A process that calls a function of the C library, for tracers that are given a process and not a function of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import program


class Place(NamedTuple):
    """Where the function is: in the process, and in the file that is mapped there."""

    address: int
    path: str
    offset: int


class Traced:
    """The process. Raises EOFError where it ends too early, with its exit code."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child
        self.place = Place(*self._answer())
        self.pid = child.pid

    def nanoseconds(self) -> float:
        """Make the calls; the time of each."""
        assert self._child.stdin
        self._child.stdin.write("\n")
        self._child.stdin.flush()
        return float(self._answer())

    def _answer(self) -> Any:
        assert self._child.stdout
        line = self._child.stdout.readline()
        if not line:
            raise EOFError(f"the traced process ended with {self._child.wait()}")
        return json.loads(line)


@contextmanager
def traced(calls: int) -> Iterator[Traced]:
    """A new process, which makes `calls` calls at a time."""
    command = [sys.executable, "-m", "benchmarks.traced", str(calls)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            yield Traced(child)
        finally:
            child.kill()


def place_of(address: int) -> Place:
    """Where in which file the code at `address` is. Raises LookupError if no file is mapped there."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        area, _rights, offset, _device, inode, *path = line.split(maxsplit=5)
        start, end = (int(bound, 16) for bound in area.split("-"))
        if start <= address < end and int(inode):
            return Place(address, path[0], address - start + int(offset, 16))
    raise LookupError(f"no file is mapped at {address:#x}")


def main() -> None:
    """Say where the function is; then, for each line, make the calls and say what each took."""
    from benchmarks.libraries import TARGET, address_of

    calls, address = int(sys.argv[1]), address_of(TARGET)
    run = program.timed(partial(program.program()["loop"], calls, address), calls)
    print(json.dumps(place_of(address)), flush=True)
    for _ in sys.stdin:
        print(json.dumps(run()), flush=True)


if __name__ == "__main__":
    main()
