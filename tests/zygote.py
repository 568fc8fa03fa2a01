"""A process that has imported what every test imports, and forks for each isolated test.

Starting Python and importing llvmlite, pytest and the packages takes longer than most tests. The process has one thread, has
loaded no program and made no runtime: its children are as fresh as new interpreters that have done the same imports. A branch
of it is a child that has imported more, such as `warm_runtime`, and forks for tests in its turn.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import process_state

_SERVER = """
import sys
sys.path[:0] = {paths!r}
import zygote
source = zygote.serve({descriptor})
end = zygote.end
del zygote
try:
    exec(compile(source, "<string>", "exec"))
except SystemExit as ended:
    if type(ended.code) is not int:
        raise
    end(ended.code)
end(0)
"""
_IMPORTS = (
    "capstone", "ctypes.util", "elftools.dwarf.dwarfinfo", "hypothesis", "llvmlite.binding", "llvmlite.ir", "pytest",
    "program_generator", "programs", "sandbox.demo", "sandbox.demo.main", "sandbox.symbols.disassembly", "sandbox.symbols.dwarf",
    *(f"sandbox.loading.{name}" for name in ("adoption", "calls", "csource", "load", "native_program", "sharedobject", "thunks")),
    *(f"sandbox.native.{name}" for name in ("back.lowering", "front.checker", "front.fields", "front.frontend", "front.graph")),
    "sandbox.native.front.lint", "sandbox.images.numba.description", "sandbox.images.numba.images",
    "ftrace.core.direct", "ftrace.tracing.events.boot", "ftrace.tracing.events.hit.handlers", "ftrace.tracing.files.tracing_on",
    "ftrace.core.filters.function_probes", "ftrace.core.filters.lookup", "ftrace.core.handlers.native_handler",
    "ftrace.hit.python_call",
    "ftrace.core.maps.listing", "ftrace.core.maps.variable", "ftrace.tracing.output.trace", "ftrace.core.runtime",
    "ftrace.tracing.tracefs.files",
    "ftrace.tracing.tracefs.tree", "ftrace.core.unwind.stacktrace", "ftrace.hit.x86_64.trampolines",
    "kprobes.attachment", "kprobes.events.event_place", "kprobes.optimization", "kprobes.handlers.native_decorator",
    "kprobes.hit.assembly", "kprobes.x86_64.detour", "kprobes.x86_64.single_handlers",
    "fprobe.actions", "fprobe.attachment", "fprobe.calls.log", "fprobe.events.lines", "fprobe.export.formats",
    "fprobe.export.trace_dat_reader", "fprobe.handlers.native", "fprobe.numba", "fprobe.run.launcher.report",
    *(f"fprobe.cli.{verb}" for verb in ("calls", "conclusion", "counted", "disasm", "doctor", "functions")),
    *(f"fprobe.cli.{verb}" for verb in ("hist", "matching", "native", "program", "record", "running", "stat")),
    *(f"fprobe.cli.{verb}" for verb in ("trace", "tracefs", "verbs")),
)  # fmt: skip
"""None of them makes a runtime (as fprobe.tracefs does) or a per-task variable (as kprobes.library_loads does)."""


_NOT_PASSED_ON = ("PYTEST_CURRENT_TEST", "PYTHONUNBUFFERED")
"""What says which test runs, and what makes the C library write a line in pieces, between ours."""


TEAR_DOWN = "sys.exit()\n"
"""How the source ends of a child that has to end as the interpreter does."""
_BRANCH = "branch "
"""How a request for a branch begins; the folders and modules that it imports follow. Any other is the path of a file."""


def patience(seconds: float) -> float:
    """A time limit; up to four times as long where more processes want to run than there are CPUs."""
    return seconds * min(4, max(1, os.getloadavg()[0] / (os.cpu_count() or 1)))


class _Parent:
    """A process that forks for tests, as the tests see it; it ends when this end of the socket is closed."""

    def __init__(self, socket_: socket.socket) -> None:
        self._socket = socket_
        atexit.register(self.close)

    def close(self) -> None:
        """End the process."""
        atexit.unregister(self.close)
        self._socket.close()

    def kill(self) -> None:
        """End the process at once, wherever it is."""
        self._socket.close()

    def branch(self, *modules: str, paths: Sequence[str] = ()) -> Branch:
        """A child that imports these modules, which may be in these folders, and forks for tests like its parent."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            request = _BRANCH + json.dumps([[*paths], [*modules]])
            self._socket.sendmsg(
                [request.encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [theirs.fileno()]))]
            )
        return Branch(ours, int(self._socket.recv(64)))

    def run(self, source: str, timeout: float) -> subprocess.CompletedProcess[str]:
        """Run Python source in a child, with a time limit in seconds, at which it is ended by SIGABRT."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            with _request(self._socket, source, out, err):
                status, late = self._answer(timeout)
            texts = [_text(stream) for stream in (out, err)]
        return subprocess.CompletedProcess(source, status, texts[0], texts[1] + late)

    @contextlib.contextmanager
    def begin(self, source: str, out: IO[bytes], err: IO[bytes]) -> Iterator[int]:
        """Run Python source in a child, whose process ID this is; it must have been read within, and `ended` has to follow."""
        with _request(self._socket, source, out, err):
            yield int(self._socket.recv(64))

    def has_answer(self) -> bool:
        """Whether the child that `begin` has begun has ended."""
        return bool(select.select([self._socket], [], [], 0)[0])

    def ended(self, pid: int, timeout: float) -> tuple[int, str]:
        """Wait for the child that `begin` has begun: its status, as of subprocess, and what there is to say about its time."""
        return self._wait(pid, timeout)

    def _answer(self, timeout: float) -> tuple[int, str]:
        """As _wait. If that is interrupted (by pytest's time limit), the process and its child end: what they would still
        answer would be taken for the answer to the next request.
        """
        pid = 0
        try:
            pid = int(self._socket.recv(64))
            return self._wait(pid, timeout)
        except BaseException:
            self.kill()
            if pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            raise

    def _wait(self, pid: int, timeout: float | None) -> tuple[int, str]:
        """The status with which the child ended, as subprocess gives it, and what there is to say about its time."""
        late = ""
        for limit, number in ((timeout, signal.SIGABRT), (5, signal.SIGKILL), (None, 0)):
            self._socket.settimeout(limit and patience(limit))
            try:
                return os.waitstatus_to_exitcode(int(self._socket.recv(64))), late
            except TimeoutError:
                late = f"\ntook more than {timeout} s"
                with suppress(ProcessLookupError):  # it has just ended
                    os.kill(pid, number)
            finally:
                self._socket.settimeout(None)
        raise AssertionError("a child without an end")


class Zygote(_Parent):
    """The first process: an interpreter of its own."""

    def __init__(self, **environment: str) -> None:
        self.environment = _environment(environment)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        paths = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVER.format(paths=paths, descriptor=theirs.fileno())],
            stdin=subprocess.DEVNULL, env=self.environment, pass_fds=[theirs.fileno()],
        )  # fmt: skip
        theirs.close()
        super().__init__(ours)

    def close(self) -> None:
        """End the process, and with it what it has forked, which is found by its end of a socket."""
        super().close()
        self._process.wait()

    def kill(self) -> None:
        """End the process at once, wherever it is."""
        self._process.kill()
        self._process.wait()

    def fits(self, **environment: str) -> bool:
        """Whether a new process would have the same environment."""
        return self._process.poll() is None and self.environment == _environment(environment)


class Branch(_Parent):
    """A process that another one has forked."""

    def __init__(self, socket_: socket.socket, pid: int) -> None:
        self.lives = True
        self._pid = pid
        super().__init__(socket_)

    def close(self) -> None:
        """End the process."""
        self.lives = False
        super().close()

    def kill(self) -> None:
        """End the process at once, wherever it is."""
        self.close()
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)


class Company:
    """A child in which tests run, one after the other, until it is ended or one of them kills it.

    The programs and probes that a test leaves are gone before the next one.
    """

    def __init__(self, parent: _Parent) -> None:
        self.lives = True
        self._tests = 0
        self._parent = parent
        self._streams = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind("")  # the kernel chooses an abstract address
            listener.listen(1)
            listener.settimeout(30)
            source = f"import zygote\nzygote.serve_tests({listener.getsockname()!r})"
            with parent.begin(source, *self._streams) as self._pid:
                self._socket, _ = listener.accept()

    def run(self, source: str, timeout: float) -> subprocess.CompletedProcess[str]:
        """Run Python source, with a time limit in seconds, at which the child is ended by SIGABRT."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            with _request(self._socket, source, out, err):
                status, late = self._answer(timeout)
            said = f"\n{self._tests} tests had run in this process before" if status else ""
            texts = [_text(stream) for stream in (out, err)]
        self._tests += 1
        return subprocess.CompletedProcess(source, status, texts[0], texts[1] + late + said)

    def _answer(self, timeout: float) -> tuple[int, str]:
        """The status with which the source ended, or the child, if that ended with it."""
        self._socket.settimeout(patience(timeout))
        try:
            answer = self._socket.recv(64)
        except TimeoutError:
            return self._died(0.01)
        except BaseException:  # pytest's own time limit
            os.kill(self._pid, signal.SIGKILL)
            self._died(None)
            raise
        return (int(answer), "") if answer else self._died(None)

    def _died(self, timeout: float | None) -> tuple[int, str]:
        self.lives = False
        self._socket.close()
        return self._parent.ended(self._pid, timeout)

    def end(self) -> subprocess.CompletedProcess[str]:
        """End the child as zygote.end() says, unless it has died; how it ended."""
        status, late = self._died(30) if self.lives else (0, "")
        out, err = (_text(stream) for stream in self._streams)
        for stream in self._streams:
            stream.close()
        return subprocess.CompletedProcess("", status, out, err + late)


@contextlib.contextmanager
def _request(to: socket.socket, source: str, out: IO[bytes], err: IO[bytes]) -> Iterator[None]:
    """Ask for source to be run with these streams; within, the file with the source exists."""
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(source)
        file.flush()
        descriptors = array.array("i", [out.fileno(), err.fileno()])
        to.sendmsg([file.name.encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
        yield


def _text(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read().decode(errors="replace")


def _environment(environment: dict[str, str]) -> dict[str, str]:
    return {**{key: value for key, value in os.environ.items() if key not in _NOT_PASSED_ON}, **environment}


def serve(descriptor: int) -> str:
    """Fork for each request until the other end is closed; gives, in the child alone, the source that it has to run."""
    _import(_IMPORTS)
    requests = socket.socket(fileno=descriptor)
    branches: list[int] = []
    while True:
        path, *descriptors = _receive(requests)
        branches = [pid for pid in branches if os.waitpid(pid, os.WNOHANG) == (0, 0)]
        if not path:
            os._exit(0)
        pid = os.fork()
        if pid == 0 and path.startswith(_BRANCH):
            requests, branches = _branch_off(requests, path, *descriptors), []
        elif pid == 0:
            return _become(requests, path, *descriptors)
        else:
            for each in descriptors:
                os.close(each)
            requests.send(str(pid).encode())
            if path.startswith(_BRANCH):
                branches.append(pid)
            else:
                requests.send(str(os.waitpid(pid, 0)[1]).encode())


def _import(names: Iterable[str]) -> None:
    for name in names:
        __import__(name)
    process_state.freeze()  # so that no collection of a child copies the pages of what was imported


def _branch_off(requests: socket.socket, request: str, descriptor: int) -> socket.socket:
    """In the child: where it gets its requests from. What cannot be imported fails in the test that needs it."""
    requests.close()
    paths, modules = json.loads(request[len(_BRANCH) :])
    sys.path[:0] = paths
    with suppress(BaseException):
        _import(modules)
    return socket.socket(fileno=descriptor)


def _receive(requests: socket.socket) -> tuple[Any, ...]:
    """The path of a file with source and two descriptors, for its output and its errors; or ("",) at the end."""
    path, ancillary, _, _ = requests.recvmsg(4096, socket.CMSG_SPACE(8))
    return (path.decode(), *array.array("i", ancillary[0][2])) if path else ("",)


def _become(requests: socket.socket, path: str, out: int, err: int) -> str:
    """In the child: keep of the parent's descriptors the standard ones only."""
    source = Path(path).read_text()
    _write_to(out, err)
    requests.close()
    if not source.endswith(TEAR_DOWN):
        _leave_out_early_exit_handlers()
    return source


_libc = ctypes.PyDLL(None)


def _leave_out_early_exit_handlers() -> None:
    """Let the C library's exit() end the process after the handlers that are registered from now on.

    The earlier ones are mostly LLVM's, which free what it has made one by one: that takes longer than many a test.
    """
    _libc.on_exit(_libc._exit, None)
    _libc.__cxa_atexit(_libc.fflush, None, None)  # of all streams; it comes first


def _write_to(out: int, err: int) -> None:
    for old, new in ((out, 1), (err, 2)):
        os.dup2(old, new)
        os.close(old)


def serve_tests(address: bytes) -> None:
    """In a child: run source for each request until the other end is closed.

    What is still said after that goes to the child's own streams.
    """
    own = [os.dup(stream) for stream in (1, 2)]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as requests:
        requests.connect(address)
        while True:
            path, *descriptors = _receive(requests)
            if not path:
                break
            source = Path(path).read_text()
            _write_to(*descriptors)
            requests.send(str(_run(source)).encode())
    _write_to(*own)


def _run(source: str) -> int:
    """The status of an interpreter that ran this."""
    before = process_state.state()
    try:
        exec(compile(source, "<string>", "exec"), {"__name__": "__main__"})
        status = 0
    except BaseException:
        traceback.print_exc()
        status = 1
    process_state.clear_up()
    changed = process_state.changes(before)
    sys.stderr.write(changed)
    sys.stdout.flush()
    sys.stderr.flush()
    _libc.fflush(None)
    return 1 if changed else status


def end(status: int) -> None:
    """End the child as the interpreter does, but for clearing all modules: that takes as long as many a test.

    Threads are waited for, and what is registered with atexit is called, Python's and the C library's (what the child itself
    has registered there: _leave_out_early_exit_handlers).
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    _libc.exit(status)
