"""Hazard: our own thread takes a signal that is sent to the process, and that all threads of the program block."""

from __future__ import annotations

import subprocess

import pytest
from attaching import has_interpreter
from command import HAS_COMPILER, forked

pytestmark = pytest.mark.skipif(
    not HAS_COMPILER or not has_interpreter(), reason="no C compiler, or no shared libpython: see fprobe doctor"
)
SOURCE = r"""
#define _GNU_SOURCE
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>
static const int numbers[] = {SIGSEGV, SIGFPE, SIGBUS, SIGILL, SIGSYS};
__attribute__((noinline)) int work(int n) { __asm__ volatile(""); return n + 1; }
int main(void) {
    sigset_t set;
    siginfo_t info;
    struct timespec limit = {5, 0};
    struct signalfd_siginfo read_info = {0};
    sigemptyset(&set);
    for (int i = 0; i < 5; i++) sigaddset(&set, numbers[i]);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int file = signalfd(-1, &set, 0);
    for (int i = 0; i < 5; i++) {
        int taken = 0, number = numbers[i];
        union sigval value = {.sival_int = 7};
        work(i);
        kill(getpid(), number);
        usleep(20000);
        int timed = sigtimedwait(&set, &info, &limit);
        printf("%d %d %d %d\n", number, timed, info.si_code, info.si_pid == getpid());
        sigqueue(getpid(), number, value);
        usleep(20000);
        timed = sigtimedwait(&set, &info, &limit);
        printf("%d %d %d\n", timed, info.si_code, info.si_value.sival_int);
        kill(getpid(), number);
        struct pollfd polled = {file, POLLIN, 0};
        if (poll(&polled, 1, 5000) == 1 && read(file, &read_info, sizeof read_info) > 0) printf("%d\n", read_info.ssi_signo);
        kill(getpid(), number);
        sigwait(&set, &taken);
        printf("%d\n", taken);
    }
    return 0;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "waits"
    subprocess.run(["cc", "-O1", "-g", "-x", "c", "-", "-o", path], input=SOURCE, text=True, check=True)
    return path


def test_signals_of_faults_that_are_sent_stay_pending_until_they_are_taken(program):
    bare = subprocess.run([program], capture_output=True, text=True, timeout=60)
    done = forked(["run", "--stat", "work", "--", str(program)], 60)
    assert (bare.returncode, bare.stdout.count("\n")) == (0, 20)
    assert (done.returncode, done.stdout) == (0, bare.stdout), done.stderr
    assert "work" in done.stderr
