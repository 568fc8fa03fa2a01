"""`run_python`: what has to be seen from a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.fixture
def run_python():
    """Runs Python source in a process of its own; returns what it printed, and fails if it did not end well."""

    def run(source: str, *, timeout: float = 60, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", source],
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, **environment},
            check=False,
        )
        assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run
