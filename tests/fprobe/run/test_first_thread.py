"""Hazard: the first thread of a program ends before the others. The process ends with its last thread, as without our own one."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from attaching import has_interpreter
from command import HAS_COMPILER

pytestmark = pytest.mark.skipif(
    not HAS_COMPILER or not has_interpreter(), reason="no C compiler, or no shared libpython: see fprobe doctor"
)
SOURCE = r"""
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
__attribute__((noinline)) long tiny(long n) { __asm__ volatile(""); return n + 1; }
static void *work(void *rounds) { for (long n = 0; n < (long)rounds; n++) tiny(n), usleep(10000); puts("worker"); return 0; }
static volatile int ends;
static void *until_line(void *none)
{
    struct pollfd in = { 0, POLLIN };
    while (!poll(&in, ends, 0) || !ends) tiny(0), usleep(10000);
    puts("worker");
    return 0;
}
static void at_exit(void) { tiny(0); printf("at exit, first thread %d\n", getpid() == gettid()); }
int main(int count, char **given)
{
    pthread_t thread;
    char how = *given[1];
    atexit(at_exit);
    tiny(0), puts("ready"), fflush(stdout);
    if (how == 'f') { int status; if (fork()) { wait(&status); return WEXITSTATUS(status); } how = 'w'; }
    if (how != 'a' && how != 'o') pthread_create(&thread, 0, how == 'l' ? until_line : work, (void *)10L);
    if (how == 'l') { char line; if (read(0, &line, 1)) ends = 1; }
    if (how == 'j') pthread_join(thread, 0);
    if (how == 's' || how == 'o' || how == 'j') syscall(SYS_exit, 7);
    pthread_exit(0);
}
"""
ALONE, WORKER, SYSTEM_CALL, ONLY, JOINED, CHILD, LONG = "a", "w", "s", "o", "j", "f", "l"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("first") / "first"
    subprocess.run(["cc", "-O1", "-g", "-x", "c", "-", "-pthread", "-o", path], input=SOURCE, text=True, check=True)
    return path


@pytest.mark.parametrize(
    ("how", "hits"), [(ALONE, 2), (WORKER, 12), (SYSTEM_CALL, 11), (ONLY, 1), (JOINED, 11), (CHILD, 13)]
)
def test_the_process_ends_with_the_programs_last_thread(launch, program, how, hits):
    plain = subprocess.run([program, how], capture_output=True, text=True, timeout=30)
    done = launch("--stat", "first:tiny", words=[program, how])
    assert (done.returncode, done.out) == (plain.returncode, plain.stdout)
    rows = [row for process in done.report["processes"] for row in process["functions"]]
    assert sum(row["hits"] for row in rows if row["name"] == "tiny") == hits
    assert "unmapped" not in done.err


def _threads(target):
    return len(list(Path(f"/proc/{target.pid}/task").iterdir()))


def test_probes_are_taken_out_where_the_first_thread_has_ended(program):
    with subprocess.Popen([program, LONG], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as target:
        assert target.stdout.readline() == "ready\n"
        command = [sys.executable, "-m", "fprobe.cli", "stat", "-p", str(target.pid), "--duration", "2", "first:tiny"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as stat:
            while _threads(target) < 3:  # with ours
                time.sleep(0.01)
            time.sleep(1)
            print(file=target.stdin, flush=True)  # its first thread ends
            shown = stat.communicate(timeout=60)[0]
        assert (stat.returncode, target.poll()) == (0, None), shown
        assert "tiny" in shown and "unmapped" not in shown
        again = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60)
        assert again.returncode == 2 and "goes on without its first thread" in again.stderr
        print(file=target.stdin, flush=True)  # so does the other
        assert target.communicate(timeout=30)[0] == "worker\nat exit, first thread 0\n"
        assert target.returncode == 0
