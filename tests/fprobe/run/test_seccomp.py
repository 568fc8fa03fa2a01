"""Hazard: a program whose own seccomp filter ends it for a system call that a hit makes, or that is ended inside a hit."""

from __future__ import annotations

import signal
import subprocess

import pytest
from attaching import has_interpreter
from command import HAS_COMPILER

pytestmark = pytest.mark.skipif(
    not HAS_COMPILER or not has_interpreter(), reason="no C compiler, or no shared libpython: see fprobe doctor"
)
SOURCE = r"""
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#define ALLOWED(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
__attribute__((noinline)) int work(int n) { __asm__ volatile(""); return n * 3 + 1; }
static int only(unsigned otherwise)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOWED(SYS_write), ALLOWED(SYS_exit), BPF_STMT(BPF_RET | BPF_K, otherwise),
    };
    struct sock_fprog program = { sizeof filter / sizeof *filter, filter };
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}
int main(int count, char **given)
{
    int sum = 0;
    for (int i = 0; i < atoi(given[2]); i++) sum += work(i);
    if (given[1][0] == 's' ? prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT)
        : only(given[1][0] == 'p' ? 0x80000000U : 0)) return 9;
    for (int i = 0; i < 100; i++) sum += work(i);
    char last = '0' + sum % 10;
    write(1, &last, 1);
    if (given[1][0] == 'k') syscall(SYS_getpid);
    syscall(SYS_exit, 3);
}
"""
KILL_PROCESS, KILL_THREAD, STRICT = "process", "kill", "strict"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("seccomp") / "confined"
    subprocess.run(["cc", "-O1", "-g", "-x", "c", "-", "-o", path], input=SOURCE, text=True, check=True)
    return path


def _hits(done):
    return [(row["name"], row["hits"]) for process in done.report["processes"] for row in process["functions"]]


@pytest.mark.parametrize("how", [KILL_PROCESS, KILL_THREAD])
@pytest.mark.parametrize("before", [0, 2])
def test_a_hit_makes_no_system_call_not_even_the_first_of_a_thread(launch, program, how, before):
    words = [program, how, before]
    plain = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=30)
    if plain.returncode == 9:
        pytest.skip("no seccomp filters here")
    done = launch("--stat", "confined:work", words=words)
    assert (done.returncode, done.out) == (plain.returncode, plain.stdout)
    assert _hits(done) == [("work", 100 + before)]


def test_a_thread_that_is_killed_inside_a_hit_is_not_waited_for(launch, program):
    """In strict mode the kernel takes the time-stamp counter away, too: the first hit that reads it ends the thread."""
    if subprocess.run([program, STRICT, "0"], capture_output=True, timeout=30).returncode != 3:
        pytest.skip("no strict mode here")
    done = launch("--stat", "confined:work", words=[program, STRICT, 1])
    assert done.returncode == -signal.SIGKILL
    assert [name for name, _ in _hits(done)] == ["work"]
