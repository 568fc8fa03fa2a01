"""Trying mutants on a copy of the tree: one is applied, its tests are run there, and the file is put back."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path

from sandbox.compile import cache
from tests.mutants.mutant import Mutant

LIMIT = 240
"""Seconds. A mutant whose tests take longer hangs, and so is noticed."""
_LIMIT_OF_ALL = 1800
_NOT_COPIED = shutil.ignore_patterns(".*", "__pycache__", "build", "dist")
_PASSED, _NOT_RUN = 0, (4, 5)
"""Exit codes of pytest: all tests passed; there is no such test."""


class Verdict(Enum):
    """What has become of a trial."""

    NOTICED = "noticed"
    NOT_NOTICED = "NOT NOTICED"
    NO_TEST = "NO SUCH TEST"


class Copy:
    """A copy of the tree at `root`, in `where`."""

    def __init__(self, root: Path, where: Path) -> None:
        self.where = where / "tree"
        self._objects = where / "objects"
        shutil.copytree(root, self.where, ignore=_NOT_COPIED)

    def passes(self, tests: Sequence[str]) -> bool:
        """Whether all `tests` pass on the copy as it is."""
        return self._run(tests, _LIMIT_OF_ALL) == _PASSED

    def try_out(self, mutant: Mutant) -> Verdict:
        """Whether one of the mutant's tests fails, or does not end. Raises ValueError if the mutant does not fit the file."""
        with self._applied(mutant):
            status = self._run(mutant.tests, LIMIT)
        if status in _NOT_RUN:
            return Verdict.NO_TEST
        return Verdict.NOT_NOTICED if status == _PASSED else Verdict.NOTICED

    @contextmanager
    def _applied(self, mutant: Mutant) -> Iterator[None]:
        path = self.where / mutant.file
        before, times = path.read_text(), path.stat()
        path.write_text(mutant.changed(before))
        try:
            yield
        finally:
            path.write_text(before)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    def _run(self, tests: Sequence[str], limit: float) -> int | None:
        """The exit code of pytest; None if it does not end in time."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-n", "0", *tests]
        if all("::" in test for test in tests):
            command += ["-m", ""]  # also one that is marked `stress`
        paths = os.pathsep.join(filter(None, (str(self.where), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONPATH": paths, cache.DIRECTORY: str(self._objects)}
        process = subprocess.Popen(
            command, cwd=self.where, env=environment, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Also what it has started, as long as that is of its session."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
