"""HAZARDS 2, 6, 7: probes in the libraries that the process itself runs on."""

from __future__ import annotations

import subprocess

import pytest
from isolation import isolated, run_source

import kprobes


@pytest.mark.parametrize("name", ["libc:malloc", "libc:memcpy", "ld-linux-x86-64.so.2:_dl_catch_exception"])
def test_python_handlers_where_the_interpreter_runs_are_refused(name):
    try:
        kp = kprobes.kprobe(symbol_name=name, pre_handler=lambda *_: 0)
        with pytest.raises(OSError, match="python-unsafe") as caught:
            kprobes.register_kprobe(kp)
    finally:
        kp.addr = None
    assert caught.value.errno == 22 and not kp.registered


def test_python_return_handlers_there_are_refused_too():
    rp = kprobes.kretprobe(symbol_name="libc:malloc", handler=lambda *_: 0)
    with pytest.raises(OSError, match="python-unsafe"):
        kprobes.register_kretprobe(rp)


@isolated
def test_a_python_handler_in_libc_by_permission():
    import ctypes

    seen = []
    kp = kprobes.kprobe(
        symbol_name="libc:labs", pre_handler=lambda _, regs: seen.append(regs.di) or 0, python_unsafe=True
    )
    kprobes.register_kprobe(kp)
    assert ctypes.CDLL(None).labs(-3) == 3
    kprobes.unregister_kprobe(kp)
    assert [value & 0xFFFF_FFFF for value in seen] == [0xFFFF_FFFD]


@isolated
def test_children_made_by_subprocess_while_libc_has_breakpoints():
    """A vfork child blocks all signals: a breakpoint in what it calls before it executes would kill it."""
    import subprocess

    from sandbox.native import i32, void

    @kprobes.native
    def pre(p, regs) -> i32:
        return 0

    @kprobes.native
    def post(p, regs, flags) -> void:
        pass

    names = ["execve", "dup2", "close", "_exit", "sigaction", "sigprocmask"]
    probes = [kprobes.kprobe(symbol_name=f"libc:{name}", pre_handler=pre, post_handler=post) for name in names]
    kprobes.register_kprobes(probes)
    for _ in range(3):
        done = subprocess.run(
            ["/bin/echo", "hello"], capture_output=True, text=True, close_fds=True, timeout=20, check=True
        )
        assert done.stdout == "hello\n"
    kprobes.unregister_kprobes(probes)


LEAVES = """
#include <unistd.h>
__attribute__((noipa)) long farewell(long x) { return x * 2; }
__attribute__((destructor)) static void leaves(void) {
    for (long i = 0; i < 1000; i++) if (farewell(i) != i * 2) _exit(9);
    write(1, "left\\n", 5);
}
"""
AT_EXIT = """
import ctypes, sys
import fprobe
ctypes.CDLL({path!r})
fprobe.attach("libleaves:*", action=fprobe.Stat()).attach()
sys.exit(5)
"""


def test_destructors_of_libraries_hit_probes_after_the_interpreter_has_ended(tmp_path):
    """HAZARDS 5: what a hit uses is not freed while its site is patched."""
    path = tmp_path / "libleaves.so"
    (tmp_path / "leaves.c").write_text(LEAVES)
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", path, tmp_path / "leaves.c"], check=True)
    done = run_source(AT_EXIT.format(path=str(path)))
    assert (done.returncode, done.stdout) == (5, "left\n"), done.stderr


@isolated
def test_what_hits_call_is_refused_under_each_of_its_names():
    """HAZARDS 3: claiming a task's record calls pthread_setspecific, which libc exports in several versions."""
    import ctypes

    import fprobe
    from ftrace.core.entries.locate import locate_addresses

    address = ctypes.cast(ctypes.CDLL(None).pthread_setspecific, ctypes.c_void_p).value
    (refused,) = locate_addresses([address]).skipped
    assert "a hit calls" in refused.reason
    with fprobe.attach("libc:*pthread_*specific*", action=fprobe.Stat()) as probe:
        assert address not in {location.ip for location in fprobe.registration.functions_of(probe.fp).each()}


@pytest.mark.stress
@isolated(timeout=60)
def test_all_of_libc_at_both_ends_while_threads_end_and_processes_fork():
    """HAZARDS 1, 3: a thread's record is freed by a function of libc that returns once more, as its callers do."""
    import ctypes
    import os
    import subprocess
    import threading

    import fprobe
    from sandbox.native import i32

    @fprobe.native
    def enters(fp, ip, ret_ip, regs, data) -> i32:
        return 0

    @fprobe.native
    def leaves(fp, ip, ret_ip, regs, data):
        pass

    libc = ctypes.CDLL(None)
    compared = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))
    order = compared(lambda a, b: a[0] - b[0])
    results = []
    with fprobe.attach("libc:*", entry=enters, exit=leaves) as probe:
        for number in range(20):
            thread = threading.Thread(target=lambda n=number: results.append(n))
            thread.start()
            thread.join()
        numbers = (ctypes.c_int * 50)(*range(50, 0, -1))
        libc.qsort(numbers, 50, 4, order)
        text = ctypes.create_string_buffer(64)
        libc.snprintf(text, 64, b"%d of %s", 7, b"nine")
        child = os.fork()
        if not child:
            os._exit(3)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        echo = subprocess.run(["/bin/echo", "hello"], stdout=subprocess.PIPE, check=True).stdout
        import sqlite3  # dlopen

        pending = probe.fp.ops.probe.counts()
    assert results == list(range(20)) and list(numbers) == list(range(1, 51))
    assert (text.value, status, echo, sqlite3.sqlite_version_info > (3,)) == (b"7 of nine", 3, b"hello\n", True)
    assert probe.counts.hits > 1000 and pending.hits > 1000
