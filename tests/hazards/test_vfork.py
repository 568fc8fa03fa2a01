"""Children of vfork while libraries have breakpoints: they run in their parent's memory, usually with all signals blocked."""

from __future__ import annotations

import shutil

import pytest
from isolation import isolated
from programs import load_c
from sampled import in_stress

import kprobes
from sandbox.native import i32, void

# What such a child calls between vfork and exec, with a post_handler: never optimised to a jump.
CALLED = ("execve", "dup2", "close", "_exit", "sigaction", "sigprocmask", "pthread_sigmask", "fork")

STARTS = r"""
#define _GNU_SOURCE
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
long starts(long fails, long blocks) {
    sigset_t all, old; sigfillset(&all);
    if (blocks) pthread_sigmask(SIG_BLOCK, &all, &old);
    pid_t child = vfork();
    if (!child) {
        dup2(1, 9); close(9);
        if (blocks) {
            struct sigaction standard = { .sa_handler = SIG_DFL };
            for (int n = 1; n < 32; n++) sigaction(n, &standard, 0);
            pthread_sigmask(SIG_SETMASK, &old, 0);
        }
        char *words[] = { fails ? "/none" : "/bin/true", 0 };
        execve(words[0], words, environ);
        _exit(77);
    }
    int status = -1;
    if (child > 0) waitpid(child, &status, 0);
    if (blocks) {
        sigset_t now;
        pthread_sigmask(SIG_SETMASK, &old, &now);
        if (!sigismember(&now, SIGUSR1)) return -2;
    }
    return status;
}
"""


@kprobes.native
def pre(p, regs) -> i32:
    return 0


@kprobes.native
def post(p, regs, flags) -> void:
    pass


def breakpoints():
    probes = [kprobes.kprobe(symbol_name=f"libc:{name}", pre_handler=pre, post_handler=post) for name in CALLED]
    kprobes.register_kprobes(probes)
    return probes


@isolated
def test_a_child_that_subprocess_makes_by_vfork_meets_no_breakpoint():
    """As from Python 3.14 on, where subprocess has no switch for it."""
    import subprocess

    probes = breakpoints()
    subprocess._USE_VFORK = True
    for _ in range(2):
        done = subprocess.run(["/bin/echo", "hello"], capture_output=True, text=True, timeout=20, check=True)
        assert done.stdout == "hello\n"
        with pytest.raises(FileNotFoundError):
            subprocess.run(["/none"], timeout=20)
    kprobes.unregister_kprobes(probes)
    assert subprocess.run(["/bin/true"], timeout=20).returncode == 0


@isolated
def test_subprocess_without_its_switches():
    import subprocess

    for switch in ("_USE_VFORK", "_USE_POSIX_SPAWN"):
        vars(subprocess).pop(switch, None)
    probes = breakpoints()
    assert not hasattr(subprocess, "_USE_VFORK")
    kprobes.unregister_kprobes(probes)


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
@isolated
@pytest.mark.parametrize("blocks", [0, in_stress(1)])
def test_a_child_that_c_makes_by_vfork_meets_no_breakpoint(blocks):
    module = load_c(STARTS)
    assert (module["starts"](0, blocks), module["starts"](1, blocks)) == (0, 77 << 8)
    probes = breakpoints()
    for _ in range(2):
        assert (module["starts"](0, blocks), module["starts"](1, blocks)) == (0, 77 << 8)
    kprobes.unregister_kprobes(probes)


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
@isolated
def test_vfork_itself_is_probed():
    """In any order, at its entry and inside, where its system call was."""
    import fprobe

    module = load_c(STARTS)
    for place in ("libc:vfork", "libc:vfork", "libc:vfork+0x6"):
        with (
            fprobe.attach("libc:vfork", action=fprobe.Count()) as calls,
            kprobes.attach(place, action=kprobes.Count()) as hits,
        ):
            assert module["starts"](0, 0) == 0
            assert (calls.hits, hits.hits) == (1, 1)
