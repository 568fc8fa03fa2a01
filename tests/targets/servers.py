"""Servers in machine code, under load: redis, nginx, PostgreSQL. Each is started in a directory of its own, and stopped."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.request import urlopen

from tests.targets.programs import READY, Program

BODY = bytes(range(256)) * 16


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class Server(Program):
    """A server and the threads that ask it. `asked` answers a question, or raises; a wrong answer is an AssertionError."""

    patterns: Sequence[str] = ("libc:malloc",)

    def __init__(self) -> None:
        super().__init__()
        self.port = free_port()
        self._directory = tempfile.TemporaryDirectory(prefix="target-", dir="/var/tmp")
        self.directory = Path(self._directory.name)
        self._errors: list[str] = []
        self._answers = 0
        self._is_over = threading.Event()
        self._process = self.started()
        end = time.monotonic() + READY
        while True:
            with contextlib.suppress(OSError, AssertionError):
                self.asked(0)
                break
            if time.monotonic() > end or self._process.poll() is not None:
                self._process.kill()
                raise OSError(f"{type(self).__name__} does not answer")
            time.sleep(0.05)
        self.pids = self.processes()
        self._threads = [threading.Thread(target=self._load, args=(number,)) for number in range(2)]
        for each in self._threads:
            each.start()

    @abstractmethod
    def started(self) -> subprocess.Popen[bytes]:
        """The server."""

    @abstractmethod
    def asked(self, number: int) -> int:
        """Ask and check. Returns how many answers came."""

    def processes(self) -> list[int]:
        """Those that are attached to in turn."""
        return [self._process.pid]

    def children_of(self, pid: int) -> list[int]:
        """The processes that it has forked."""
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def _load(self, number: int) -> None:
        while not self._is_over.is_set():
            try:
                self._answers += self.asked(number)
            except (OSError, AssertionError, subprocess.SubprocessError) as error:
                self._errors.append(repr(error)[:300])
                time.sleep(0.1)

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
        self._directory.cleanup()


class Redis(Server):
    """redis-server; clients set and get values, and redis-benchmark pushes."""

    patterns = ("libc:read", "libc:write", "libc:epoll_wait")

    def started(self) -> subprocess.Popen[bytes]:
        words = ["redis-server", "--port", self.port, "--save", "", "--daemonize", "no", "--dir", self.directory]
        return subprocess.Popen([*map(str, words)], stdout=subprocess.DEVNULL)

    def asked(self, number: int) -> int:
        if number:
            words = ["redis-benchmark", "-p", str(self.port), "-q", "-n", "20000", "-t", "set,get,lpush"]
            subprocess.run(words, check=True, capture_output=True, timeout=READY)
            return 60_000
        value = os.urandom(100).hex().encode()
        with socket.create_connection(("127.0.0.1", self.port), READY) as connection:
            file = connection.makefile("rwb")
            for _ in range(100):
                file.write(b"*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$200\r\n%s\r\n*2\r\n$3\r\nGET\r\n$1\r\nx\r\n" % value)
                file.flush()
                answer = [file.readline(), file.readline(), file.readline()]
                assert answer == [b"+OK\r\n", b"$200\r\n", value + b"\r\n"], answer
        return 200


class Nginx(Server):
    """nginx with two workers; wrk and a client that checks the answers read a file."""

    patterns = ("nginx:ngx_http_process_request", "libc:malloc")
    children = True

    def started(self) -> subprocess.Popen[bytes]:
        (self.directory / "file").write_bytes(BODY)
        places = "".join(
            f"{each}_temp_path {self.directory}/t; " for each in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        server = f"server {{ listen 127.0.0.1:{self.port}; root {self.directory}; }}"
        text = f"""user root; worker_processes 2; daemon off; pid {self.directory}/pid; error_log {self.directory}/log;
        events {{}} http {{ access_log off; {places} {server} }}"""
        (self.directory / "conf").write_text(text)
        return subprocess.Popen(["nginx", "-c", f"{self.directory}/conf"], stderr=subprocess.DEVNULL)

    def asked(self, number: int) -> int:
        if number:
            words = ["wrk", "-t", "1", "-c", "8", "-d", "2s", f"http://127.0.0.1:{self.port}/file"]
            said = subprocess.run(words, check=True, capture_output=True, text=True, timeout=READY).stdout
            assert "Non-2xx" not in said and "Socket errors" not in said, said
            return int(said.split(" requests in ")[0].split()[-1])
        with urlopen(f"http://127.0.0.1:{self.port}/file", timeout=READY) as answer:
            assert answer.read() == BODY
        return 1

    def processes(self) -> list[int]:
        return [self._process.pid, *self.children_of(self._process.pid)]


class Postgres(Server):
    """PostgreSQL; pgbench runs transactions. The postmaster is attached to, with its backends."""

    patterns = ("postgres:exec_simple_query", "libc:malloc")
    children = True

    def started(self) -> subprocess.Popen[bytes]:
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
        if not found:
            raise OSError("there is no /usr/lib/postgresql/*/bin")
        tools = found[-1]
        user = pwd.getpwnam("postgres")
        shutil.chown(self.directory, user.pw_uid, user.pw_gid)
        data = self.directory / "data"
        as_user = ["runuser", "-u", "postgres", "--"] if not os.geteuid() else []
        initdb = [*as_user, tools / "initdb", "-A", "trust", "-U", "postgres", data]
        subprocess.run(initdb, check=True, capture_output=True, cwd="/")
        options = ["-D", data, "-p", str(self.port), "-h", "127.0.0.1", "-k", self.directory]
        self._is_filled = False
        given = {"user": user.pw_uid, "group": user.pw_gid} if not os.geteuid() else {}
        return subprocess.Popen([tools / "postgres", *options], stderr=subprocess.DEVNULL, cwd="/", **given)

    def asked(self, number: int) -> int:
        words = ["pgbench", "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres"]
        if not self._is_filled:
            if subprocess.run([*words, "-i", "-q", "postgres"], capture_output=True, timeout=READY).returncode:
                raise OSError("not yet")
            self._is_filled = True
        run = [*words, "-c", "2", "-t", "200", "-n", "postgres"]
        done = subprocess.run(run, capture_output=True, text=True, timeout=READY)
        assert not done.returncode and "failed transactions: 0 " in done.stdout, done.stderr + done.stdout
        return 400


class Backend(Postgres):
    """PostgreSQL; a backend that serves pgbench for as long as that runs is attached to."""

    children = False

    def processes(self) -> list[int]:
        words = ["pgbench", "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", "-n", "-c", "1", "-T", "86400"]
        before = self.children_of(self._process.pid)  # some of these may be ending
        self._bench = subprocess.Popen([*words, "postgres"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + READY
        while time.monotonic() < end:
            time.sleep(0.05)
            for pid in set(self.children_of(self._process.pid)) - set(before):
                with contextlib.suppress(OSError):
                    if b"postgres: postgres postgres 127" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        return [pid]
        raise OSError("there is no backend")

    def errors(self) -> list[str]:
        ended = [f"pgbench has ended: {self._bench.returncode}"] if self._bench.poll() is not None else []
        return [*super().errors(), *ended]

    def stop(self) -> None:
        self._bench.terminate()
        self._bench.wait()
        super().stop()


def servers() -> Iterator[tuple[str, Callable[[], Program]]]:
    """The names of the servers, and what starts them: packages of Debian."""
    yield from (("redis", Redis), ("nginx", Nginx), ("postgresql", Postgres), ("backend", Backend))
