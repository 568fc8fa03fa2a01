"""HAZARDS 2: calls with every signal blocked survive breakpoints, and the program finds its masks as it has set them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from built_library import build_library, built_library, needs_compilers
from isolation import isolated
from sampled import sampled

import kprobes
from sandbox.native import i32, void

pytestmark = needs_compilers

SOURCE = Path(__file__).with_name("masks_program.c")
WAYS = (
    "by_earlier_action", "by_action", "by_mask", "by_thread", "by_sigsuspend", "by_ppoll", "by_pselect", "by_epoll",
    "by_context", "cancelled", "walked",
)  # fmt: skip
CALLS = {"by_mask": 2, "by_thread": 2}
"""How often they call count(), if not once."""


@kprobes.native
def pre(p, regs) -> i32:
    return 0


@kprobes.native
def post(p, regs, flags) -> void:
    pass


@pytest.mark.parametrize("way", sampled(WAYS, 2))
@isolated
def test_a_call_with_all_signals_blocked_meets_a_breakpoint(way):
    import fprobe

    library = built_library("libmasks", SOURCE.read_text())
    library.before()
    plain = getattr(library, way)()
    with fprobe.attach("libmasks:count", action=fprobe.Count()) as calls:
        for _ in range(2):
            assert getattr(library, way)() == plain
        assert calls.hits == 2 * CALLS.get(way, way not in ("cancelled", "walked"))
    assert getattr(library, way)() == plain


@isolated(cold=True)  # the program's handler is there before fprobe's
def test_a_sigtrap_that_is_sent_while_it_is_blocked_comes_when_it_is_not():
    import fprobe

    library = built_library("libmasks", SOURCE.read_text())
    library.handle_trap()
    assert library.sent() == 1
    with fprobe.attach("libmasks:count", action=fprobe.Count()):
        assert library.sent() == 1


@isolated(cold=True)  # it sets the handler of a signal
def test_a_program_may_set_the_action_of_sigtrap_while_there_are_breakpoints():
    """In Python and in C; what it has set is there when they are gone."""
    library, got = built_library("libmasks", SOURCE.read_text()), []
    before = signal.getsignal(signal.SIGTRAP)
    kprobes.set_kprobes_optimization(0)
    with kprobes.attach("libmasks:count", action=kprobes.Count()) as calls:
        library.count(5)
        assert signal.signal(signal.SIGTRAP, lambda *_: got.append(len(got))) == before
        library.count(5)
        signal.raise_signal(signal.SIGTRAP)
        for action in (signal.SIG_IGN, lambda *_: got.append("last")):
            signal.signal(signal.SIGTRAP, action)
            library.count(5)
            signal.raise_signal(signal.SIGTRAP)
        library.handle_trap()
        assert library.sent() == 1
        signal.signal(signal.SIGTRAP, lambda *_: got.append("python"))
        assert calls.hits == 4
    signal.raise_signal(signal.SIGTRAP)
    assert got == [0, "last", "python"]


@pytest.mark.stress
@isolated
def test_system_calls_are_replaced_and_given_back_while_threads_make_them():
    from ftrace.core.runtime import runtime
    from ftrace.core.sites.signal_masks import keep_traps_unblocked, restore_masks

    library = built_library("libmasks", SOURCE.read_text())
    library.before()
    runtime()
    library.start(1)
    for _ in range(300):
        assert keep_traps_unblocked()
    assert library.stop() > 100
    restore_masks()
    library.start(0)  # a mask that was set before is not what the program has set any more
    for _ in range(300):
        keep_traps_unblocked()
        restore_masks()
    assert library.stop() > 100


@isolated
def test_a_thread_that_has_replaced_them_ends_with_sigtrap_blocked():
    """What the program has asked for is a word behind a pthread key, which is no task."""
    import signal
    import threading

    from ftrace.core.runtime import runtime
    from ftrace.core.sites.signal_masks import keep_traps_unblocked

    runtime()
    masks = []

    def work():
        assert keep_traps_unblocked()
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTRAP])
        masks.append(signal.SIGTRAP in signal.pthread_sigmask(signal.SIG_BLOCK, []))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert masks == [True]


@isolated
def test_text_of_the_c_library_is_given_back():
    import ctypes

    import fprobe
    from ftrace.core.sites.signal_masks import keep_traps_unblocked, restore_masks
    from sandbox.images.process_text import library_called

    built_library("libmasks", SOURCE.read_text())
    fprobe.attach("libmasks:by_mask", action=fprobe.Count()).attach().detach()
    (start, end), *_ = library_called("libc").text
    before = ctypes.string_at(start, end - start)
    assert keep_traps_unblocked()
    assert ctypes.string_at(start, end - start) != before
    restore_masks()
    assert ctypes.string_at(start, end - start) == before


@isolated(cold=True)  # the program's handler is there before fprobe's
def test_a_mask_that_was_set_while_they_were_given_back_is_what_is_known():
    import signal

    from ftrace.core.sites.signal_masks import keep_traps_unblocked, restore_masks

    def blocked(how, *signals):
        return signal.SIGTRAP in signal.pthread_sigmask(how, signals)

    seen = []
    signal.signal(signal.SIGTRAP, lambda number, _: seen.append(number))
    assert keep_traps_unblocked()
    assert not blocked(signal.SIG_BLOCK, signal.SIGTRAP) and blocked(signal.SIG_BLOCK)
    restore_masks()
    blocked(signal.SIG_UNBLOCK, signal.SIGTRAP)
    assert keep_traps_unblocked()
    signal.raise_signal(signal.SIGTRAP)
    assert seen and not blocked(signal.SIG_BLOCK)
    assert not blocked(signal.SIG_BLOCK, signal.SIGTRAP) and blocked(signal.SIG_UNBLOCK, signal.SIGTRAP)


@isolated
def test_nothing_is_replaced_without_a_breakpoint():
    import ctypes

    import fprobe
    from sandbox.images.process_text import library_called

    built_library("libmasks", SOURCE.read_text())
    (start, end), *_ = library_called("libc").text
    before = ctypes.string_at(start, end - start)
    with fprobe.attach("libmasks:by_mask", action=fprobe.Count()):
        assert ctypes.string_at(start, end - start) == before


@isolated
def test_after_a_fork_in_c_handlers_of_sigtrap_are_the_childs_own():
    import fprobe

    library = built_library("libmasks", SOURCE.read_text())
    library.before()
    with fprobe.attach("libmasks:count", action=fprobe.Count()):
        child = os.fork()
        if not child:
            assert library.by_action() == 0x0701
            signal.signal(signal.SIGTRAP, signal.SIG_IGN)
            os._exit(7 if signal.getsignal(signal.SIGTRAP) is signal.SIG_IGN else 8)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


PROGRAM = """
import ctypes
library = ctypes.CDLL('{path}')
library.before()
print(library.by_earlier_action(), library.by_mask())
"""


@pytest.mark.stress
def test_under_run(tmp_path):
    build_library(tmp_path / "libmasks.so", SOURCE.read_text())
    text = PROGRAM.format(path=tmp_path / "libmasks.so")
    plain = subprocess.run([sys.executable, "-c", text], timeout=100, capture_output=True, text=True, check=True)
    run = [sys.executable, "-m", "fprobe", "run", "--stat", "libmasks:count", "-c", text]
    done = subprocess.run(run, timeout=100, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, plain.stdout), done.stderr
    assert "a breakpoint patches" not in done.stderr


# -- waits for SIGTRAP, or with masks that let it in -----------------------------------------------------------------------

WAITS = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
__attribute__((noinline)) long count(long n) { __asm__ volatile(""); return n + 1; }
static sigset_t trap(void) { sigset_t set; sigemptyset(&set); sigaddset(&set, SIGTRAP); return set; }

/* The classic: all signals are blocked in all threads, and one thread waits for all. */
static volatile int thread;
static void *waits(void *late)
{
    sigset_t all; int number = 0;
    sigfillset(&all), count(1), thread = gettid();
    if (late) usleep(20000);
    sigwait(&all, &number);
    return (void *)(number + count(0) - 1);
}
long waited_by_thread(int directed, long late)
{
    sigset_t all, old; pthread_t made; void *number; struct timespec limit;
    sigfillset(&all), pthread_sigmask(SIG_BLOCK, &all, &old), thread = 0;
    pthread_create(&made, 0, waits, (void *)late);
    while (!thread) usleep(100);
    usleep(late ? 0 : 5000), count(3);
    if (directed) pthread_kill(made, SIGTRAP); else kill(getpid(), SIGTRAP);
    clock_gettime(CLOCK_REALTIME, &limit), limit.tv_sec += 3;
    if (pthread_timedjoin_np(made, &number, &limit)) pthread_kill(made, SIGUSR1), pthread_join(made, &number);
    pthread_sigmask(SIG_SETMASK, &old, 0);
    return (long)number;
}
long waited(int how)
{
    sigset_t set = trap(), old, pending; struct timespec limit = {0, 20000000}; siginfo_t info = {0};
    pthread_sigmask(SIG_BLOCK, &set, &old), count(1);
    if (how == 1) raise(SIGTRAP);
    if (how == 2) kill(getpid(), SIGTRAP);
    sigpending(&pending);
    int number = sigtimedwait(&set, &info, &limit), error = number < 0 ? errno : 0;
    count(2), pthread_sigmask(SIG_SETMASK, &old, 0);
    return number * 100 + error + 10000 * sigismember(&pending, SIGTRAP) + (number > 0 && info.si_pid == getpid());
}
static volatile int got;
static void handles(int number) { got++; count(got); }
static void *sends(void *to) { usleep(20000); pthread_kill(*(pthread_t *)to, SIGTRAP); return 0; }
long opened(int how, int later)
{
    struct sigaction action = {.sa_handler = handles}, before;
    sigset_t set = trap(), none, old; struct timespec limit = {0, later ? 300000000 : 1000000};
    pthread_t self = pthread_self(), other; struct epoll_event event; int result = 0, poll = epoll_create1(0);
    sigaction(SIGTRAP, &action, &before), got = 0, sigemptyset(&none);
    pthread_sigmask(SIG_BLOCK, &set, &old), count(1);
    if (later) pthread_create(&other, 0, sends, &self); else raise(SIGTRAP);
    int first = got;
    if (how == 0) result = ppoll(0, 0, &limit, &none);
    if (how == 1) result = pselect(0, 0, 0, 0, &limit, &none);
    if (how == 2) result = epoll_pwait(poll, &event, 1, later ? 300 : 1, &none);
    if (how == 3) result = sigsuspend(&none);
    int error = result < 0 ? errno : 0, during = got;
    raise(SIGTRAP);
    int after = got;
    count(2), pthread_sigmask(SIG_SETMASK, &old, 0);
    if (later) pthread_join(other, 0);
    sigaction(SIGTRAP, &before, 0), close(poll);
    return 10000 * first + 1000 * during + 100 * after + 10 * got + (error == EINTR);
}
"""


@isolated(timeout=60)
def test_waits_for_sigtrap_and_waits_that_let_it_in_end_as_without_breakpoints():
    """sigwait() in a thread, sigtimedwait(), sigpending(); ppoll() and its like, where it was sent before or comes meanwhile."""
    library = built_library("libwaits", WAITS)

    def results():
        threads = [library.waited_by_thread(directed, late) for directed in (0, 1) for late in (0, 1)]
        opened = [library.opened(how, later) for how in range(4) for later in (0, 1)]
        return threads, [library.waited(how) for how in range(3)], opened

    plain = results()
    assert plain == ([signal.SIGTRAP] * 4, [11 - 100, 10501, 10501], [1121] * 8)
    probe = kprobes.kprobe(symbol_name="libwaits:count", pre_handler=pre, post_handler=post)  # it becomes no jump
    kprobes.register_kprobe(probe)
    for _ in range(3):
        assert results() == plain
    kprobes.unregister_kprobe(probe)
    assert results() == plain


# -- children that run in our memory until they execute --------------------------------------------------------------------

SPAWNS = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static long end_of(int error, pid_t *child) {
    int status = -1;
    if (!error) waitpid(*child, &status, 0);
    return error ? error : status;
}
long spawns(long fails) {
    posix_spawn_file_actions_t actions; posix_spawnattr_t attributes; pid_t child = 0;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 9, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, 9, 8);
    posix_spawn_file_actions_addclose(&actions, 9);
    sigset_t none, all; sigemptyset(&none); sigfillset(&all);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    char *words[] = { fails ? "/none" : "/bin/true", 0 };
    long end = end_of(posix_spawn(&child, words[0], &actions, &attributes, words, environ), &child);
    posix_spawn_file_actions_destroy(&actions);
    return end;
}
long spawns_by_name(void) {
    char *words[] = { "true", 0 }; pid_t child = 0;
    return end_of(posix_spawnp(&child, "true", 0, 0, words, environ), &child);
}
long runs(void) { return system("exit 3"); }
long reads(void) {
    char text[9] = "";
    FILE *file = popen("echo five", "r");
    return fgets(text, 9, file) ? pclose(file) + text[3] : -1;
}
"""
CALLED = (
    "execve", "execvpe", "dup2", "close", "open", "open64", "sigaction", "sigprocmask", "pthread_sigmask", "setpgid", "fcntl",
    "posix_spawn", "posix_spawnp", "system", "popen", "waitpid", "_exit", "memcpy", "strlen", "strchr", "clone", "clone3",
    "getrlimit", "setsid", "sched_setscheduler", "__sigaction", "__libc_sigaction", "__spawni_child",
)  # fmt: skip


def spawned(library):
    child = os.posix_spawn("/bin/true", ["true"], os.environ)
    ends = (library.spawns(0), library.spawns(1), library.spawns_by_name(), library.runs(), library.reads())
    return *ends, os.waitpid(child, 0)[1], os.system("exit 4")


@isolated
def test_children_of_posix_spawn_system_and_popen_meet_breakpoints():
    """With a post_handler, so that no breakpoint becomes a jump."""
    library = built_library("libspawns", SPAWNS)
    plain = spawned(library)
    assert plain == (0, 2, 0, 3 << 8, ord("e"), 0, 4 << 8)
    probes = []
    for name in CALLED:
        probe = kprobes.kprobe(symbol_name=f"libc:{name}", pre_handler=pre, post_handler=post)
        try:
            kprobes.register_kprobe(probe)
        except OSError:
            continue  # a name that this C library does not have, or keeps in one function with another
        probes.append(probe)
    assert len(probes) > 15
    for _ in range(3):
        assert spawned(library) == plain
    kprobes.unregister_kprobes(probes)
    assert spawned(library) == plain


@pytest.mark.stress
@isolated
def test_children_of_posix_spawn_leave_no_hooked_calls_behind():
    """execve() does not return in a child that has our memory: its call stays on the shadow stack of the parent's thread."""
    import fprobe

    library = built_library("libspawns", SPAWNS)
    plain = spawned(library)
    with fprobe.attach("libc:*", action=fprobe.Stat()) as probe:
        for _ in range(30):
            assert spawned(library) == plain
        assert probe.counts.missed == 0


def test_the_function_that_makes_waits_is_the_one_that_most_of_them_call():
    """As in glibc 2.41 and later; on an older one nothing else looks at this."""
    from ftrace.hit.x86_64.signal_masks import calls_in

    def calling(number, target):
        """push $number; mov $8, %esi; call target"""
        at = len(text) + 10
        return b"\x68" + number.to_bytes(4, "little") + b"\xbe\x08\0\0\0\xe8" + (target - at - 5).to_bytes(4, "little")

    text = b""
    for number, target in ((130, 0x900), (270, 0x900), (281, 0x700), (271, 0x900), (441, 0x800)):
        text += calling(number, target)
    found = [(each.address, each.number, each.target, each.end) for each in calls_in(text, 0x5000)]
    assert found == [(0x5000 + at, number, 0x5900, 0x5005 + at) for at, number in ((10, 130), (25, 270), (55, 271))]
