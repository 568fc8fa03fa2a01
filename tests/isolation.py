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
NUMBA = ("warm_numba",)
"""`modules` of tests that compile with Numba, which takes a second to be imported."""

_PERTURBED = {"MALLOC_PERTURB_": "165"}
"""Freed memory is overwritten."""

_CHILD = """
import faulthandler, importlib, sys
faulthandler.enable()
sys.path[:0] = {paths!r}
getattr(importlib.import_module({module!r}), {name!r}).__wrapped__(**{arguments!r})
print("the test has ended")
"""
_TEAR_DOWN = "sys.exit()\n"
_MODULE = """
import runpy, sys
sys.argv[1:] = {arguments!r}
runpy.run_module({name!r}, run_name="__main__", alter_sys=True)
"""


def run_source(source: str, *, timeout: float = 30, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python source in a fresh interpreter, where freed memory is overwritten, with a time limit in seconds."""
    return run([sys.executable, "-c", source], timeout, **_PERTURBED, **environment)


_zygotes: dict[tuple[str, ...], zygote.Zygote] = {}


def run_forked(source: str, timeout: float, modules: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """As run_source, in an interpreter that has imported the packages, and `modules`.

    Standard input is empty; standard output and error are files. It ends as zygote.end() says, unless by `sys.exit()`.
    """
    return zygote_with(modules).run(source, timeout)


def zygote_with(modules: tuple[str, ...]) -> zygote.Zygote:
    """The one that has imported them; a new one if that has another environment, or has ended."""
    found = _zygotes.get(modules)
    if found is not None and found.fits(**_PERTURBED):
        return found
    if found is not None:
        found.close()
    made = _zygotes[modules] = zygote.Zygote(*modules, **_PERTURBED)
    return made


SHARED = ("fprobe",)
"""A zygote of its own, for it waits while its child lives."""

_company: tuple[str, zygote.Company] | None = None
"""The module whose tests share a child at present, and that child."""


def end_company() -> None:
    """End the child that tests share, if there is one, as interpreters end. Raises AssertionError if it does not end well."""
    global _company
    if _company is not None:
        (_, ended), _company = _company, None
        done = ended.end()
        assert done.returncode == 0, f"the child that tests shared: status {done.returncode}\n{done.stderr[-8000:]}"


def _run_shared(module: str, source: str, timeout: float) -> subprocess.CompletedProcess[str]:
    """In the child that the tests of this module share: a new one where there is none, or where a test has failed."""
    global _company
    if _company is None or _company[0] != module:
        end_company()
        _company = module, zygote.Company(zygote_with(SHARED))
    company = _company[1]
    done = company.run(source, timeout)
    if done.returncode:
        _company = None
        company.end()  # whatever the test has left
    return done


def run_module(name: str, *arguments: str, timeout: float) -> subprocess.CompletedProcess[str]:
    """As `python -m NAME ARGUMENTS`, but by run_forked."""
    return run_forked(_MODULE.format(name=name, arguments=arguments), timeout)


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
        out, err = child.communicate(timeout=timeout)
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
    modules: tuple[str, ...] = (),
    **environment: str,
) -> Any:
    """Decorator: the test's body runs in a fresh interpreter, and fails if that does not end well and in time.

    `torn_down`: the interpreter then clears all modules, which is left out otherwise (zygote.end). `shared`: the interpreter
    is that of the earlier shared tests of this file, if they passed; for tests that leave nothing but programs and probes.
    `modules`: what the interpreter has imported besides what all have, such as NUMBA. `environment`: variables for that
    process, which is a new one then. Parameters of the test have to survive repr().
    """
    if test is None:
        return functools.partial(
            isolated, timeout=timeout, torn_down=torn_down, shared=shared, modules=modules, **environment
        )

    @functools.wraps(test)
    def wrapper(**arguments: Any) -> None:
        paths = [str(Path(sys.modules[test.__module__].__file__ or "").parent), str(TESTS)]
        source = _CHILD.format(paths=paths, module=test.__module__, name=test.__name__, arguments=arguments)
        source += _TEAR_DOWN * torn_down
        if environment:
            done = run_source(source, timeout=timeout, **environment)
        elif shared:
            done = _run_shared(test.__module__, source, timeout)
        else:
            done = run_forked(source, timeout, modules)
        ended = done.returncode == 0 and done.stdout.endswith("the test has ended\n")
        assert ended, f"status {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}"

    return wrapper
