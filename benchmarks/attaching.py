"""Attaching to a running Python, beside Frida, gdb and py-spy: until it is armed, how long it stands, memory, and a hit."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.libraries import TARGET
from benchmarks.measure import Row, Sample
from benchmarks.traced import traced
from fprobe.run.launcher.attached import Attached
from fprobe.run.launcher.native_maps import read_maps
from fprobe.run.session import Settings

_ROUNDS = 7
_HANDLERS = Path(__file__).with_name("attached_handlers.py")
_PROGRAM = """
import time, zlib
print("ready", flush=True)
while True:
    zlib.compress(b"x" * 1000)
    time.sleep(0.001)
"""
_FRIDA = """
import sys, frida
session = frida.attach(int(sys.argv[1]))
hook = "Interceptor.attach(Module.findGlobalExportByName('deflate'), { onEnter() {}, onLeave() {} });"
script = session.create_script(hook)
script.load()
print("armed", flush=True)
sys.stdin.readline()
"""
_COMMANDS: dict[str, tuple[str, list[str]]] = {
    "frida": ("armed", [sys.executable, "-c", _FRIDA, "{pid}"]),
    "gdb": ("", ["gdb", "-q", "-batch", "-p", "{pid}", "-ex", "detach"]),
    "py-spy": ("", ["py-spy", "dump", "-p", "{pid}"]),
}
"""Other tools: the line that they print when they are there, "" for their end, and their commands."""
_FPROBE = ("attached", [sys.executable, "-m", "fprobe.cli", "stat", "-p", "{pid}", "libz:deflate", "--duration", "0.3"])


@contextlib.contextmanager
def _program() -> Iterator[int]:
    """A new process that can be attached to."""
    with subprocess.Popen([sys.executable, "-c", _PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout and process.stdout.readline() == "ready\n"
            yield process.pid
        finally:
            process.kill()


class _Watch:
    """Polls the state of a process's first thread: how long it was stopped at a time, at most."""

    def __init__(self, pid: int) -> None:
        self._file = Path(f"/proc/{pid}/stat")
        self._is_over = False
        self.longest = 0.0
        self._thread = threading.Thread(target=self._poll)
        self._thread.start()

    def _poll(self) -> None:
        since = 0.0
        with contextlib.suppress(OSError), self._file.open("rb", 0) as file:
            while not self._is_over:
                file.seek(0)
                stopped, now = file.read(200).rpartition(b")")[2][1:2] in b"tT", time.perf_counter()
                since = (since or now) if stopped else 0.0
                self.longest = max(self.longest, now - since) if since else self.longest

    def end(self) -> float:
        """The longest stop in seconds, as far as it was seen."""
        self._is_over = True
        self._thread.join()
        return self.longest


def _used(pid: int) -> float:
    """Megabytes that the process has, without shared files."""
    found = re.search(r"RssAnon:\s*(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def _attached(tool: tuple[str, list[str]], look: Callable[[int], float]) -> tuple[float, float]:
    """Let a tool attach: the seconds until it is there, and what `look` sees then."""
    word, command = tool
    with _program() as pid:
        before, start = look(pid), time.perf_counter()
        words = [part.replace("{pid}", str(pid)) for part in command]
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            assert process.stdout
            while (line := process.stdout.readline()) and (not word or word not in line):
                continue
            seconds, found = time.perf_counter() - start, look(pid) - before
            process.communicate("\n")
    return seconds, found


def _others() -> Iterator[str]:
    for name, (_, command) in _COMMANDS.items():
        if name == "frida":
            with contextlib.suppress(ImportError):
                import frida  # noqa: F401  # whether it is there

                yield name
        elif shutil.which(command[0]):
            yield name


def _start() -> Sample:
    seconds, _ = _attached(_FPROBE, lambda _: 0.0)
    extra = {f"{name}_ms": _attached(_COMMANDS[name], lambda _: 0.0)[0] * 1e3 for name in _others()}
    return Sample(0.0, seconds * 1e9, 1, 1, extra=extra)


def _stopped() -> Sample:
    def longest(tool: tuple[str, list[str]]) -> float:
        watches: list[_Watch] = []

        def look(pid: int) -> float:
            if watches:
                return watches[0].end()
            watches.append(_Watch(pid))
            return 0.0

        return _attached(tool, look)[1]

    extra = {f"{name}_ms": longest(_COMMANDS[name]) * 1e3 for name in _others()}
    return Sample(0.0, longest(_FPROBE) * 1e9, 1, 1, extra=extra)


def _memory() -> Sample:
    _, added = _attached(_FPROBE, _used)
    extra = {"added_mb": added} | {
        f"{name}_mb": _attached(_COMMANDS[name], _used)[1] for name in _others() if name == "frida"
    }
    return Sample(0.0, added, 1, 1, extra=extra)


def _native(calls: int) -> Sample:
    """Raises AssertionError if the handlers have seen other returns than entries."""
    native = f"{_HANDLERS}:entered:left"
    with traced(calls) as process:
        process.nanoseconds()  # the first calls are slower
        baseline = process.nanoseconds()
        attached = Attached(process.pid, Settings(handled=(TARGET,), native=native))
        probed = process.nanoseconds()
        attached.detach()
        contents = read_maps(native, attached.results().processes, attached.counts)[process.pid]
        entries, returns = (
            int(re.findall(r"\d+", line)[-1]) for line in contents.lines() if re.search(r"^\D*[01]\D", line)
        )
        attached.close()
    assert entries == returns, f"{entries} entries and {returns} returns"
    return Sample(baseline, probed, calls, entries)


def rows(calls: int) -> list[Row]:
    """The rows. Other tools are left out where they are not installed."""
    return [
        Row("attach.start", "fprobe stat -p PID libz:deflate: until it is armed", _start, _ROUNDS),
        Row("attach.stopped", "the longest stop of the process meanwhile", _stopped, _ROUNDS),
        Row("attach.memory", "megabytes of its own that the process has more", _memory, 3),
        Row("attach.both.native", f"native handlers at both ends of {TARGET}, attached", lambda: _native(calls), 3),
    ]
