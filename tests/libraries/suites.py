"""Which tests exercise which libraries, and how they are run: CPython's by unittest, those of packages by pytest."""

from __future__ import annotations

import importlib
import unittest
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

Outcomes = dict[str, str]
"""What came of each test, by its name; of a module that cannot be imported, NOT_RUN and the reason by the module's."""
NOT_RUN = "not run: "


@dataclass(frozen=True)
class Suite:
    """`libraries`: globs of the names of shared objects, loaded by importing `package`, or by those names if there is none.

    `tests`: what `outcomes` runs.
    """

    libraries: tuple[str, ...]
    tests: tuple[str, ...]
    outcomes: Callable[[tuple[str, ...]], Outcomes]
    package: str = ""

    def only(self, tests: str) -> Suite:
        """The same with these of its tests, separated by commas."""
        return replace(self, tests=tuple(tests.split(",")))


class _Result(unittest.TestResult):
    """The outcome of each test by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: Outcomes = {}

    def stopTest(self, test: Any) -> None:  # noqa: N802
        self.outcomes.setdefault(test.id(), "ok")
        super().stopTest(test)

    def addSkip(self, test: Any, reason: str) -> None:  # noqa: N802
        self.outcomes[test.id()] = "skipped"
        super().addSkip(test, reason)

    def addError(self, test: Any, err: Any) -> None:  # noqa: N802
        self.outcomes[test.id()] = "error"
        super().addError(test, err)

    def addFailure(self, test: Any, err: Any) -> None:  # noqa: N802
        self.outcomes[test.id()] = "failure"
        super().addFailure(test, err)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:  # noqa: N802
        if err is not None:
            self.outcomes[test.id()] = "failure"
        super().addSubTest(test, subtest, err)


def of_cpython(names: tuple[str, ...]) -> Outcomes:
    """Those of modules of CPython's package `test`."""
    result = _Result()
    for name in names:
        try:
            importlib.import_module(f"test.{name}")
        except (ImportError, unittest.SkipTest) as error:
            result.outcomes[name] = f"{NOT_RUN}{error}"
        else:
            unittest.defaultTestLoader.loadTestsFromName(f"test.{name}").run(result)
    return result.outcomes


class _Reports:
    """A plugin of pytest: the outcome of each test, with the phase in which it did not pass."""

    def __init__(self) -> None:
        self.outcomes: Outcomes = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.nodeid] = f"{report.outcome} in {report.when}"


_BARE = ("cacheprovider", "faulthandler", "xdist", "timeout", "fprobe.pytest_plugin")
"""Plugins that the tests are run without: they keep files, replace signal handlers or start other processes."""


def of_package(paths: tuple[str, ...]) -> Outcomes:
    """Those of files or directories of an installed package, such as `numpy/linalg/tests`, but for the slow ones."""
    import pytest

    package = importlib.import_module(paths[0].partition("/")[0])
    root = Path(package.__file__ or "").parents[1]
    reports = _Reports()
    without = [argument for plugin in _BARE for argument in ("-p", f"no:{plugin}")]
    files = [str(root / path) for path in paths]
    status = pytest.main(
        ["-q", "-c", "/dev/null", "--rootdir", str(root), "-m", "not slow", *without, *files], [reports]
    )
    if status > pytest.ExitCode.TESTS_FAILED:
        raise RuntimeError(f"pytest ended with {status!r}")
    return reports.outcomes


def _cpython(library: str, *tests: str) -> dict[str, Suite]:
    return {library: Suite((library,), tests, of_cpython)}


_NUMPY = ("_core", "linalg", "fft", "lib", "ma", "polynomial", "random", "matrixlib")

SUITES: dict[str, Suite] = {
    **_cpython("libz.so.1", "test_zlib", "test_gzip"),
    **_cpython("libbz2.so.1.0", "test_bz2"),
    **_cpython("liblzma.so.5", "test_lzma"),
    **_cpython("libexpat.so.1", "test_pyexpat", "test_xml_etree", "test_xml_etree_c", "test_minidom", "test_sax"),
    **_cpython("libm.so.6", "test_math", "test_cmath"),
    **_cpython("libsqlite3.so.0", "test_sqlite3", "test_dbm"),
    **_cpython("libcrypto.so.3", "test_hashlib", "test_hmac"),
    **_cpython("libssl.so.3", "test_ssl"),
    **_cpython("libffi.so.8", "test_ctypes"),
    "numpy": Suite(
        ("_multiarray_umath.*", "_umath_linalg.*", "_pocketfft_umath.*", "libscipy_openblas*"),
        tuple(f"numpy/{part}/tests" for part in _NUMPY),
        of_package,
        package="numpy.fft",  # which numpy imports when it is first used
    ),
}
"""By the name that the command line takes."""


def suite_called(argument: str) -> tuple[str, Suite]:
    """The suite that `NAME` or `NAME=TEST,...` means, and its name. Raises ValueError if there is none."""
    name, equals, tests = argument.partition("=")
    if name not in SUITES:
        raise ValueError(f"no library {name!r}; there are: {', '.join(SUITES)}")
    return name, SUITES[name].only(tests) if equals else SUITES[name]
