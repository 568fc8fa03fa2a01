"""Real gdb and real Frida patch functions that fprobe probes, in every order: the program lives on, and counts are exact."""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"  (the decorator fills in what handlers take)

from __future__ import annotations

import ctypes
import importlib.util
import re
import shutil
import subprocess
import sys
import time
import zlib
from contextlib import ExitStack
from pathlib import Path

import pytest
from isolation import isolated
from sampled import in_stress

import fprobe
from sandbox.memory.mappings import write_through_kernel

TARGET = """
import ctypes, os, sys, zlib, fprobe
library = ctypes.CDLL("libz.so.1")
adler = library.adler32
adler.argtypes, adler.restype = (ctypes.c_ulong, ctypes.c_char_p, ctypes.c_uint), ctypes.c_ulong
address, text = ctypes.cast(adler, ctypes.c_void_p).value, b"to be, or not to be" * 2000
def call():
    assert {adler(1, b"abc", 3) for _ in range(10)} == {0x24d0127}
    assert zlib.decompress(zlib.compress(text)) == text
def attach(pattern="libz:adler32"): return fprobe.attach(pattern, action=fprobe.Count()).attach()
attach("libz:crc32").detach()  # the runtime is loaded now: gdb would read the symbols of LLVM
print(os.getpid(), address, ctypes.string_at(address, 8).hex(), flush=True)
for line in sys.stdin:
    try:
        exec(line)
        print("done", flush=True)
    except Exception as error:
        print("failed:", error, flush=True)
"""
A_CALL = 16
"""Calls of adler32 by the target's call(): its own, and zlib's."""


class Target:
    """A program that is told what to do, line by line."""

    def __init__(self):
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", TARGET], stdin=pipe, stdout=pipe, stderr=pipe, text=True, bufsize=1
        )
        pid, address, self.code = self.process.stdout.readline().split()
        self.pid, self.address = int(pid), int(address)

    def ask(self, line):
        self.process.stdin.write(f"{line}\n")
        answer = self.process.stdout.readline().rstrip("\n")
        assert answer, f"{line!r} ended it with {self.process.wait()}: {self.process.stderr.read()}"
        return answer

    def do(self, line):
        assert self.ask(line) == "done", line

    def expect(self, calls, probe="probe"):
        """Call the function, and check how many calls the probe has seen."""
        self.do("call()")
        self.do(f"assert {probe}.hits == {calls}, {probe}.hits")

    def end(self):
        """It ends by itself, and the entry is what it was."""
        self.do(f"assert ctypes.string_at(address, 8).hex() == '{self.code}'")
        self.process.stdin.close()
        assert self.process.wait(20) == 0, self.process.stderr.read()

    @property
    def threads(self):
        return len(list(Path(f"/proc/{self.pid}/task").iterdir()))


@pytest.fixture
def target():
    made = Target()
    yield made
    made.process.kill()
    made.process.wait()
    for stream in (made.process.stdin, made.process.stdout, made.process.stderr):
        stream.close()


class Gdb:
    """gdb, attached to a process."""

    SETTINGS = ("debuginfod enabled off", "auto-solib-add off", "pagination off", "confirm off")

    def __init__(self, pid):
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            ["gdb", "-q", "-nx", *(word for each in self.SETTINGS for word in ("-iex", f"set {each}")), "-p", str(pid)],
            stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True, bufsize=1,
        )  # fmt: skip
        self._marks = 0

    def say(self, command):
        """Give a command to a stopped process. Returns gdb's answer."""
        self._marks += 1
        return self._read_until(f"{command}\necho mark-{self._marks}-\\n\n", f"mark-{self._marks}-")

    def _read_until(self, words, mark):
        self._process.stdin.write(words)
        lines = [self._process.stdout.readline()]
        while lines[-1] and mark not in lines[-1]:
            lines.append(self._process.stdout.readline())
        assert lines[-1], "".join(lines)
        return "".join(lines)

    def go(self):
        self._process.stdin.write("continue &\n")

    def stop(self):
        self._read_until("interrupt\n", "received signal")

    def count_at(self, address):
        """Set a breakpoint that only counts."""
        self.say(f"break *{address}")
        self.say("commands\nsilent\ncontinue\nend")

    @property
    def hits(self):
        return int(re.search(r"already hit (\d+) time", self.say("info breakpoints"))[1])

    def end(self):
        """Detach and quit."""
        self._process.communicate("detach\nquit\n", timeout=20)


@pytest.fixture
def gdb(target):
    if shutil.which("gdb") is None:
        pytest.skip("gdb is not installed")
    made = Gdb(target.pid)
    if "Operation not permitted" in made.say("info inferiors") or "process" not in made.say("info inferiors"):
        pytest.skip("gdb may not attach to processes here")
    yield made
    made._process.kill()
    made._process.communicate()


@pytest.mark.stress
def test_a_breakpoint_of_gdb_that_is_there_first(target, gdb):
    """The function is refused as long as it is there."""
    gdb.count_at(target.address)
    gdb.go()
    assert "adler32 [libz.so.1]: it begins with a breakpoint of another tool" in target.ask("probe = attach()")
    target.do("call()")
    gdb.stop()
    assert gdb.hits == A_CALL
    gdb.say("delete")
    gdb.go()
    target.do("probe = attach()")
    target.expect(A_CALL)
    gdb.stop()
    gdb.end()
    target.expect(2 * A_CALL)
    target.do("probe.detach()")
    target.end()


@pytest.mark.stress
@pytest.mark.parametrize("leaves", ["by deleting it", in_stress("by detaching")])
def test_a_breakpoint_of_gdb_on_a_probed_entry(target, gdb, leaves):
    """Both count. The probe cannot be removed as long as it is there, and can be afterwards."""
    gdb.go()
    target.do("probe = attach()")
    gdb.stop()
    gdb.count_at(target.address)
    gdb.go()
    target.expect(A_CALL)
    refused = target.ask("probe.detach()")
    assert re.search(r"the entry of adler32 at 0x\w+ holds cc:.* \(a debugger's breakpoint: delete it first\)", refused)
    gdb.stop()
    assert gdb.hits == A_CALL
    if leaves == "by deleting it":
        gdb.say("delete")
        gdb.go()
        target.do("call()")
        gdb.stop()
    gdb.end()
    target.do("probe.detach()")
    target.do("probe = attach('libz:*')")
    target.do("call(); probe.detach()")
    target.end()


LISTENER = """
import sys, frida
pid, address = map(int, sys.argv[1:])
session = frida.attach(pid)
script = session.create_script('''
    let entered = 0, left = 0;
    const listener = Interceptor.attach(ptr("%d"), { onEnter() { entered++; }, onLeave() { left++; } });
    Interceptor.flush();
    rpc.exports = { counts() { return [entered, left]; }, leave() { listener.detach(); Interceptor.flush(); } };
''' % address)
script.load()
print("attached", flush=True)
for line in sys.stdin:
    if line == "leave\\n":
        script.exports_sync.leave()
        script.unload()
        session.detach()
        print("left", flush=True)
    else:
        print(*script.exports_sync.counts(), flush=True)
"""


class Frida:
    """Frida's listener on the target's function, in a process of its own: what Frida aborts there is not the tests' process."""

    def __init__(self, target):
        self._target, self._threads = target, target.threads
        command = [sys.executable, "-c", LISTENER, str(target.pid), str(target.address)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, bufsize=1)
        assert self._answer() == "attached"

    def _answer(self):
        answer = self.process.stdout.readline().rstrip("\n")
        assert answer, f"Frida's process ended with {self.process.wait()}: {self.process.stderr.read()}"
        return answer

    def _ask(self, line):
        self.process.stdin.write(f"{line}\n")
        return self._answer()

    def expect(self, calls):
        assert self._ask("counts") == f"{calls} {calls}"

    def leave(self):
        """Returns when its threads have ended: a program that ends before is killed by Frida, with or without fprobe."""
        assert self._ask("leave") == "left"
        end = time.monotonic() + 20
        while self._target.threads > self._threads and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(0.3)

    def end(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def frida(target):
    if importlib.util.find_spec("frida") is None:
        pytest.skip("frida is not installed: pip install 'fprobe[bench]'")
    with ExitStack() as made:

        def listen():
            made.callback((listener := Frida(target)).end)
            return listener

        yield listen


@pytest.mark.parametrize("first_to_leave", ["frida", in_stress("fprobe")])
def test_frida_on_a_probed_entry(target, frida, first_to_leave):
    """It follows our jump and patches the detour; the detours beside that one work nevertheless."""
    target.do("probe = attach()")
    listener = frida()
    target.expect(A_CALL)
    listener.expect(A_CALL)
    target.do("all = attach('libz:*')")
    target.expect(2 * A_CALL)
    listener.expect(2 * A_CALL)
    if first_to_leave == "frida":
        listener.leave()
        target.expect(3 * A_CALL)
        target.do("probe.detach(); all.detach()")
    else:
        target.do("probe.detach(); all.detach()")
        target.do("again = attach()")
        target.expect(A_CALL, "again")
        listener.expect(3 * A_CALL)
        target.do("again.detach()")
        listener.leave()
    target.do("call()")
    target.end()


@pytest.mark.stress
@pytest.mark.parametrize("first_to_leave", ["frida", in_stress("fprobe")])
def test_frida_that_is_there_first(target, frida, first_to_leave):
    """Both count. When Frida leaves first, it takes our patch along, which is told; then the function can be probed again."""
    listener = frida()
    target.do("all = attach('libz:*')")
    target.do("call()")
    listener.expect(A_CALL)
    if first_to_leave == "frida":
        target.do("probe = attach()")
        target.expect(A_CALL)
        listener.leave()
        target.expect(A_CALL)
        assert "has undone the patch of adler32: detach the probes on it first" in target.ask("attach()")
        target.do("probe.detach(); all.detach()")
        target.do("probe = attach()")
        target.expect(A_CALL)
        target.do("probe.detach()")
    else:
        target.do("all.detach()")
        target.do("call()")
        listener.expect(2 * A_CALL)
        listener.leave()
    target.end()


@isolated(timeout=60)
def test_detours_beside_one_that_another_tool_has_written_to():
    """Its page is a copy, which our writable view of the memory does not reach."""
    library, text = ctypes.CDLL("libz.so.1"), b"to be, or not to be" * 1000
    entry = ctypes.cast(library.adler32, ctypes.c_void_p).value
    with fprobe.attach("libz:adler32", action=fprobe.Count()):
        detour = entry
        while (code := ctypes.string_at(detour, 5))[0] == 0xE9:
            detour += 5 + int.from_bytes(code[1:], "little", signed=True)
            write_through_kernel(detour, ctypes.string_at(detour, 1))
        with fprobe.attach("libz:*", action=fprobe.Count()) as probe:
            assert zlib.decompress(zlib.compress(text)) == text
        assert probe.hits > 10 and probe.counts.missed == 0
