"""Tests that may take the interpreter with them run in one of their own: `@isolated`."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import zygote

TESTS = Path(__file__).parent
EXAMPLES = str(TESTS.parent / "examples")
NUMBA = ("warm_numba",)
"""`modules` of tests that compile with Numba, which takes a second to be imported."""

_PERTURBED = {"MALLOC_PERTURB_": "165"}
"""Freed memory is overwritten."""

_CHILD = """
import faulthandler, importlib, sys
faulthandler.is_enabled() or faulthandler.enable()
sys.path[:0] = {paths!r}
getattr(importlib.import_module({module!r}), {name!r}).__wrapped__(**{arguments!r})
print("the test has ended")
"""
_MODULE = """
import runpy, sys
sys.argv[1:] = {arguments!r}
runpy.run_module({name!r}, run_name="__main__", alter_sys=True)
"""
_EXAMPLE = """
import runpy, sys
sys.argv[1:] = {arguments!r}
sys.path.insert(0, {folder!r})
runpy.run_path({file!r}, run_name="__main__")
"""


def run_source(source: str, *, timeout: float = 30, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python source in a fresh interpreter, where freed memory is overwritten, with a time limit in seconds."""
    return run([sys.executable, "-c", source], timeout, **_PERTURBED, **environment)


def run_forked(
    source: str, timeout: float, modules: tuple[str, ...] = (), cold: bool = True
) -> subprocess.CompletedProcess[str]:
    """As run_source, in an interpreter that has imported the packages, and `modules`, and made the runtime, if not `cold`.

    Standard input is empty; standard output and error are files. It ends as zygote.end() says, unless by `sys.exit()`.
    """
    return parent_with(modules, cold).run(source, timeout)


WARM = "warm_runtime"

_root: zygote.Zygote | None = None
_branches: dict[tuple[str, ...], zygote.Branch] = {}


def parent_with(modules: tuple[str, ...], cold: bool = False) -> zygote.Zygote | zygote.Branch:
    """The process that has imported them, or has made the runtime, unless `cold`."""
    return _branch(_first(), modules or (() if cold else (WARM,)))


def _first() -> zygote.Zygote:
    """The process that all others come from; with the others, a new one if that has another environment."""
    global _root
    if _root is None or not _root.fits(**_PERTURBED):
        _end_parents()
        _root = zygote.Zygote(**_PERTURBED)
    return _root


def _branch(parent: zygote.Zygote | zygote.Branch, names: tuple[str, ...]) -> zygote.Zygote | zygote.Branch:
    """The one below `parent` that has imported these modules, one after the other."""
    for number, name in enumerate(names, 1):
        before = _branches.get(names[:number])
        if before is None or not before.lives:
            before = _branches[names[:number]] = parent.branch(name)
        parent = before
    return parent


def _end_parents() -> None:
    end_file()
    for branch in _branches.values():
        branch.close()
    _branches.clear()
    if _root is not None:
        _root.close()


class _File:
    """A file with isolated tests: from the second one on, they are forked from a process that has imported it."""

    def __init__(self, module: str, paths: list[str]) -> None:
        self.module, self._paths = module, paths
        self._branches: dict[tuple[Any, ...], zygote.Branch | None] = {}
        self.company: zygote.Company | None = None

    def parent(self, *kind: Any) -> zygote.Zygote | zygote.Branch:
        """`kind`: the arguments of parent_with."""
        parent = parent_with(*kind)
        if kind not in self._branches:
            self._branches[kind] = None
            return parent
        branch = self._branches[kind]
        if branch is None or not branch.lives:
            branch = self._branches[kind] = parent.branch(self.module, paths=self._paths)
        return branch

    def end(self) -> None:
        for branch in self._branches.values():
            if branch is not None:
                branch.close()


_file: _File | None = None
"""The file whose tests run at present."""


def _file_of(module: str, paths: list[str]) -> _File:
    global _file
    _first()  # a new one ends the file's processes
    if _file is None or _file.module != module:
        end_file()
        _file = _File(module, paths)
    return _file


def end_file() -> None:
    """End what the isolated tests of a file have shared.

    Raises AssertionError if the child in which some of them ran does not end well.
    """
    global _file
    if _file is None:
        return
    ended, _file = _file, None
    done = ended.company.end() if ended.company else None
    ended.end()
    if done:
        assert done.returncode == 0, f"the child that tests shared: status {done.returncode}\n{done.stderr[-8000:]}"


def parent_of_company() -> zygote.Zygote | zygote.Branch:
    """Apart from all others, for it waits while its child lives."""
    return _branch(_first(), (WARM, "fprobe"))


def _run_shared(file: _File, source: str, timeout: float) -> subprocess.CompletedProcess[str]:
    """In the child that the tests of this file share: a new one where there is none, or where a test has failed."""
    if file.company is None:
        file.company = zygote.Company(parent_of_company())
    company = file.company
    done = company.run(source, timeout)
    if done.returncode:
        file.company = None
        company.end()  # whatever the test has left
    return done


def run_module(name: str, *arguments: str, timeout: float) -> subprocess.CompletedProcess[str]:
    """As `python -m NAME ARGUMENTS`, but by run_forked."""
    return run_forked(_MODULE.format(name=name, arguments=arguments), timeout)


def run_example(name: str, *arguments: str, timeout: float) -> subprocess.CompletedProcess[str]:
    """As `python examples/NAME.py ARGUMENTS`, but by run_forked."""
    file = f"{EXAMPLES}/{name}.py"
    return run_forked(_EXAMPLE.format(file=file, folder=EXAMPLES, arguments=arguments), timeout)


def run(command: Sequence[str], timeout: float, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command with a time limit in seconds.

    What exceeds it is ended by SIGABRT, at which faulthandler says where every thread is.
    """
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **environment},
    )  # fmt: skip
    try:
        out, err = child.communicate(timeout=zygote.patience(timeout))
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGABRT)
        try:
            out, err = child.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            child.kill()
            out, err = child.communicate()
        err += f"\ntook more than {timeout} s"
    return subprocess.CompletedProcess(child.args, child.returncode, out, err)


def isolated(
    test: Callable[..., None] | None = None,
    *,
    timeout: float = 30,
    torn_down: bool = False,
    shared: bool = False,
    cold: bool = False,
    modules: tuple[str, ...] = (),
    **environment: str,
) -> Any:
    """Decorator: the test's body runs in a fresh interpreter, and fails if that does not end well and in time (`patience`).

    `torn_down`: the interpreter then clears all modules, which is left out otherwise (zygote.end). `shared`: the interpreter
    is that of the earlier shared tests of this file, if they passed; for tests that leave nothing but programs and probes.
    `cold`: it has not made the runtime yet, for tests of how that starts; otherwise it is a child of a process that has.
    `modules`: what the interpreter has imported besides what all have, such as NUMBA; it is cold, too. `environment`:
    variables for that process, which is a new one then. Parameters of the test have to survive repr().
    """
    if test is None:
        return functools.partial(
            isolated, timeout=timeout, torn_down=torn_down, shared=shared, cold=cold, modules=modules, **environment
        )

    @functools.wraps(test)
    def wrapper(**arguments: Any) -> None:
        paths = [str(Path(sys.modules[test.__module__].__file__ or "").parent), str(TESTS)]
        source = _CHILD.format(paths=paths, module=test.__module__, name=test.__name__, arguments=arguments)
        source += zygote.TEAR_DOWN * torn_down
        if environment:
            done = run_source(source, timeout=timeout, **environment)
        elif shared:
            done = _run_shared(_file_of(test.__module__, paths), source, timeout)
        else:
            done = _file_of(test.__module__, paths).parent(modules, cold).run(source, timeout)
        ended = done.returncode == 0 and done.stdout.endswith("the test has ended\n")
        assert ended, f"status {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}"

    return wrapper
