"""HAZARDS 2, 6, 7: probes in the libraries that the process itself runs on."""

from __future__ import annotations

import subprocess

import pytest
from isolation import isolated, run_source

import kprobes


@pytest.mark.parametrize("name", ["libc:malloc", "libc:memcpy", "ld-linux-x86-64.so.2:_dl_catch_error"])
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
