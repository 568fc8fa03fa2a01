"""What all tests share: a cache of compiled objects of their own, and the state they must leave behind."""

from __future__ import annotations

import collections
import contextlib
import fcntl
import gc
import importlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import process_state
from isolation import end_file
from kept_objects import kept_objects
from later import later
from programs import basic

from sandbox.compile import cache
from sandbox.symbols import perfmap
from tests.golden import place  # noqa: F401  # takes its address before the heap does

# A shell's background job ignores SIGINT and SIGQUIT, and nohup's SIGHUP; what the tests start would inherit that.
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

# Hundreds of processes would compile all modules, each for itself, and each worker would rewrite the assertions of all tests.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


LONGEST = (
    "hazards/test_every_instruction.py", "fprobe/test_numba_probed.py", "fprobe/run/test_run.py", "fprobe/test_dropped.py",
    "golden/test_replay.py", "test_benchmarks.py", "fprobe/run/test_nothing.py", "fprobe/test_event_shortcuts.py",
    "fprobe/cli/test_ctrl_c.py", "test_documentation.py", "fprobe/cli/test_documents.py", "hazards/test_signals.py",
    "stress/test_concurrency.py", "hazards/test_every_instruction_of_a_record.py", "hazards/test_forking.py",
    "fprobe/cli/test_record.py", "kprobes/test_kprobe_faults.py", "sandbox/test_module.py", "fprobe/test_pytest_plugin.py",
    "fprobe/run/test_linked_in.py", "kprobes/test_orders.py", "fprobe/cli/test_bad_input.py", "hazards/test_one_object.py",
    "sandbox/native/test_native_differential.py", "kprobes/test_optimize.py", "ftrace/ring_buffer/test_ring_buffer.py",
    "kprobes/test_libraries_returned.py",
)  # fmt: skip
"""Files of 4 s and more, the longest first, for a first run: one that comes last leaves the other workers without work."""
SECONDS = "fprobe/seconds"
"""Where the cache has how long each file took when it last ran."""


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_collection():
    """Thousands of tests are made, none is dropped: the garbage collector would look at them again and again."""
    gc.disable()
    if os.environ.get("PYTEST_XDIST_WORKER", "").endswith(tuple("13579")):
        _import_from_the_last()
    yield
    process_state.freeze()
    gc.enable()


def _import_from_the_last():
    """In a first run the assertions of all files are rewritten, in 15 s: of each file by the worker that is there first.

    What cannot be imported, or has to be imported as part of a package, is left to pytest.
    """
    for path in sorted(Path(__file__).parent.rglob("test_*.py"), reverse=True):
        if path.with_name("__init__.py").exists():
            continue
        sys.path.insert(0, str(path.parent))
        with contextlib.suppress(BaseException):  # a module may be skipped
            importlib.import_module(path.stem)
        del sys.path[0]


def _kept(config):
    in_cache = hasattr(config, "cache")  # not with -p no:cacheprovider
    return kept_objects(config.cache.mkdir("objects")) if in_cache else None


_MAKE_RUNTIME = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
from ftrace.core.runtime import runtime
runtime()
"""
"""The argument is a file, which is locked meanwhile."""
_making = []


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    """The first worker has the runtime compiled, which takes seconds, while all collect: else each would for itself."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        process_state.keep_pipes_from_children()
    directory = _kept(config) if os.environ.get("PYTEST_XDIST_WORKER") == "gw0" else None
    if directory:
        environment = {cache.DIRECTORY: str(directory), perfmap.OPT_OUT: "1", **os.environ}
        _making.append(subprocess.Popen([sys.executable, "-c", _MAKE_RUNTIME, _lock(config)], env=environment))


def _lock(config):
    return str(config.cache.mkdir("locks") / "runtime")


@pytest.fixture(scope="session")
def _runtime_made(pytestconfig):
    """Each worker waits: the others have seen the first one's process begin, since they have collected meanwhile."""
    if hasattr(pytestconfig, "cache"):
        with Path(_lock(pytestconfig)).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
    for process in _making:
        process.wait()


def pytest_collection_modifyitems(config, items):
    """The files that took longest when they last ran come first, and last those that load large libraries (tests/later.py).

    All workers read the same.
    """
    taken = config.cache.get(SECONDS, {}) if hasattr(config, "cache") else {}
    guessed = {f"tests/{name}": 4 + 1 / number for number, name in enumerate(LONGEST, 1)}
    is_late = {
        module: any(isinstance(each, later) for each in vars(module).values())
        for module in {item.module for item in items}
    }
    items.sort(key=lambda item: (is_late[item.module], -taken.get(file := _file(item.nodeid), guessed.get(file, 0))))


def pytest_sessionfinish(session):
    """Remember how long each file took: the process that has the reports of all workers."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if "PYTEST_XDIST_WORKER" in os.environ or reporter is None or not hasattr(session.config, "cache"):
        return
    taken = collections.Counter()
    for report in (each for reports in reporter.stats.values() for each in reports):
        if isinstance(report, pytest.TestReport):
            taken[_file(report.nodeid)] += report.duration
    before = session.config.cache.get(SECONDS, {})
    session.config.cache.set(SECONDS, before | {file: round(seconds, 1) for file, seconds in taken.items()})


def _file(nodeid):
    return nodeid.partition("::")[0]


@pytest.fixture(scope="module")
def program():
    """BASIC, loaded for the tests of a module that name no other program."""
    module = basic()
    yield module
    module.unload()


@pytest.fixture(autouse=True, scope="module")
def _file_ends():
    """What isolated tests of a module share ends with them."""
    yield
    end_file()


@pytest.fixture(autouse=True, scope="session")
def _shared_cache(tmp_path_factory, pytestconfig, _runtime_made):
    """One directory for all workers of this run and of later ones, so that a thing is compiled once.

    Temporary files go with a later run.
    """
    base = tmp_path_factory.getbasetemp()
    tempfile.tempdir = os.environ["TMPDIR"] = str(
        tmp_path_factory.mktemp("left")
    )  # what processes leave that are killed
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    os.environ.setdefault(cache.DIRECTORY, str(_kept(pytestconfig) or shared / "objects"))
    os.environ.setdefault(perfmap.OPT_OUT, "1")
