"""Random writes to the files of tracefs: a short run with a fixed seed; `make stress` has an hour with a new one."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import isolation
import pytest

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="the stand-in kernel is in C"
)
RUN = Path(__file__).with_name("tracefs_fuzz.py")
_LONG = 6
"""Times as long as other stress runs, which is an hour unless FPROBE_STRESS_SECONDS says otherwise."""


def run(seconds: float, **environment: str) -> str:
    """The last line that it prints."""
    given = {"FPROBE_STRESS_SECONDS": str(seconds), **environment}
    done = isolation.run([sys.executable, "-X", "faulthandler", str(RUN)], seconds * 1.5 + 90, **given)
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done.stdout.splitlines()[-1]


@pytest.mark.timeout(100)
def test_random_texts_crash_nothing_and_leave_nothing_behind() -> None:
    print(run(1, FPROBE_STRESS_SEED="1"))


@pytest.mark.stress
@pytest.mark.timeout(0)
def test_random_texts_for_as_long_as_asked() -> None:
    print(run(_LONG * float(os.environ.get("FPROBE_STRESS_SECONDS", "600"))))
