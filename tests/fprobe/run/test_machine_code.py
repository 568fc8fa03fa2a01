"""Programs in machine code: `fprobe run ./program`, and `-p`. They behave as without probes, and counts are exact."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from attaching import has_interpreter
from sampled import sampled

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))

from command import HAS_COMPILER, forked

from fprobe.run.launcher.attached import Attached
from fprobe.run.session import Settings
from sandbox.remote import interpreter
from sandbox.remote.refusals import Refused

SOURCE = Path(__file__).with_suffix(".c").with_name("machine_code.c")
COMMAND = [sys.executable, "-m", "fprobe.cli"]
LIMIT = 60
HIDDEN = re.compile(r"(?<=SigCgt:)\s\w+|(?<=SigQ:)\s\S+")
"""What changes in its state: handled signals, because probes have handlers, and numbers of the machine."""


pytestmark = pytest.mark.skipif(
    not HAS_COMPILER or not has_interpreter(), reason="no C compiler, or no shared libpython: see fprobe doctor"
)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("machine") / "mc"
    compiler = next(filter(shutil.which, ("cc", "gcc", "clang")))
    subprocess.run([compiler, "-O1", "-g", SOURCE, "-o", path, "-l:libz.so.1", "-pthread"], check=True)
    return path


class Target:
    """The program, which answers words."""

    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self.process.pid
        assert self.process.stdout.readline() == "ready\n"

    def ask(self, word):
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        lines = []
        while (line := self.process.stdout.readline()) != "done\n":
            assert line, f"it has ended: {self.process.wait()}"
            lines.append(line)
        return "".join(lines)

    def text(self):
        """The mapped text of the program and of libz, as the process has it."""
        found = []
        with Path(f"/proc/{self.pid}/mem").open("rb") as memory, Path(f"/proc/{self.pid}/maps").open() as maps:
            for line in maps:
                if "x" in line.split()[1] and re.search(r"/libz\.so\S*\n|/mc\n|memfd:(libz[\d.so]*|mc) ", line):
                    start, end = (int(each, 16) for each in line.split()[0].split("-"))
                    memory.seek(start)
                    found.append((start, memory.read(end - start)))
        return found

    def seen(self):
        """What other processes see of it, without the signals that glibc handles from its first thread on."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        signals = [int(each, 16) & ~(3 << 31) for each in re.findall(r"(?:Sig...|Threads):\t(\w+)", status)]
        return signals, self.numbers("fd"), self.numbers("task")

    def numbers(self, name):
        return sorted(each.name for each in Path(f"/proc/{self.pid}/{name}").iterdir())

    def end(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def target(program):
    made = Target(program)
    yield made
    made.end()


def fprobe(*words):
    return forked([*map(str, words)], LIMIT)


def attach(*words):
    """A command that has attached."""
    process = subprocess.Popen([*COMMAND, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = process.stderr.readline()
    assert line.startswith("fprobe: attached to "), line + process.stderr.read()
    return process


def detach(process):
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, err
    return json.loads(out)


def wait_until(condition):
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def hits(report, process=0):
    return {row["name"]: row["hits"] for row in report["processes"][process]["functions"]}


@pytest.mark.stress
def test_what_is_not_recorded_in_children_that_it_forks_is_said(launch, program):
    done = launch("--stat", "own_work", "-e", "f:packed libz:compress", words=(program, "fork", "calls"))
    parent, child = done.report["processes"]
    assert child["remarks"] == ["a process that C code has forked: nothing is recorded by -e"]
    assert not parent["remarks"] and hits(done.report, 1)["own_work"] > 0


@pytest.mark.stress
@pytest.mark.parametrize("name", sampled(["fourteen-bytesä", "a\u2028b"], 1))
def test_a_program_whose_name_is_cut_off_or_has_separators(launch, program, tmp_path, name):
    """/proc/PID/status and stat have 15 bytes of its name, which may end in the middle of a letter."""
    shutil.copy(program, path := str(tmp_path / name))
    done = launch("--stat", "own_work", "-e", "p:asked libc:write", words=(path, "repeat"))
    assert hits(done.report)["own_work"] > 0, done.err


@pytest.mark.stress
def test_stacks_are_counted_in_children_that_it_forks(launch, program):
    done = launch("--stat", "own_work", "--stacks", "own_work", words=(program, "fork", "calls"))
    for number, process in enumerate(done.report["processes"]):
        stacks = process["stacks"]
        assert sum(each["hits"] for each in stacks) == hits(done.report, number)["own_work"] > 0
        assert all(each["frames"][0].startswith("_start [") and "own_work [" in each["frames"][-1] for each in stacks)


@pytest.mark.stress
def test_globs_do_not_mean_libraries_that_come_with_the_interpreter(launch, program):
    done = launch("--stat", "*:PyObject_Str", "--stat", "libpy*:*", "--stat", "*:compress", words=(program, "repeat"))
    process = done.report["processes"][0]
    assert hits(done.report) == {"compress": 100}
    assert [each["pattern"] for each in process["not_found"]] == ["*:PyObject_Str", "libpy*:*"], process


def test_a_program_is_counted_from_its_constructors_on_and_in_children_that_it_forks(launch, program):
    done = launch("--stat", "own_*", "--stat", "libz:compress", words=(program, "repeat", "fork", "calls"))
    assert (done.returncode, done.err) == (0, "")
    assert done.out in ("child 5\n101\n", "101\nchild 5\n")
    assert hits(done.report) == {"own_work": 101, "own_caller": 100, "compress": 100}
    assert hits(done.report, 1) == {"own_work": 100, "own_caller": 100, "compress": 100}
    assert done.report["processes"][0]["command"] == [str(program), "repeat", "fork", "calls"]


@pytest.mark.stress
@pytest.mark.parametrize("word", sampled(["seven", "interrupt", "fault", "exec", "closeall"], 1))
def test_it_ends_and_prints_as_without_probes(launch, program, word):
    """Descriptors are numbered as without ours, and the program may close all that it does not know."""
    words = (program, "repeat", word, "state", "repeat")
    bare = subprocess.run(
        words, capture_output=True, text=True, env=os.environ
    )  # readline changes the C library's alone
    done = launch("--stat", "own_work", words=words, environ={})
    assert (done.returncode, HIDDEN.sub("", done.out), done.err) == (bare.returncode, HIDDEN.sub("", bare.stdout), "")
    assert hits(done.report)["own_work"] == (201 if word == "closeall" else 101)


@pytest.mark.stress
def test_stacks_events_and_handlers(launch, program, tmp_path):
    (tmp_path / "handlers.py").write_text(
        "import fprobe\nfrom sandbox.native import u64\ncounted = fprobe.Array(u64, 1)\n"
        "@fprobe.native\ndef enters(fp, ip, ret_ip, regs, data):\n    counted[0] += 1\n"
    )
    events = ("-e", "p:asked own_work value=%di:s32", "-e", "r:packed libz:compress result=$retval:s32")
    events += ("-e", "p:in_file machine_code.c:20 x", "-e", "p:in_function own_work:2 x")
    handled = ("--trace", "own_work", "--native", f"{tmp_path}/handlers.py:enters")
    done = launch("--stacks", "libz:compress", *events, *handled, words=(program, "repeat"), as_json=False)
    assert done.returncode == 0
    assert re.search(r"100 calls  compress \[libz]\n +<- pack \[mc]\n +<- repeat \[mc]\n", done.err)
    assert len(re.findall(r"asked: \(own_work.* value=\d+\n", done.err)) == 101
    assert len(re.findall(r"packed: .* result=0\n", done.err)) == 100
    values = sorted([0, *range(100)])
    for name in ("in_file", "in_function"):
        assert sorted(map(int, re.findall(rf"{name}: \(own_work\+.*\) x=(\d+)\n", done.err))) == values
    assert "\n  0  101\n" in done.err


@pytest.mark.stress
def test_load_between_armed_and_detached_is_counted_exactly_and_all_is_as_before(target):
    assert target.ask("allocating") == "1\n"
    before, text, seen = HIDDEN.sub("", target.ask("state")), target.text(), target.seen()
    for _ in range(2):
        known = int(target.ask("calls"))
        process = attach("stat", "-p", target.pid, "own_work", "libz:*", "--json")
        assert target.text() != text
        target.ask("start")
        time.sleep(0.2)
        target.ask("stop")
        calls = int(target.ask("calls")) - known
        found = hits(detach(process))
        assert found["own_work"] == found["deflate"] == calls > 0
        assert target.text() == text and target.seen() == seen
        assert HIDDEN.sub("", target.ask("state")) == before
        assert target.ask("allocating") == "1\n", "our threads have told the allocator that they ended"


@pytest.mark.stress
def test_a_killed_attacher_leaves_it_as_before(target):
    text, seen = target.text(), target.seen()
    target.ask("start")
    process = attach("stat", "-p", target.pid, "own_work", "libz:*")
    assert target.text() != text
    process.kill()
    process.communicate()
    target.ask("stop")
    wait_until(lambda: (target.text(), target.seen()) == (text, seen))


@pytest.mark.stress
def test_threads_that_block_all_signals(target):
    target.ask("start-blocked")
    process = attach("stat", "-p", target.pid, "own_work", "libz:*", "--json")
    time.sleep(0.2)
    found = detach(process)
    assert hits(found)["deflate"] > 0
    target.ask("stop")


def test_a_target_that_forks_executes_and_ends_while_attached(program):
    target = Target(program)
    try:
        process = attach("stat", "-p", target.pid, "--children", "own_work", "--json")
        target.ask("fork")
        target.process.stdin.write("repeat\nexec\n")
        target.process.stdin.flush()
        out, err = process.communicate(timeout=LIMIT)
        assert target.process.wait(LIMIT) == 0
        found = json.loads(out)
        assert (process.returncode, hits(found)["own_work"], hits(found, 1)["own_work"]) == (0, 100, 100), err
    finally:
        target.end()


def test_programs_that_cannot_be_run_with_probes(program, tmp_path):
    static = tmp_path / "static"
    (tmp_path / "a.c").write_text("int main(void) { return 0; }")
    subprocess.run(["cc", "-static", tmp_path / "a.c", "-o", static], check=True)
    plain = shutil.copy(program, tmp_path / "plain")
    plain.chmod(0o644)
    for path, reason in (
        (static, "is statically linked: there is no C library in it that could load an interpreter"),
        (plain, f"is not executable: chmod +x {plain}"),
    ):
        done = fprobe("run", "--stat", "main", path)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", f"fprobe: {path} {reason}\n")


@pytest.mark.stress
def test_a_library_that_cannot_be_loaded_is_named_and_the_program_continues(target, tmp_path, monkeypatch):
    broken = tmp_path / "libpython3.11.so.1.0"
    broken.write_bytes(b"\x7fELF")
    found = interpreter.find()
    monkeypatch.setattr(interpreter, "find_for", lambda _: found._replace(library=str(broken)))
    seen = target.seen()
    with pytest.raises(Refused, match=rf"cannot have probes: {broken}: "):
        Attached(target.pid, Settings(("own_work",)))
    monkeypatch.setattr(interpreter, "find_for", lambda _: found._replace(home=str(tmp_path)))
    with pytest.raises(Refused, match=r"cannot have probes: .*codec"):
        Attached(target.pid, Settings(("own_work",)))
    assert int(target.ask("calls")) == 1
    wait_until(lambda: target.seen() == seen)


def test_a_launcher_that_is_killed_releases_the_program(program):
    launcher = subprocess.Popen(
        [*COMMAND, "run", "--stat", "libz:*", program, "calls"], stdout=subprocess.PIPE, text=True
    )
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children")

    def is_arming():
        """The program stands at its entry, and a thread of ours is in it."""
        with contextlib.suppress(FileNotFoundError):  # another child has ended
            found = [Path(f"/proc/{each}/status").read_text() for each in children.read_text().split()]
            return any("\nState:\tt" in each and "\nThreads:\t2" in each for each in found)
        return False

    wait_until(is_arming)
    launcher.kill()
    assert launcher.communicate(timeout=LIMIT)[0] == "1\n"


@pytest.mark.stress
@pytest.mark.skipif(not shutil.which("redis-server"), reason="no redis: apt-get install redis-server")
def test_redis_serves_and_its_commands_are_counted(tmp_path):
    """Its allocator has threads that block all signals, and its command line is overwritten."""
    path = tmp_path / "socket"
    words = ["redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--dir", tmp_path]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    try:
        wait_until(path.exists)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            for _ in range(2):
                process = attach("stat", "-p", server.pid, "libc:epoll_wait", "processInputBuffer", "--json")
                for _ in range(200):
                    client.sendall(b"PING\r\n")
                    assert client.recv(100) == b"+PONG\r\n"
                assert hits(detach(process))["processInputBuffer"] == 200
    finally:
        server.terminate()
        assert server.wait(LIMIT) == 0
