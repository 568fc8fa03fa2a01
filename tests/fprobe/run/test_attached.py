"""Attaching to processes that already run: `fprobe stat -p` and others. The tests start the processes themselves."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))

from attaching import COMMAND, LIMIT, TARGET, Target, attached, fprobe, interrupted, rows, wait_until
from command import HAS_COMPILER
from sampled import in_stress

import fprobe as fprobe_module
from fprobe.run.launcher import attached as launcher
from sandbox.native.back.compile import StateOfFiles

times = pytest.mark.parametrize("times", [1, in_stress(2)])


@pytest.mark.stress
def test_load_between_armed_and_detached_is_counted_exactly(target):
    target.ask("stop")
    with attached("stat", "-p", target.pid, "libz:deflate", "--json") as process:
        target.ask("start")
        time.sleep(0.3)
        calls = target.ask("stop")
        found = rows(interrupted(process))
    assert found["deflate"]["hits"] == found["deflate"]["returns"] == calls > 0


def test_the_program_is_as_before_after_each_detachment(target):
    before, text = target.ask("state"), target.ask("text")
    for _ in range(2):
        done = fprobe("stat", "-p", target.pid, "libz:*", "libc:dlopen", "later:*", "--duration", "0.2")
        assert done.returncode == 0 and "deflate [libz]" in done.stdout, done.stderr
        assert target.ask("state") == before
        assert target.ask("text") == text


@pytest.mark.stress
@pytest.mark.parametrize(
    ("words", "most"),
    [
        in_stress((("stat", "libz:*"), 28 << 10)),
        (("run", "--stacks", "libz:deflate", "-e", "r:ended libz:deflate $retval"), 45 << 10),
    ],
)
def test_llvm_is_not_loaded_there_when_all_code_comes_ready(words, most):
    """`most`: kilobytes that it may have more, for modules, tables and code."""
    made = Target()  # that nothing was attached to before

    def memory():
        status = Path(f"/proc/{made.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1])

    try:
        before = memory()
        with attached(words[0], "-p", made.pid, *words[1:]) as process:
            assert "llvmlite" not in Path(f"/proc/{made.pid}/maps").read_text()
            assert memory() - before < most
            interrupted(process)
    finally:
        made.end()


PERF_MAPS_IN = """
import sys
from pathlib import Path
from sandbox.symbols.perfmap import perf_map
perf_map._directory = Path(sys.argv.pop(1))
from fprobe.cli import main
main()
"""


@pytest.mark.parametrize(
    ("words",),
    [
        in_stress((("stat", "libz:deflate", "--duration", "0.1"),)),
        (("record", "-e", "p:packs libz:deflate", "--duration", "0.1", "-o", "trace.dat"),),
        in_stress((("explain", "libz:deflate"),)),
    ],
)
def test_verbs_that_run_no_program_leave_no_perf_map(target, tmp_path, words):
    maps = tmp_path / "maps"
    maps.mkdir()
    environ = {name: value for name, value in os.environ.items() if name != "FPROBE_NO_PERF_MAP"}
    command = [sys.executable, "-c", PERF_MAPS_IN, maps]
    subprocess.run([*command, *words, "-p", str(target.pid)], cwd=tmp_path, env=environ, timeout=LIMIT, check=True)
    assert not [*maps.iterdir()]


@pytest.mark.stress
def test_verbs_that_run_a_program_write_a_perf_map(tmp_path):
    environ = {name: value for name, value in os.environ.items() if name != "FPROBE_NO_PERF_MAP"}
    command = [
        sys.executable,
        "-c",
        PERF_MAPS_IN,
        tmp_path,
        "record",
        "-e",
        "p:reads vfs_read",
        "-o",
        tmp_path / "trace.dat",
    ]
    subprocess.run(command, env=environ, timeout=LIMIT, check=True)
    assert [*tmp_path.glob("perf-*.map")]


def test_a_killed_attacher_leaves_the_program_as_before(target):
    before, text = target.ask("state"), target.ask("text")
    with attached("stat", "-p", target.pid, "libz:*") as process:
        assert target.ask("text") != text
        process.kill()
        process.wait()
        wait_until(lambda: target.ask("text") == text and target.ask("state") == before)


def test_a_process_that_ends_is_reported(target):
    with attached("stat", "-p", target.pid, "libz:deflate", "--json") as process:
        time.sleep(0.1)
        target.end()
        out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0 and rows(out)["deflate"]["hits"] > 0, err


@pytest.mark.stress
def test_a_process_is_found_by_the_name_of_its_script(tmp_path):
    script = tmp_path / "only-one-of-this-name.py"
    script.write_text(TARGET.read_text())
    one = Target(script)
    try:
        assert fprobe("stat", "-p", script.name, "libz:deflate", "--duration", "0.1").returncode == 0
        two = Target(script)
        try:
            done = fprobe("stat", "-p", script.name, "libz:deflate", "--duration", "0.1")
        finally:
            two.end()
    finally:
        one.end()
    assert done.returncode == 2 and done.stderr.startswith(
        "fprobe: 2 processes are called 'only-one-of-this-name.py': "
    )
    assert f"{one.pid} (" in done.stderr and f"{two.pid} (" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-p", "no-process-of-this-name"), "no process is called 'no-process-of-this-name'"),
        (("-p", "4194305"), "there is no process 4194305"),
        (("-p", "prog.c"), "--program prog.c"),
        (("--duration", "1"), "give -p PID"),
    ],
)
def test_processes_that_are_not_there_are_named(words, said):
    done = fprobe("stat", *words, "libz:*")
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr


def test_a_stopped_process_is_refused(target):
    os.kill(target.pid, signal.SIGSTOP)
    wait_until(lambda: "\nState:\tT" in Path(f"/proc/{target.pid}/status").read_text())
    done = fprobe("stat", "-p", target.pid, "libz:*")
    os.kill(target.pid, signal.SIGCONT)
    assert done.returncode == 2 and f"is stopped; continue it first: kill -CONT {target.pid}" in done.stderr


def test_a_second_attachment_is_refused_while_the_first_goes_on(target):
    with attached("stat", "-p", target.pid, "libz:deflate") as process:
        done = fprobe("stat", "-p", target.pid, "libz:*")
        assert done.returncode == 2 and "another fprobe is attached to it" in done.stderr
        assert "deflate [libz]" in interrupted(process)


@pytest.mark.stress
@times
def test_calls_stacks_and_events_are_recorded_as_by_run_each_time(target, times):
    event = "r:packed libz:deflate result=$retval:s32"
    options = ("--trace", "libz:deflate*", "--stacks", "libz:deflate", "-e", event, "--json", "--duration", "0.3")
    before, text = target.ask("state"), target.ask("text")
    for _ in range(times):
        done = fprobe("run", "-p", target.pid, *options)
        assert target.ask("state") == before and target.ask("text") == text
        assert done.returncode == 0, done.stderr
        (process,) = json.loads(done.stdout)["processes"]
        assert not process["errors"] and {call["function"] for call in process["calls"]} >= {"deflate", "deflateEnd"}
        assert process["probe_events"][0]["event"] == "packed" and process["probe_events"][0]["fields"]["result"] == 1
        assert process["stacks"][0]["frames"][-1] == "deflate [libz]"
        assert any(frame.startswith("work (attached_target.py:") for frame in process["stacks"][0]["frames"])


@pytest.mark.stress
def test_native_handlers_of_a_file_find_fprobe_in_the_program(target, tmp_path):
    file = tmp_path / "counting.py"
    file.write_text(
        "import fprobe\nfrom sandbox.native import u64\nseen = fprobe.Hash(u64, u64, size=16)\n"
        "@fprobe.native\ndef asked(fp, ip, ret_ip, regs, data):\n    seen[ip] += 1\n"
    )
    done = fprobe("trace", "-p", target.pid, "libz:deflate", "--native", f"{file}:asked", "--duration", "0.3")
    assert done.returncode == 0 and "seen:" in done.stdout and "deflate+0x0 [libz]" in done.stdout, done.stderr
    assert "counting" not in target.ask("state")["modules"]


def test_top_shows_the_calls_while_they_are_made(target):
    done = fprobe("top", "-p", target.pid, "--stat", "libz:*", "--delay", "0.2", "--duration", "0.5", "-n", "2")
    assert done.returncode == 0 and done.stdout.count("calls/s; 2 shown") >= 2, done.stderr


@pytest.mark.stress
def test_two_processes_are_one_report_that_ends_with_a_total(target):
    other = Target()
    words = ("stat", "-p", target.pid, "-p", other.pid, "libz:deflate", "--duration", "0.2")
    try:
        done, text = fprobe(*words, "--json"), fprobe(*words).stdout
    finally:
        other.end()
    assert [process["pid"] for process in json.loads(done.stdout)["processes"]] == [target.pid, other.pid], done.stderr
    assert all(rows(done.stdout, number)["deflate"]["hits"] for number in (0, 1))
    _, sections, total = text.partition("# total of 2 processes\n")
    hits = [int(line.split()[-3].replace(",", "")) for line in text.splitlines() if line.endswith("deflate [libz]")]
    assert sections and total.count("deflate [libz]") == 1 and len(hits) == 3 and hits[0] + hits[1] == hits[2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("events", "-p", "{}"), "fprobe events does not attach to running processes (-p)"),
        (("run", "-p", "{}"), "there is nothing to record"),
        (("run", "-p", "{}", "--stat", "libz:*", "app.py"), "not both"),
        (("stat", "-p", "{}"), "no function is named"),
        (("stat", "-p", "{}", "libz:*", "--exclude", "a"), "--exclude is not for a running process"),
        (("stat", "-p", "{}", "libz:*", "--program", "prog.c"), "not both"),
    ],
)
def test_what_does_not_go_with_a_running_process_is_named(words, said):
    done = fprobe(*(word.format(os.getpid()) for word in words))
    assert done.returncode == 2 and said in done.stderr


def test_a_pattern_that_matches_nothing_there_is_explained(target):
    done = fprobe("stat", "-p", target.pid, "libz:deflat", "--duration", "0.1")
    assert done.returncode == 1 and "did you mean libz:deflate" in done.stderr
    assert done.stdout == "fprobe: nothing was counted: no function has a probe, as was said at the beginning\n"


FORKING = """
import os, sys, time, zlib
def work(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        zlib.compress(b"x" * 1000)
        time.sleep(0.001)
first = os.fork()
if not first:
    work(60)
    os._exit(0)
print("ready", flush=True)
for line in sys.stdin:
    later = os.fork()
    if not later:
        work(0.3)
        end = time.monotonic() + 30
        while "left" in line and any(name.startswith("_fprobe") for name in sys.modules):
            time.sleep(0.02)
            if time.monotonic() > end:
                os._exit(1)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(later, 0)[1]), flush=True)
os.kill(first, 9)
"""


@pytest.fixture
def forking(tmp_path):
    (tmp_path / "forking.py").write_text(FORKING)
    made = Target(tmp_path / "forking.py")
    yield made
    made.process.stdin.close()
    made.process.wait(LIMIT)


@pytest.mark.stress
def test_children_before_and_after_are_sections_of_their_own(forking):
    with attached("stat", "-p", forking.pid, "--children", "libz:deflate", "--json") as process:
        assert process.stderr.readline().startswith("fprobe: attached to ")
        assert forking.ask("") == 0
        document = json.loads(interrupted(process))
    found = document["processes"]
    hits = {each["pid"]: sum(row["hits"] for row in each["functions"]) for each in found}
    assert [(row["name"], row["hits"]) for row in document["total"]] == [("deflate", sum(hits.values()))]
    later = next(each["pid"] for each in found if each["forked_by"] == forking.pid)
    assert len(hits) == 3 and hits[later] > 0 and hits[forking.pid] == 0


@pytest.mark.stress
def test_children_do_not_count_unless_they_are_wanted_and_are_left(forking):
    with attached("stat", "-p", forking.pid, "libz:deflate", "--json") as process:
        assert forking.ask("left") == 0
        found = json.loads(interrupted(process))["processes"]
    assert [each["pid"] for each in found] == [forking.pid] and not found[0]["functions"]


BLOCKING = r"""
#include <pthread.h>
#include <signal.h>
#include <unistd.h>
#include <zlib.h>
static void *work(void *unused) {
    sigset_t all;
    unsigned char in[1000] = {1}, out[2000];
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, 0);
    for (;;) { uLongf size = sizeof out; compress(out, &size, in, sizeof in); usleep(200); }
}
void begin(void) { pthread_t thread; pthread_create(&thread, 0, work, 0); }
"""


@pytest.mark.stress
@pytest.mark.skipif(not HAS_COMPILER, reason="no C compiler")
def test_threads_that_block_sigtrap_are_named_and_not_killed(tmp_path):
    (tmp_path / "blocking.c").write_text(BLOCKING)
    library = tmp_path / "blocking.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "blocking.c", "-lz"], check=True)
    made = Target("-c", f"import ctypes; ctypes.CDLL({str(library)!r}).begin(); print('ready', flush=True); input()")
    try:
        done = fprobe("stat", "-p", made.pid, "libz:*", "--duration", "0.3")
        assert done.returncode == 0 and "SIGTRAP is blocked in " in done.stdout, done.stderr
        assert made.process.poll() is None
    finally:
        made.end()


def test_probes_are_removed_as_soon_as_no_thread_blocks_sigtrap(target):
    text = target.ask("text")
    with attached("stat", "-p", target.pid, "libz:*") as command:
        target.ask("block")
        interrupted(command)
    assert target.ask("text") == text


BUSY = """
import ctypes, select, signal, sys, threading, zlib
process = ctypes.CDLL(None)
process.dlopen.restype, process.malloc.restype = ctypes.c_void_p, ctypes.c_void_p
process.dlclose.argtypes, process.free.argtypes = [ctypes.c_void_p], [ctypes.c_void_p]
failed = []
def guarded(call):
    def repeat():
        try:
            while True:
                call()
        except BaseException as error:
            failed.append(repr(error))
    return repeat
def load():
    for name in (b"libuuid.so.1", b"libexpat.so.1", b"libutil.so.1"):
        if handle := process.dlopen(name, 2):
            process.dlclose(handle)
def allocate():
    process.free(process.malloc(300000))
poll = select.epoll()
def compress():
    assert zlib.decompress(zlib.compress(b"x" * 1000)) == b"x" * 1000
def start():
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
alarms = []
signal.signal(signal.SIGALRM, lambda *_: alarms.append(1))
signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)
for call in (load, allocate, lambda: poll.poll(0.01), compress, start):
    threading.Thread(target=guarded(call), daemon=True).start()
print("ready", flush=True)
for line in sys.stdin:
    print('"' + " ".join(failed) + '"' if alarms else '"no alarm"', flush=True)
"""


@pytest.mark.stress
def test_threads_that_load_allocate_wait_start_and_have_signals_continue():
    made = Target("-c", BUSY)
    try:
        for _ in range(2):
            done = fprobe("stat", "-p", made.pid, "libz:*", "libc:malloc", "later:*", "--duration", "0.1")
            assert done.returncode == 0 and "deflate [libz]" in done.stdout, done.stderr
            assert made.ask("") == ""
    finally:
        made.end()


def test_python_attaches_and_reads_inside_the_block_and_after_it(target):
    event = "r:packed libz:deflate result=$retval:s32"
    with fprobe_module.attach_to(target.pid, stat="libz:deflate", trace=["libz:deflateEnd"], event=event) as process:
        wait_until(lambda: process.stat() and process.trace() and process.event())
        before = process.stat()[0]["hits"]
    (row,) = process.stat()
    assert row["name"] == "deflate" and row["hits"] >= before and not process.errors
    assert {call["function"] for call in process.trace()} == {"deflateEnd"}
    assert process.event()[0]["fields"]["result"] == 1


@pytest.mark.stress
def test_an_update_of_fprobe_between_two_attachments_is_named(target, monkeypatch):
    with fprobe_module.attach_to(target.pid, stat="libz:deflate"):
        pass
    monkeypatch.setattr(launcher, "state_of_files", lambda: StateOfFiles("another", ""))
    said = f"^.Errno 1. process {target.pid} cannot have probes: fprobe was updated after it had been attached to it"
    with pytest.raises(OSError, match=said), fprobe_module.attach_to(target.pid, stat="libz:deflate"):
        pass


def test_python_names_what_is_wrong():
    with pytest.raises(ValueError, match=r"is this one; use fprobe\.attach"):
        fprobe_module.attach_to(os.getpid(), stat="libz:*")
    with pytest.raises(ValueError, match="give stat, trace or event"):
        fprobe_module.attach_to(1)
    with pytest.raises(OSError, match="there is no process 4194305"), fprobe_module.attach_to(4194305, stat="libz:*"):
        pass


OWN_NAMES = """
import logging, sys, zlib
import sandbox
assert sandbox.mine
logging.basicConfig(format="%(message)s", stream=sys.stdout)
print("ready", flush=True)
for line in sys.stdin:
    zlib.compress(b"x")
    if line.strip():
        logging.getLogger("sandbox").warning('"own"')
    else:
        import sandbox, kprobes
        print(int(sandbox.mine and kprobes.mine), flush=True)
"""


NOTICING = """
import importlib.util, json, sys, types, zlib
noticed = []
class Deprecated:
    def __getattribute__(self, name):
        noticed.append(f"Deprecated.{name}")
        return object.__getattribute__(self, name)
class Meta(type):
    def __getattribute__(cls, name):
        noticed.append(f"Meta.{name}")
        return type.__getattribute__(cls, name)
class InPlaceOfAModule:
    def __getattr__(self, name):
        noticed.append(f"InPlaceOfAModule.{name}")
        raise AttributeError(name)
spec = importlib.util.find_spec("this")
spec.loader = importlib.util.LazyLoader(spec.loader)
sys.modules["this"] = lazy = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lazy)
sys.modules["in_place"] = InPlaceOfAModule()
deprecated, made = Deprecated(), Meta("made", (), {})
del noticed[:]
print("ready", flush=True)
for line in sys.stdin:
    zlib.compress(b"x")
    print(json.dumps([*noticed, type(lazy).__name__]), flush=True)
"""


def test_modules_and_objects_of_the_program_are_not_touched(tmp_path):
    (tmp_path / "noticing.py").write_text(NOTICING)
    made = Target(tmp_path / "noticing.py")
    try:
        with attached("stat", "-p", made.pid, "libz:deflate", "--json") as process:
            assert made.ask("") == ["_LazyModule"]
            assert rows(interrupted(process))["deflate"]["hits"] == 1
        assert made.ask("") == ["_LazyModule"]
    finally:
        made.end()


@pytest.mark.stress
def test_modules_and_loggers_of_the_program_with_our_names_stay_its_own(tmp_path):
    for name in ("sandbox", "kprobes", "llvmlite"):
        (tmp_path / f"{name}.py").write_text("mine = True\n")
    (tmp_path / "own_names.py").write_text(OWN_NAMES)
    made = Target(tmp_path / "own_names.py")
    try:
        with attached("stat", "-p", made.pid, "libz:deflate", "--json") as process:
            assert made.ask("log") == "own" and made.ask("") == 1
            assert rows(interrupted(process))["deflate"]["hits"] == 2
        assert made.ask("log") == "own" and made.ask("") == 1
    finally:
        made.end()


@pytest.mark.stress
@times
def test_hits_are_counted_by_fields_each_time(target, times):
    words = ("-e", "p:sizes libz:adler32_z size=%dx:u64", "keys=size", "--duration", "0.3", "--json")
    for _ in range(times):
        done = fprobe("hist", "-p", target.pid, *words, "--filter", "size > 3")
        (process,) = json.loads(done.stdout)["processes"]
        (entry,) = process["histograms"]["sizes"]
        assert entry["key"] == "size: 1000" and entry["hitcount"] > 0, done.stderr


@pytest.mark.stress
def test_ctrl_c_while_it_attaches_leaves_the_program_as_before(target):
    before, text = target.ask("state"), target.ask("text")
    process = subprocess.Popen([*COMMAND, "stat", "-p", str(target.pid), "libz:*"], stderr=subprocess.PIPE, text=True)
    wait_until(lambda: len(target.ask("state")["modules"]) > len(before["modules"]) or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=LIMIT)
    assert process.returncode in (0, 130)
    wait_until(lambda: target.ask("state") == before and target.ask("text") == text)


def test_functions_of_its_libraries_are_listed_from_their_files(target):
    text = target.ask("text")
    (process,) = json.loads(fprobe("list", "-p", target.pid, "libz:inflate*", "--json").stdout)["processes"]
    assert {"inflate", "inflateEnd"} <= {each["name"] for each in process["functions"]}
    assert target.ask("text") == text
    for pattern, said in (
        ("libz:nosuch", "matches 'nosuch'"),
        ("nolib:x", "has no library 'nolib'"),
        ("x", "libz:inflate*"),
    ):
        done = fprobe("list", "-p", target.pid, pattern)
        assert done.returncode == 2 and said in done.stderr
    done = fprobe("list", "-p", target.pid)
    assert done.returncode == 2 and f"the program of process {target.pid} is Python; give a library" in done.stderr


@pytest.mark.stress
def test_calls_of_the_thread_that_attaches_are_not_counted():
    made = Target("-c", "import zlib; print('ready', flush=True); input()")  # which calls no malloc meanwhile
    try:
        with attached("run", "-p", made.pid, "--stat", "libc:malloc", "--trace", "libc:calloc", "--json") as process:
            time.sleep(0.2)
            (found,) = json.loads(interrupted(process))["processes"]
        assert found["attached"] == 2 and not found["functions"] and not found["calls"]
    finally:
        made.end()


@pytest.mark.stress
def test_a_process_that_executes_another_program_is_reported(tmp_path):
    code = "import os, zlib; print('ready', flush=True); input(); zlib.compress(b'x'); os.execv('/bin/sleep', ['sleep', '60'])"
    made = Target("-c", code)
    try:
        with attached("stat", "-p", made.pid, "libz:deflate", "--json") as process:
            made.process.stdin.write("\n")
            made.process.stdin.flush()
            out, err = process.communicate(timeout=LIMIT)
        assert process.returncode == 0 and rows(out)["deflate"]["hits"] == 1, err
    finally:
        made.end()


LOADING = r"""
#include <unistd.h>
__attribute__((constructor)) static void begin(void) { usleep(2000000); }
"""


@pytest.mark.stress
@pytest.mark.skipif(not HAS_COMPILER, reason="no C compiler")
def test_a_library_that_is_being_loaded_is_waited_for_without_the_gil(tmp_path):
    """Our imports load libraries, too: waiting for the loader with the GIL would stop the program."""
    (tmp_path / "loading.c").write_text(LOADING)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "loading.so", tmp_path / "loading.c"], check=True)
    code = f"""
import ctypes, threading, time, sys, zlib
process = ctypes.CDLL(None)
process.dlopen.restype = ctypes.c_void_p
longest = 0
def work():
    global longest
    before = time.monotonic()
    while True:
        zlib.compress(b"x")
        time.sleep(0.001)
        now = time.monotonic()
        longest, before = max(longest, now - before), now
threading.Thread(target=work, daemon=True).start()
threading.Thread(target=lambda: process.dlopen({str(tmp_path / "loading.so").encode()!r}, 2), daemon=True).start()
time.sleep(0.1)
print("ready", flush=True)
for line in sys.stdin:
    print(longest, flush=True)
"""
    made = Target("-c", code)
    try:
        start = time.monotonic()
        done = fprobe("stat", "-p", made.pid, "libz:deflate", "--duration", "0.2")
        assert done.returncode == 0 and "deflate [libz]" in done.stdout, done.stderr
        assert time.monotonic() - start > 1.5 > 1.2 > made.ask("")
    finally:
        made.end()


def test_the_session_memory_is_of_its_user_alone(target):
    with attached("stat", "-p", target.pid, "libz:deflate"):
        links = {each: str(each.readlink()) for each in Path(f"/proc/{target.pid}/fd").iterdir()}
        modes = {oct(each.stat().st_mode & 0o777) for each, link in links.items() if "memfd:fprobe-run" in link}
    assert modes == {"0o600"}
