"""What all tests share: a cache of compiled objects of their own, and the state they must leave behind."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from sandbox.compile import cache
from sandbox.symbols import perfmap

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job; children inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Hundreds of processes would compile all modules, each for itself, and each worker would rewrite the assertions of all tests.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.fixture(autouse=True, scope="session")
def _shared_cache(tmp_path_factory):
    """One directory for all workers of a run, so that the runtime is compiled once; temporary files that go with a later run."""
    base = tmp_path_factory.getbasetemp()
    tempfile.tempdir = os.environ["TMPDIR"] = str(
        tmp_path_factory.mktemp("left")
    )  # what processes leave that are killed
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    os.environ.setdefault(cache.DIRECTORY, str(shared / "objects"))
    os.environ.setdefault(perfmap.OPT_OUT, "1")
