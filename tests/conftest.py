"""What all tests share: a cache of compiled objects of their own, and the state they must leave behind."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from kept_objects import kept_objects
from programs import basic

from sandbox.compile import cache
from sandbox.symbols import perfmap

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job; children inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Hundreds of processes would compile all modules, each for itself, and each worker would rewrite the assertions of all tests.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.fixture(scope="module")
def program():
    """BASIC, loaded for the tests of a module that name no other program."""
    module = basic()
    yield module
    module.unload()


@pytest.fixture(autouse=True, scope="session")
def _shared_cache(tmp_path_factory, pytestconfig):
    """One directory for all workers of this run and of later ones, so that a thing is compiled once.

    Temporary files go with a later run.
    """
    base = tmp_path_factory.getbasetemp()
    tempfile.tempdir = os.environ["TMPDIR"] = str(
        tmp_path_factory.mktemp("left")
    )  # what processes leave that are killed
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    in_cache = hasattr(pytestconfig, "cache")  # not with -p no:cacheprovider
    kept = kept_objects(pytestconfig.cache.mkdir("objects")) if in_cache else None
    os.environ.setdefault(cache.DIRECTORY, str(kept or shared / "objects"))
    os.environ.setdefault(perfmap.OPT_OUT, "1")
