"""pytest fixtures for tests of handlers: load a program, attach, call, and check hits, misses and order (docs/pytest.md).

Only pytest is imported until a fixture is used.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from fprobe.attachment import Attachment
    from fprobe.calls.log import CallLog
    from sandbox.loading.module import Module

FLAVOURS = ("fentry", "patchable", "mcount")
_ALL = "all"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of this plugin."""
    group = parser.getgroup("fprobe", "function probes")
    group.addoption(
        "--fprobe-flavour", default="fentry", metavar="NAMES",
        help="stub flavours that fprobe_load compiles programs with: fentry, patchable, mcount, several with commas, "
        "or all; each test that loads a program runs once with each (fentry)",
    )  # fmt: skip
    group.addoption(
        "--fprobe-trace", metavar="PATTERN",
        help="record the calls of functions that match, in programs that fprobe_load has loaded; shown if the test fails",
    )  # fmt: skip


def _flavours(config: pytest.Config) -> list[str]:
    given = config.getoption("--fprobe-flavour")
    return list(FLAVOURS) if given == _ALL else given.split(",")


def pytest_configure(config: pytest.Config) -> None:
    """Check the values of --fprobe-flavour."""
    unknown = [name for name in _flavours(config) if name not in FLAVOURS]
    if unknown:
        raise pytest.UsageError(
            f"--fprobe-flavour: no stub flavour {unknown[0]!r}; there are: {', '.join(FLAVOURS)}, all"
        )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that loads programs once for each flavour."""
    flavours = _flavours(metafunc.config)
    if "fprobe_flavour" in metafunc.fixturenames and len(flavours) > 1:
        metafunc.parametrize("fprobe_flavour", flavours, indirect=True)


class _Session:
    """The attachments and modules of one test."""

    def __init__(self, item: Any) -> None:
        from ftrace.core.tracer import tracer

        self.item = item
        self.modules: list[Module] = []
        self.attached: list[Attachment[Any]] = []
        self.watched: list[Attachment[Any]] = []
        self.traces: list[CallLog] = []
        self.before = list(tracer().enabled)

    def keep(self, attachment: Attachment[Any], allow_errors: bool = False) -> Attachment[Any]:
        """Detach it after the test. Unless `allow_errors`, the test fails if one of its handlers raises."""
        self.attached.append(attachment)
        if not allow_errors:
            self.watched.append(attachment)
        return attachment

    def trace(self, module: Module) -> None:
        """Record the calls of functions that --fprobe-trace names."""
        pattern = self.item.config.getoption("--fprobe-trace")
        if not pattern:
            return
        from fprobe.calls.log import log_calls
        from ftrace.core.glob import parse

        wanted = parse(pattern)
        sites = zip(module.sites, module.site_functions, strict=True)
        addresses = [site for site, function in sites if wanted.matches(function.name)]
        if addresses:
            self.traces.append(log_calls(addresses))

    def check(self) -> None:
        """Raise the first exception of a handler."""
        for attachment in self.watched:
            if attachment.fp.errors.first is not None:
                raise attachment.fp.errors.first

    def end(self) -> list[str]:
        """Detach and unload everything. Returns the functions that the test itself has left probed."""
        from ftrace.core.tracer import tracer

        for attachment in (*self.attached, *(trace.probe for trace in self.traces)):
            attachment.detach()
        left = [ops for ops in tracer().enabled if ops not in self.before]
        names = sorted({str(location) for ops in left for location in ops.selection().each()})
        for ops in left:
            ops.detach()
        for module in reversed(self.modules):
            module.unload()
        return names or ["no function"] * bool(left)


_SESSION = pytest.StashKey[_Session]()


@pytest.fixture
def _fprobe_session(request: pytest.FixtureRequest) -> Generator[_Session, None, None]:
    session = request.node.stash[_SESSION] = _Session(request.node)
    yield session
    left = session.end()
    if left:
        shown = ", ".join(left[:5]) + (f" and {len(left) - 5} more" if len(left) > 5 else "")
        pytest.fail(f"the test has left probes registered, on {shown}", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Fail the test if a handler raised, unless it has already failed."""
    result = yield
    session = pyfuncitem.stash.get(_SESSION, None)
    if session is not None:
        session.check()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Generator[None, Any, Any]:
    """Show the recorded calls of a failed test."""
    report = yield
    session = item.stash.get(_SESSION, None)
    if session is not None and call.when == "call" and report.failed:
        for trace in session.traces:
            if trace.events:
                report.sections.append((f"fprobe trace of {len(trace.events)} events", trace.tree()))
    return report


@pytest.fixture
def fprobe_flavour(request: pytest.FixtureRequest) -> str:
    """The stub flavour that programs are compiled with (--fprobe-flavour)."""
    return str(getattr(request, "param", _flavours(request.config)[0]))


@pytest.fixture
def fprobe_load(
    _fprobe_session: _Session, fprobe_flavour: str, request: pytest.FixtureRequest
) -> Callable[..., Module]:
    """fprobe_load(source, **options): load a program until the end of the test.

    Takes the arguments of `sandbox.load`. A relative path is searched first in the directory of the test's file.
    """
    import sandbox

    def load(source: Any, **options: Any) -> Module:
        if isinstance(source, Path):
            beside = request.path.parent / source
            source = beside if beside.exists() else source
        module = sandbox.load(source, **{"flavour": fprobe_flavour, **options})
        _fprobe_session.modules.append(module)
        _fprobe_session.trace(module)
        return module

    return load


@pytest.fixture
def fprobe_demo(fprobe_load: Callable[..., Module]) -> Module:
    """The built-in demo program, loaded."""
    import sandbox.demo

    return fprobe_load(sandbox.demo.source(), name=sandbox.demo.NAME)


@pytest.fixture
def fprobe_attach(_fprobe_session: _Session) -> Callable[..., Attachment[Any]]:
    """fprobe_attach(target, **options): attach a probe until the end of the test.

    Takes the arguments of `fprobe.attach`. If a Python handler raises, the test fails with its exception, unless
    `allow_errors=True` is given.
    """
    import fprobe

    def attach(*arguments: Any, allow_errors: bool = False, **options: Any) -> Attachment[Any]:
        return _fprobe_session.keep(fprobe.attach(*arguments, **options), allow_errors).attach()

    return attach


@pytest.fixture
def fprobe_record(_fprobe_session: _Session) -> Callable[..., CallLog]:
    """fprobe_record(target, **options): a log of calls (`fprobe.calls.log.CallLog`), attached until the end of the test."""
    from fprobe.calls.log import log_calls

    def start(*arguments: Any, **options: Any) -> CallLog:
        log = log_calls(*arguments, **options)
        _fprobe_session.keep(log.probe)
        return log

    return start
