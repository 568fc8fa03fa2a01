"""What all tests share: a cache of compiled objects of their own, and the state they must leave behind."""

from __future__ import annotations

import gc
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


LONGEST = (
    "hazards/test_every_instruction.py", "stress/test_concurrency.py", "fprobe/cli/test_ctrl_c.py",
    "fprobe/test_numba_probed.py", "hazards/test_forking.py", "hazards/test_every_instruction_of_a_record.py",
    "fprobe/test_dropped.py", "fprobe/run/test_run.py", "test_benchmarks.py", "hazards/test_signals.py",
    "kprobes/test_optimize.py", "test_documentation.py", "fprobe/cli/test_record.py", "kprobes/test_orders.py",
    "kprobes/test_libraries_returned.py", "hazards/test_one_object.py", "kprobes/test_kprobe_faults.py",
    "fprobe/cli/test_documents.py", "sandbox/native/test_native_differential.py", "hazards/test_return_hook.py",
    "sandbox/test_described_code.py", "sandbox/test_generate.py", "sandbox/native/test_native_fuzz.py",
)  # fmt: skip
"""Files of 4 s and more, the longest first: one that comes last leaves the other workers without work."""


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_collection():
    """Thousands of tests are made, none is dropped: the garbage collector would look at them again and again."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items):
    place = {Path(__file__).parent / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


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
