"""A cache of compiled objects for the tests alone, empty at the start."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sandbox.compile import cache
from sandbox.symbols import perfmap


@pytest.fixture(autouse=True, scope="session")
def _private_cache(tmp_path_factory):
    directory = tmp_path_factory.mktemp("cache")
    before = {name: os.environ.get(name) for name in (cache.DIRECTORY, perfmap.OPT_OUT)}
    os.environ.update({cache.DIRECTORY: str(directory / "objects"), perfmap.OPT_OUT: "1"})
    yield
    for name, value in before.items():
        os.environ.pop(name, None) if value is None else os.environ.update({name: value})


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
