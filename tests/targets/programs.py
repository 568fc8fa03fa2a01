"""The programs that are attached to. Each is started, gets load, and says whether an answer was wrong."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
PYTHONS = Path("~/.pyenv/versions").expanduser()
READY = 120


class Program:
    """A running program. `pids`: the processes that are attached to in turn; `patterns`: of what is probed."""

    patterns = ("libz:*", "libc:malloc")
    children = False

    def __init__(self) -> None:
        self.pids: list[int] = []

    def errors(self) -> list[str]:
        """What has gone wrong since the start."""
        raise NotImplementedError

    def calls(self) -> int:
        """How often it has done what is probed, at least."""
        raise NotImplementedError

    def stop(self) -> None:
        """End it."""
        raise NotImplementedError


class Working(Program):
    """A program that does the same again and again in several threads, checks it, and says on request what came of it."""

    def __init__(self, *command: str) -> None:
        super().__init__()
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._ask(None) == ["ready"]
        self.pids = [self._process.pid]

    def _ask(self, word: str | None) -> list[str]:
        assert self._process.stdin and self._process.stdout
        if word is not None:
            self._process.stdin.write(f"{word}\n")
            self._process.stdin.flush()
        return self._process.stdout.readline().rstrip("\n").split("\t")

    def errors(self) -> list[str]:
        return self._ask("")[1:] if self._process.poll() is None else [f"it has ended: {self._process.returncode}"]

    def calls(self) -> int:
        return int(self._ask("")[0])

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()


class Rust(Working):
    """`tests/targets/counts.rs`."""

    patterns = ("checksum", "libc:malloc")

    def __init__(self) -> None:
        rustc = shutil.which("rustc") or shutil.which("rustc", path=Path("~/.cargo/bin").expanduser())
        if rustc is None:
            raise OSError("there is no rustc")
        self._directory = tempfile.TemporaryDirectory(prefix="target-")
        program = f"{self._directory.name}/counts"
        subprocess.run([rustc, "-O", str(HERE / "counts.rs"), "-o", program], check=True)
        super().__init__(program)

    def stop(self) -> None:
        super().stop()
        self._directory.cleanup()


class Gunicorn(Program):
    """gunicorn with 4 workers and clients that check every answer. Its master is attached to with its children, then a worker."""

    children = True

    def __init__(self) -> None:
        super().__init__()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        command = [
            sys.executable,
            "-m",
            "gunicorn",
            "-w",
            "4",
            "-b",
            f"127.0.0.1:{self._port}",
            "tests.targets.app:application",
        ]
        self._process = subprocess.Popen(
            [*command, "--log-level", "error", "--max-requests", "300"], stdout=subprocess.DEVNULL
        )
        self._errors: list[str] = []
        self._answers = 0
        self._is_over = threading.Event()
        self._await()
        self._threads = [threading.Thread(target=self._load, args=(number,)) for number in range(2)]
        for each in self._threads:
            each.start()
        self.pids = [self._process.pid]

    def _await(self) -> None:
        end = time.monotonic() + READY
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                self._answer(b"first")
                return
            time.sleep(0.05)
        raise TimeoutError("gunicorn does not answer")

    def _answer(self, body: bytes) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=READY)
        try:
            connection.request("POST", "/", body)
            answer = connection.getresponse()
            found = answer.read()
            if answer.status != 200 or found != body or answer.getheader("X-Length") != str(len(body)):
                self._errors.append(f"status {answer.status}, {len(found)} bytes instead of {len(body)}")
        finally:
            connection.close()

    def _load(self, number: int) -> None:
        while not self._is_over.is_set():
            body = os.urandom(200 + number) * 10
            try:
                self._answer(body)
                self._answers += 1
            except (OSError, http.client.HTTPException) as error:
                self._errors.append(repr(error))
            time.sleep(0.002)

    def errors(self) -> list[str]:
        ended = [f"it has ended: {self._process.returncode}"] if self._process.poll() is not None else []
        return [*ended, *self._errors]

    def calls(self) -> int:
        return self._answers

    def stop(self) -> None:
        self._is_over.set()
        for each in self._threads:
            each.join()
        self._process.terminate()
        self._process.wait()


def programs() -> Iterator[tuple[str, object]]:
    """The names of the programs, and what starts them."""
    for number in range(10, 14):
        for python in sorted(PYTHONS.glob(f"3.{number}.*/bin/python"))[:1]:
            yield f"python3.{number}", lambda python=python: Working(str(python), str(HERE / "working.py"))
    yield "rust", Rust
    yield "gunicorn", Gunicorn
