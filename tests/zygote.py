"""A process that has imported what every test imports, and forks for each isolated test.

Starting Python and importing llvmlite, pytest and the packages takes longer than most tests. The process has one thread, has
loaded no program and made no runtime: its children are as fresh as new interpreters that have done the same imports.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import gc
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

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
    "capstone", "ctypes.util", "elftools.dwarf.dwarfinfo", "hypothesis", "llvmlite.binding", "llvmlite.ir", "programs", "pytest",
    "sandbox.demo", "sandbox.demo.main", "sandbox.symbols.disassembly", "sandbox.symbols.dwarf",
    *(f"sandbox.loading.{name}" for name in ("adoption", "calls", "csource", "load", "native_program", "sharedobject", "thunks")),
    *(f"sandbox.native.{name}" for name in ("back.lowering", "front.checker", "front.frontend", "front.graph", "model")),
    "ftrace.events.boot", "ftrace.events.hit.handlers", "ftrace.files.tracing_on", "ftrace.filters.function_probes",
    "ftrace.handlers.native_handler", "ftrace.hit.python_call", "ftrace.maps.variable", "ftrace.output.trace", "ftrace.runtime",
    "ftrace.tracefs.tree", "ftrace.x86_64.trampolines",
    "kprobes.attachment", "kprobes.events.event_place", "kprobes.jump.optimize", "kprobes.handlers.native_decorator",
    "kprobes.x86_64.detour", "kprobes.x86_64.single_handlers",
    "fprobe.actions", "fprobe.attachment", "fprobe.events.lines", "fprobe.handlers.native",
    "fprobe.run.launcher.report", "fprobe.shell.commands",
    *(f"fprobe.cli.{verb}" for verb in ("disasm", "functions", "graph", "native", "profile", "record", "stat", "trace", "verbs")),
)  # fmt: skip
"""None of them makes a runtime (as fprobe.tracefs does) or a per-task variable (as kprobes.library_loads does)."""


_NOT_PASSED_ON = ("PYTEST_CURRENT_TEST", "PYTHONUNBUFFERED")
"""What says which test runs, and what makes the C library write a line in pieces, between ours."""


class Zygote:
    """The process, as its parent sees it; it ends when this end of the socket is closed."""

    def __init__(self, **environment: str) -> None:
        self.environment = _environment(environment)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        paths = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVER.format(paths=paths, descriptor=theirs.fileno())],
            stdin=subprocess.DEVNULL, env=self.environment, pass_fds=[theirs.fileno()],
        )  # fmt: skip
        theirs.close()
        atexit.register(self.close)

    def close(self) -> None:
        """End the process."""
        atexit.unregister(self.close)
        self._socket.close()
        self._process.wait()

    def fits(self, **environment: str) -> bool:
        """Whether a new process would have the same environment."""
        return self._process.poll() is None and self.environment == _environment(environment)

    def run(self, source: str, timeout: float) -> subprocess.CompletedProcess[str]:
        """Run Python source in a child, with a time limit in seconds, at which it is ended by SIGABRT."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            with tempfile.NamedTemporaryFile("w") as file:
                file.write(source)
                file.flush()
                descriptors = array.array("i", [out.fileno(), err.fileno()])
                self._socket.sendmsg([file.name.encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
                status, late = self._answer(timeout)
            texts = [_text(stream) for stream in (out, err)]
        return subprocess.CompletedProcess(source, status, texts[0], texts[1] + late)

    def _answer(self, timeout: float) -> tuple[int, str]:
        """As _wait. If that is interrupted (by pytest's time limit), the process and its child end: what they would still
        answer would be taken for the answer to the next request.
        """
        pid = 0
        try:
            pid = int(self._socket.recv(64))
            return self._wait(pid, timeout)
        except BaseException:
            self._process.kill()
            self._process.wait()
            if pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            raise

    def _wait(self, pid: int, timeout: float) -> tuple[int, str]:
        """The status with which the child ended, as subprocess gives it, and what there is to say about its time."""
        late = ""
        for limit, number in ((timeout, signal.SIGABRT), (5, signal.SIGKILL), (None, 0)):
            self._socket.settimeout(limit)
            try:
                return os.waitstatus_to_exitcode(int(self._socket.recv(64))), late
            except TimeoutError:
                late = f"\ntook more than {timeout} s"
                with suppress(ProcessLookupError):  # it has just ended
                    os.kill(pid, number)
            finally:
                self._socket.settimeout(None)
        raise AssertionError("a child without an end")


def _text(stream: Any) -> str:
    stream.seek(0)
    return stream.read().decode(errors="replace")


def _environment(environment: dict[str, str]) -> dict[str, str]:
    return {**{key: value for key, value in os.environ.items() if key not in _NOT_PASSED_ON}, **environment}


def serve(descriptor: int) -> str:
    """Fork for each request until the other end is closed; gives, in the child alone, the source that it has to run."""
    for name in _IMPORTS:
        __import__(name)
    gc.freeze()  # so that no collection of a child copies the pages of what was imported
    requests = socket.socket(fileno=descriptor)
    while True:
        path, ancillary, _, _ = requests.recvmsg(4096, socket.CMSG_SPACE(8))
        if not path:
            os._exit(0)
        descriptors = array.array("i", ancillary[0][2])
        pid = os.fork()
        if pid == 0:
            return _become(requests, path.decode(), *descriptors)
        for each in descriptors:
            os.close(each)
        requests.send(str(pid).encode())
        requests.send(str(os.waitpid(pid, 0)[1]).encode())


def _become(requests: socket.socket, path: str, out: int, err: int) -> str:
    """In the child: keep of the parent's descriptors the standard ones only."""
    source = Path(path).read_text()
    for old, new in ((out, 1), (err, 2)):
        os.dup2(old, new)
        os.close(old)
    requests.close()
    return source


def end(status: int) -> None:
    """End the child as the interpreter does, but for clearing all modules: that takes as long as many a test.

    Threads are waited for, and what is registered with atexit is called, Python's and the C library's.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    ctypes.PyDLL(None).exit(status)
