"""event-fork and function-fork (TE-3.13, TE-5.4, TE-9.7): threads and processes made by listed threads."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import pytest
from isolation import isolated
from sampled import in_stress
from traced import program, shown, tracing

THREADS = """
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#define CALL __attribute__((noinline, noipa))
static volatile int sink;
volatile int ids[8], may_end;
CALL int leaf(int x) { return sink = x + 1; }
CALL int other(int x) { return sink = x - 1; }
static void *work(void *which) {
    long n = (long)which;
    ids[n] = syscall(SYS_gettid);
    leaf(n);
    if (n % 10 > 1) { pthread_t t; if (!pthread_create(&t, 0, work, (void *)(n - 1))) pthread_join(t, 0); }
    while (!may_end) usleep(100);
    if (n == 1) pthread_exit((void *)7);
    return (void *)(n + 100);
}
static pthread_t running;
int begin(int n) {
    may_end = 0;
    if (pthread_create(&running, 0, work, (void *)(long)n)) return -1;
    while (!ids[1]) usleep(100);
    return 0;
}
long end(void) { void *result; may_end = 1; return pthread_join(running, &result) ? -1 : (long)result; }
int id(int n) { return ids[n]; }
static void *dies(void *unused) { pthread_attr_t a; return unused; }
int fails(void) {  /* no address space for its stack */
    pthread_attr_t a; pthread_t t;
    pthread_attr_init(&a);
    pthread_attr_setstacksize(&a, 1UL << 46);
    return pthread_create(&t, &a, dies, 0);
}
"""


def follow(option: str, pids: str, notrace: bool = False) -> str:
    """Set an option and its list, whose path is returned."""
    from fprobe.tracefs import tracefs

    kind = "event" if option == "event-fork" else "ftrace"
    path = f"set_{kind}_{'notrace_' if notrace else ''}pid"
    tracefs.write(f"options/{option}", "1")
    tracefs.write(path, pids)
    return path


def hooks() -> int:
    """How many operations are registered: with no tracer and no event enabled, those on pthread_create."""
    from ftrace.core.tracer import tracer

    return len(tracer().enabled)


def in_a_thread(call: Any, *arguments: Any) -> int:
    """Call it in a thread of its own, whose id is returned."""
    ids: list[int] = []

    def run() -> None:
        ids.append(threading.get_native_id())
        call(*arguments)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return ids[0]


def ids_in(path: str, without: int) -> list[int]:
    """What a list holds once the thread `without` has left it."""
    from fprobe.tracefs import tracefs

    deadline = time.monotonic() + 30
    while str(without) in tracefs.read(path).split() and time.monotonic() < deadline:
        time.sleep(0.001)  # join() returns before libc has called the destructors
    return list(map(int, tracefs.read(path).split()))


@isolated
def test_te9_7_a_thread_joins_the_list_of_the_one_that_makes_it_and_leaves_at_its_end() -> None:
    from fprobe.tracefs import tracefs

    module, main = program(), threading.get_native_id()
    path = follow("function-fork", f"{main}\n")
    during: list[str] = []

    def call() -> None:
        module["leaf"](1)
        in_a_thread(module["other"], 1)  # a thread of a thread
        during.append(tracefs.read(path))

    with tracing("function"):
        made = in_a_thread(call)
        assert shown() == ["leaf <-sandbox_guard", "other <-sandbox_guard"]
        assert {main, made} <= set(map(int, during[0].split()))
        assert ids_in(path, made) == [main]
        tracefs.write("trace", "")
        tracefs.write("options/function-fork", "0")
        assert in_a_thread(module["leaf"], 1) and shown() == []
    assert not hooks()


@isolated
def test_te5_4_event_fork_for_threads_of_c() -> None:
    from fprobe.tracefs import tracefs

    module, main = program(THREADS), threading.get_native_id()
    tracefs.write("dynamic_events", "f:ev leaf x=$arg1\n")
    path = follow("event-fork", f"{main}\n")
    tracefs.write("events/fprobes/ev/enable", "1")
    assert module["begin"](3) == 0
    ids = [module["id"](n) for n in (1, 2, 3)]
    assert list(map(int, tracefs.read(path).split())) == sorted([main, *ids])
    assert module["end"]() == 103  # its argument was its own
    assert [line[-5:] for line in shown()] == ["x=0x3", "x=0x2", "x=0x1"]
    for ended in ids:
        assert ended not in ids_in(path, ended)
    assert tracefs.read(path) == f"{main}\n"
    tracefs.write("events/enable", "0")
    tracefs.write("dynamic_events", "")


@isolated
def test_te9_7_threads_of_others_do_not_join_and_of_notrace_pid_they_do() -> None:
    from fprobe.tracefs import tracefs

    module, main = program(), threading.get_native_id()
    with tracing("function"):
        follow("function-fork", "1\n")
        in_a_thread(module["leaf"], 1)
        assert shown() == [] and tracefs.read("set_ftrace_pid") == "1\n"
        tracefs.write("set_ftrace_pid", "\n")
        path = follow("function-fork", f"{main}\n", notrace=True)
        ended = in_a_thread(module["leaf"], 1)
        assert shown() == [] and ids_in(path, ended) == [main]
        tracefs.write(path, "\n")
        in_a_thread(module["leaf"], 1)
        assert shown() == ["leaf <-sandbox_guard"]


@isolated
def test_te9_7_a_list_that_all_threads_have_left_is_still_set() -> None:
    from fprobe.tracefs import tracefs

    module = program()
    inside, may_end = threading.Event(), threading.Event()

    def waits() -> None:  # never hits a probe
        inside.set()
        may_end.wait()

    thread = threading.Thread(target=waits)
    thread.start()
    inside.wait()
    path = follow("function-fork", f"{thread.native_id}\n")
    assert tracefs.read(path) == f"{thread.native_id}\n"
    may_end.set()
    thread.join()
    with tracing("function"):
        assert ids_in(path, thread.native_id or 0) == [] and tracefs.read(path) == ""
        module["leaf"](1)
        assert shown() == []
        tracefs.write(path, "\n", append=True)
        assert tracefs.read(path) == "no pid\n"
        module["leaf"](1)
        assert shown() == ["leaf <-sandbox_guard"]


@pytest.mark.parametrize("on", (True, in_stress(False)))
@isolated
def test_te9_7_the_child_of_a_fork_joins(on: bool) -> None:
    from fprobe.tracefs import tracefs

    module, main = program(), threading.get_native_id()
    path = follow("function-fork", f"{main}\n")
    tracefs.write("options/function-fork", str(int(on)))
    with tracing("function"):
        child = os.fork()
        if child == 0:
            tracefs.write("trace", "")
            module["leaf"](1)
            in_a_thread(module["other"], 1)
            listed = tracefs.read(path).split()
            right = shown() == ["leaf <-sandbox_guard", "other <-sandbox_guard"] and str(os.getpid()) in listed
            os._exit(0 if right == on else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert tracefs.read(path) == f"{main}\n"


@isolated
def test_a_thread_that_cannot_be_made_leaves_nothing_behind() -> None:
    import errno

    from fprobe.tracefs import tracefs
    from ftrace.hit.pid_list import STARTS

    module, main = program(THREADS), threading.get_native_id()
    path = follow("event-fork", f"{main}\n")
    assert {module["fails"]() for _ in range(STARTS + 1)} <= {errno.EAGAIN, errno.EINVAL, errno.ENOMEM}
    assert module["begin"](1) == 0
    assert str(module["id"](1)) in tracefs.read(path).split()
    assert module["end"]() == 7  # by pthread_exit
    tracefs.write("options/event-fork", "0")


@isolated
def test_te10_1_an_instance_follows_by_options_of_its_own() -> None:
    from fprobe.tracefs import tracefs

    module, main = program(), threading.get_native_id()
    tracefs.mkdir("instances/one")
    tracefs.write("instances/one/options/function-fork", "1")
    tracefs.write("instances/one/set_ftrace_pid", f"{main}\n")
    tracefs.write("set_ftrace_pid", f"{main}\n")
    with tracing("function"), tracing("function", "instances/one/"):
        in_a_thread(module["leaf"], 1)
        assert shown() == [] and shown("instances/one/trace") == ["leaf <-sandbox_guard"]
    assert hooks() == 1
    tracefs.rmdir("instances/one")
    assert not hooks()
