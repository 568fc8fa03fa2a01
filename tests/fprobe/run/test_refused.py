"""Processes that cannot be attached to are refused in one sentence, before anything in them was touched; others work.

What cannot be had on every machine is simulated where this process asks the system; those tests are called `..._simulated`.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from attaching import COMMAND, LIMIT, TARGET, Target, fprobe, rows, wait_until
from command import HAS_COMPILER
from sampled import sampled

from fprobe.run.launcher import attached as attached_module
from fprobe.run.launcher.attached import Attached
from fprobe.run.session import Settings
from sandbox.remote import inject, limits, process, ptrace, refusals
from sandbox.remote.refusals import Refused

NOBODY = 65534
IS_ROOT = os.geteuid() == 0
SETTINGS = Settings(("libz:deflate",))


def refused(pid, said):
    """The command refuses, in one line, and says this."""
    done = fprobe("stat", "-p", pid, "libz:deflate", "--duration", "0.1")
    assert done.returncode == 2 and said in done.stderr, done.stderr + done.stdout
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
    return done


def started(code, python=sys.executable):
    """The target, which runs this code first."""
    code += f"\nimport runpy\nrunpy.run_path({str(TARGET)!r}, run_name='__main__')"
    return Target("-c", code, python=python)


def works(pid):
    done = fprobe("stat", "-p", pid, "libz:deflate", "--duration", "0.3", "--json")
    assert done.returncode == 0 and rows(done.stdout)["deflate"]["hits"] > 0, done.stderr


PYTHON = "/usr/bin/python3"
"""A Python that every user can read."""


def _nobody_can_read():
    if not (IS_ROOT and Path(PYTHON).exists()):
        return False
    script = f"{BECOME_NOBODY}\nos.stat({str(TARGET)!r}); os.stat({inject.__file__!r})"
    return subprocess.run([PYTHON, "-c", script], capture_output=True, timeout=20).returncode == 0


BECOME_NOBODY = f"""
import os
os.setgroups([])
os.setresgid({NOBODY}, {NOBODY}, {NOBODY})
os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
"""
PREPARE = """
import sys
sys.path.insert(0, {directory!r})
from sandbox.remote import inject
try:
    inject.prepare({pid}, "")
except OSError as error:
    print(error.strerror)
"""


root_only = pytest.mark.skipif(not _nobody_can_read(), reason="only root becomes a user, who must be able to read this")


def prepared_by_nobody(pid):
    """What is said to a user without rights. The packages are found by path."""
    code = BECOME_NOBODY + PREPARE.format(directory=str(Path(inject.__file__).parents[2]), pid=pid)
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


@pytest.fixture
def sleeper():
    """A program of the C library without Python."""
    made = subprocess.Popen(["/bin/sleep", "60"])
    yield made
    made.kill()
    made.wait()


def test_a_process_that_has_ended_is_refused():
    made = Target()
    made.process.kill()
    wait_until(lambda: "\nState:\tZ" in Path(f"/proc/{made.pid}/status").read_text())
    refused(made.pid, "has ended and waits for its parent")
    made.end()
    refused(made.pid, f"there is no process {made.pid}")


def test_a_number_that_no_process_can_have_is_refused():
    refused(1 << 70, f"there is no process {1 << 70}")


def test_a_python_that_cannot_read_its_library_is_refused_and_prints_nothing(tmp_path):
    """As after a change of the user."""
    code = "import sys, time; sys.path.clear(); sys.modules.pop('__future__', None); print('ready', flush=True); time.sleep(99)"
    with (tmp_path / "errors").open("wb") as errors:
        made = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=errors)
    try:
        made.stdout.readline()
        refused(made.pid, "cannot have probes: ModuleNotFoundError")
        assert (tmp_path / "errors").read_bytes() == b"" and made.poll() is None
    finally:
        made.kill()
        made.communicate()


def test_a_number_that_has_come_to_mean_another_process_is_refused(target):
    """The pidfd was opened first: here it is that of a process that has ended meanwhile, and the number another's."""
    state, text = target.ask("state"), target.ask("text")
    former = subprocess.Popen(["/bin/true"])
    pidfd = os.pidfd_open(former.pid)
    former.wait()
    with pytest.raises(Refused, match="has ended"):
        inject.start(inject.prepare(target.pid, "raise SystemError"), pidfd)
    os.close(pidfd)
    assert target.ask("state") == state and target.ask("text") == text


def test_the_own_process_and_a_thread_are_refused(target):
    with pytest.raises(Refused, match="is this one"):
        Attached(os.getpid(), SETTINGS)
    thread = max(int(each.name) for each in Path(f"/proc/{target.pid}/task").iterdir())
    refused(thread, f"is a thread of process {target.pid}; give {target.pid}")


@pytest.mark.stress
def test_the_parent_can_be_attached_to():
    code = f"""
import json, os, subprocess, sys, threading, zlib
def work():
    while True:
        zlib.compress(b"x" * 1000)
threading.Thread(target=work, daemon=True).start()
words = [sys.executable, "-m", "fprobe.cli", "stat", "-p", str(os.getpid()), "libz:deflate", "--duration", "0.3", "--json"]
done = subprocess.run(words, capture_output=True, text=True, cwd={str(Path.cwd())!r})
print(done.stdout, done.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert '"name": "deflate"' in done.stdout, done.stdout


def test_the_first_process_is_refused_or_simply_a_process():
    done = fprobe("stat", "-p", "1", "libz:deflate", "--duration", "0.1")
    assert done.returncode in (0, 2) and "Traceback" not in done.stderr


@root_only
def test_a_process_of_another_user_is_refused(target):
    assert "it belongs to user 0; run fprobe as that user or as root" in prepared_by_nobody(target.pid)


def test_a_process_of_another_user_is_refused_simulated(monkeypatch, target):
    monkeypatch.setattr(process.os, "open", _raising(PermissionError(errno.EACCES, "denied")))
    monkeypatch.setattr(refusals.os, "geteuid", lambda: 12345)
    with pytest.raises(Refused, match=r"it belongs to user .*; run fprobe as that user or as root"):
        process.RemoteProcess(target.pid)


@pytest.mark.stress
@root_only
def test_root_attaches_to_a_process_of_another_user_that_can_read_fprobe():
    made = started(BECOME_NOBODY, PYTHON)
    try:
        works(made.pid)
    finally:
        made.end()


@pytest.mark.stress
@root_only
def test_a_user_that_cannot_read_fprobe_is_refused(monkeypatch, tmp_path):
    tmp_path.chmod(0o700)
    hidden = tmp_path / "hidden.py"
    hidden.write_text("")
    made = started(BECOME_NOBODY, PYTHON)
    try:
        monkeypatch.setattr(attached_module, "_files", lambda: [str(hidden)])
        with pytest.raises(Refused, match=f"belongs to user {NOBODY}, who cannot read fprobe's files: {hidden}"):
            Attached(made.pid, SETTINGS)
    finally:
        made.end()


def test_a_thread_of_the_kernel_is_refused():
    if Path("/proc/2/status").exists() and "kthreadd" in Path("/proc/2/comm").read_text():
        refused(2, "is a thread of the kernel")
    else:
        pytest.skip("no threads of the kernel are seen here")


def test_a_thread_of_the_kernel_is_refused_simulated(monkeypatch, target):
    real = refusals.read_status
    monkeypatch.setattr(
        refusals, "read_status", lambda pid: {k: v for k, v in real(pid).items() if not k.startswith("Vm")}
    )
    with pytest.raises(Refused, match="is a thread of the kernel"):
        refusals.check(target.pid)


CODE_32 = b"\xb8\x1d\x00\x00\x00\xcd\x80\xeb\xf7"
"""pause(), again and again"""


def test_a_32_bit_program_is_refused(tmp_path):
    base, path = 0x8048000, tmp_path / "small"
    size = 84 + len(CODE_32)
    head = b"\x7fELF\x01\x01\x01".ljust(16, b"\0")
    path.write_bytes(
        struct.pack("<16sHHIIIIIHHHHHH", head, 2, 3, 1, base + 84, 52, 0, 0, 52, 32, 1, 0, 0, 0)
        + struct.pack("<8I", 1, 0, base, base, size, size, 5, 4096)
        + CODE_32
    )
    path.chmod(0o755)
    try:
        made = subprocess.Popen([path])
    except OSError:
        pytest.skip("this kernel runs no 32-bit programs")
    try:
        refused(made.pid, "is a 32-bit program or one for another machine")
    finally:
        made.kill()
        made.wait()


@pytest.mark.skipif(not HAS_COMPILER, reason="no C compiler")
def test_a_static_program_is_refused(tmp_path):
    (tmp_path / "one.c").write_text("#include <unistd.h>\nint main(void) { pause(); }")
    if subprocess.run(["gcc", "-static", "-o", tmp_path / "one", tmp_path / "one.c"], capture_output=True).returncode:
        pytest.skip("no static C library")
    made = subprocess.Popen([tmp_path / "one"])
    try:
        refused(made.pid, "it is statically linked, or has another C library (musl)")
    finally:
        made.kill()
        made.wait()


def test_a_program_of_musl_is_refused_simulated(monkeypatch, target):
    real = process._mappings
    renamed = {"libc.so.6": "ld-musl-x86_64.so.1", "ld-linux-x86-64.so.2": "ld-musl-x86_64.so.1"}

    def of_musl(text):
        for each in real(text):
            directory, _, name = each.path.rpartition("/")
            yield each._replace(path=f"{directory}/{renamed.get(name, name)}")

    monkeypatch.setattr(process, "_mappings", of_musl)
    with pytest.raises(Refused, match=r"has another C library \(musl\)"):
        inject.prepare(target.pid, "")


def test_a_process_under_another_tracer_is_refused(target):
    tracer = os.fork()
    if not tracer:
        try:
            ctypes.CDLL(None).ptrace(0x4206, target.pid, 0, 0)  # PTRACE_SEIZE
            time.sleep(60)
        finally:
            os._exit(0)
    try:
        wait_until(lambda: f"TracerPid:\t{tracer}\n" in Path(f"/proc/{target.pid}/status").read_text())
        refused(target.pid, f"is traced by process {tracer} (a debugger or strace)")
    finally:
        os.kill(tracer, signal.SIGKILL)
        os.waitpid(tracer, 0)
    works(target.pid)


SECCOMP = """
import ctypes, struct
libc = ctypes.CDLL(None)
assert not libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
if {filtered}:
    allow = ctypes.create_string_buffer(struct.pack("<HBBI", 6, 0, 0, 0x7fff0000))
    program = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", 1, ctypes.addressof(allow)))
    assert not libc.prctl(22, 2, ctypes.c_void_p(ctypes.addressof(program)), 0, 0)  # PR_SET_SECCOMP
"""


@pytest.mark.stress
@pytest.mark.parametrize("filtered", [True, False])
def test_restricted_system_calls_are_refused_and_no_new_privileges_work(filtered):
    made = started(SECCOMP.format(filtered=filtered))
    try:
        if filtered:
            refused(made.pid, "has restricted its system calls (seccomp)")
        else:
            works(made.pid)
    finally:
        made.end()


@root_only
def test_a_process_that_is_not_dumpable_as_after_setuid_is_refused():
    """A process whose program is setuid, or that has changed its user, is not dumpable: even its own user may not trace it."""
    made = started(BECOME_NOBODY, PYTHON)
    try:
        said = prepared_by_nobody(made.pid)
    finally:
        made.end()
    assert "may not be traced: " in said and "be no longer dumpable; run fprobe as root" in said


@pytest.mark.parametrize(
    ("scope", "said"), [(1, "ptrace_scope=0"), (2, "CAP_SYS_PTRACE only"), (3, "until the next boot")]
)
def test_yama_is_explained_simulated(monkeypatch, target, scope, said):
    monkeypatch.setattr(refusals, "_ptrace_scope", lambda: scope)
    monkeypatch.setattr(refusals.os, "geteuid", lambda: Path(f"/proc/{target.pid}").stat().st_uid)
    monkeypatch.setattr(process.os, "open", _raising(PermissionError(errno.EACCES, "denied")))
    with pytest.raises(Refused, match=f"ptrace_scope is {scope}, which .*{said}"):
        process.RemoteProcess(target.pid)


@pytest.mark.stress
def test_a_tracer_that_is_denied_at_the_system_call_is_explained_simulated(monkeypatch, target):
    """As by a security module that lets memory be read, but no thread be stopped."""
    monkeypatch.setattr(ptrace, "ptrace", _raising(PermissionError(errno.EPERM, "denied")))
    state = target.ask("state")
    with pytest.raises(Refused, match=f"process {target.pid} may not be traced"):
        Attached(target.pid, SETTINGS)
    assert target.ask("state") == state


def _raising(error):
    def raise_(*_arguments, **_options):
        raise error

    return raise_


# -- namespaces -----------------------------------------------------------------------------------------------------------


def namespaced(tmp_path, *options, before=""):
    """A target in other namespaces, and its number here. Skips where this user may not make them."""
    try:
        subprocess.run(["unshare", *options, "true"], check=True, capture_output=True, timeout=20)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"unshare {' '.join(options)} is not permitted here")
    command = f"{before} exec {sys.executable} {TARGET}"
    made = Target.__new__(Target)
    made.process = subprocess.Popen(
        ["unshare", *options, "sh", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert made.process.stdout.readline() == "ready\n"
    children = Path(f"/proc/{made.process.pid}/task/{made.process.pid}/children").read_text().split()
    made.pid = int(children[0]) if children else made.process.pid
    return made


@pytest.mark.stress
@pytest.mark.parametrize(
    "options",
    sampled([["-m"], ["-p", "-f", "--mount-proc"], ["-U", "-r"], ["-U"]], 1),
    ids=["mount", "pid", "user", "nobody"],
)
def test_other_namespaces_work(tmp_path, options):
    made = namespaced(tmp_path, *options)
    try:
        text = made.ask("text")
        works(made.pid)
        assert made.ask("text") == text
    finally:
        os.kill(made.pid, signal.SIGKILL)
        made.end()


@pytest.mark.stress
def test_libraries_that_only_its_mount_namespace_has_are_read_below_its_root(tmp_path):
    real = next(Path(f"/{each}") for each in _mapped_libraries() if "/libz.so" in each)
    shutil.copy(real, tmp_path / "libz.so.1")
    before = f"mount -t tmpfs none {tmp_path}/in && cp {tmp_path}/libz.so.1 {tmp_path}/in/libz.so.1 &&"
    (tmp_path / "in").mkdir()
    made = namespaced(tmp_path, "-m", before=f"{before} LD_LIBRARY_PATH={tmp_path}/in")
    try:
        assert not (tmp_path / "in" / "libz.so.1").exists()
        (process,) = json.loads(fprobe("list", "-p", made.pid, "libz:deflate", "--json").stdout)["processes"]
        assert process["functions"][0]["name"] == "deflate"
        done = fprobe(
            "run",
            "-p",
            made.pid,
            "--stat",
            "libz:deflate",
            "--stacks",
            "libz:deflateEnd",
            "--duration",
            "0.3",
            "--json",
        )
        assert rows(done.stdout)["deflate"]["hits"] > 0, done.stderr
        assert any(
            "libz" in frame for stack in json.loads(done.stdout)["processes"][0]["stacks"] for frame in stack["frames"]
        )
    finally:
        made.end()


def _mapped_libraries():
    import zlib  # noqa: F401

    return {line.split(" /")[1].strip() for line in Path("/proc/self/maps").read_text().splitlines() if " /" in line}


def test_a_root_directory_without_fprobe_is_refused_simulated(monkeypatch, target):
    monkeypatch.setattr(attached_module, "_files", lambda: ["/nosuch/fprobe/__init__.py"])
    state = target.ask("state")
    with pytest.raises(Refused, match=r"another root directory \(a container\?\).*it has no /nosuch/fprobe"):
        Attached(target.pid, SETTINGS)
    assert target.ask("state") == state


# -- limits ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "value", "said"),
    sampled(
        [
            (resource.RLIMIT_NOFILE, 12, "files open, and fprobe needs 16 descriptors: raise the limit with prlimit"),
            (resource.RLIMIT_AS, 4 << 30, "has a limit of its address space (ulimit -v, 4,096 MiB)"),
            (resource.RLIMIT_FSIZE, 1 << 20, "has a limit of the size of files (ulimit -f, 1,048,576 bytes)"),
        ],
        1,
    ),
    ids=["descriptors", "address space", "size of files"],
)
def test_a_process_at_its_limits_is_refused(target, limit, value, said):
    soft, hard = resource.prlimit(target.pid, limit)
    resource.prlimit(target.pid, limit, (value, hard))
    refused(target.pid, said)
    resource.prlimit(target.pid, limit, (soft, hard))
    works(target.pid)


@pytest.mark.parametrize(
    ("membership", "files", "said"),
    [
        (
            "0::/inner/group\n",
            {"inner/memory.max": 100 << 20, "inner/memory.current": (100 << 20) - 1},
            "1 bytes of memory left",
        ),
        ("0::/inner\n", {"inner/pids.max": 11, "inner/pids.current": 10}, "1 threads left, and fprobe needs 2"),
        (
            "4:memory:/group\n1:cpu,cpuacct:/\n0::/\n",
            {"memory/group/memory.limit_in_bytes": 50 << 20, "memory/group/memory.usage_in_bytes": 45 << 20},
            "5,242,880 bytes of memory left",
        ),
    ],
    ids=["memory", "pids", "version 1"],
)
def test_a_control_group_without_space_is_refused_simulated(monkeypatch, tmp_path, target, membership, files, said):
    """The files of the control group are made up."""
    monkeypatch.setattr(limits, "_membership", lambda _pid: membership)
    monkeypatch.setattr(limits, "_CGROUPS", tmp_path)
    for name, value in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{value}\n")
    with pytest.raises(Refused, match=said):
        limits.check(target.pid)
    (tmp_path / next(iter(files))).write_text("max\n")
    limits.check(target.pid)


def test_files_that_a_control_group_can_give_up_are_no_obstacle_simulated(monkeypatch, tmp_path, target):
    monkeypatch.setattr(limits, "_membership", lambda _pid: "0::/\n")
    monkeypatch.setattr(limits, "_CGROUPS", tmp_path)
    (tmp_path / "memory.max").write_text(f"{100 << 20}\n")
    (tmp_path / "memory.current").write_text(f"{100 << 20}\n")
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {40 << 20}\nactive_file 7\n")
    limits.check(target.pid)


def test_a_system_without_memory_files_is_refused_simulated(monkeypatch, target):
    state = target.ask("state")
    monkeypatch.setattr(attached_module.os, "memfd_create", _raising(OSError(errno.ENOSYS, "Function not implemented")))
    with pytest.raises(Refused, match=r"memory files \(memfd_create\) are needed"):
        Attached(target.pid, SETTINGS)
    assert target.ask("state") == state


def test_a_process_without_descriptors_is_refused_before_another_one_is_read(target):
    command = 'ulimit -n "$1"; shift; exec "$@"'
    for most in (5, 7):
        words = ["sh", "-c", command, "sh", str(most), *COMMAND, "stat", "-p", str(target.pid), "libz:deflate"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT)
        assert (done.returncode, done.stderr) == (
            2,
            "fprobe: this process has too few file descriptors left; raise ulimit -n\n",
        )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("run", "--stat", "libz:deflate"),
            "fprobe: /dev/full: the report could not be written: No space left on device\n",
        ),
        (
            ("record", "-e", "p:asked libz:deflate"),
            "fprobe: /dev/full: not a regular file; give another name with -o\n",
        ),
    ],
    ids=["run", "record"],
)
def test_a_full_disk_is_said(target, words, said):
    done = fprobe(*words, "-p", target.pid, "--duration", "0.1", "-o", "/dev/full")
    assert done.returncode and done.stderr.endswith(said) and "Traceback" not in done.stderr, done.stderr


def test_a_refused_attachment_leaves_no_descriptor_here(sleeper):
    sleeper.send_signal(signal.SIGSTOP)
    gc.collect()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        with pytest.raises(Refused):
            Attached(sleeper.pid, SETTINGS)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
