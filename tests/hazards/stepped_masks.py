"""What is stepped through: system calls that block SIGTRAP, whose routines leave it out, while a function has a breakpoint.

Those of ppoll() and pselect() are made by a function from glibc 2.41 on. posix_spawn() blocks all signals around clone3().

Run as a program, as `stepped.py` is.
"""

# ruff: noqa: E402  (it is run as a program)

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

from programs import load_c, stacks_not_empty
from stepped import DRIVER

import kprobes
from sandbox.native import i32, void

PROGRAM = r"""
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/select.h>
#include <time.h>
__attribute__((noipa, patchable_function_entry(0))) long leaf(long x) { return x + 1; }
/* 0 if SIGTRAP is blocked where it is, and not afterwards, as it was before. */
static long wrong_masks(void) {
    sigset_t trap, old, inside, after; struct timespec none = {0, 0};
    sigemptyset(&trap); sigaddset(&trap, SIGTRAP);
    pthread_sigmask(SIG_BLOCK, &trap, &old);
    long wrong = ppoll(0, 0, &none, &trap) | pselect(0, 0, 0, 0, &none, &trap) | (leaf(1) != 2);
    pthread_sigmask(SIG_SETMASK, &old, &inside);
    pthread_sigmask(SIG_BLOCK, 0, &after);
    return wrong | !sigismember(&inside, SIGTRAP) | (sigismember(&old, SIGTRAP) != sigismember(&after, SIGTRAP));
}
long path(long x) { return leaf(4 * x + 5) + wrong_masks(); }
long aside(long x) { return leaf(x) + wrong_masks(); }
"""
MANNERS = ("masks",)


@kprobes.native
def pre(p, regs) -> i32:
    return 0


@kprobes.native
def post(p, regs, flags) -> void:
    pass


def spans() -> list[tuple[int, int]]:
    """The routines, and the islands that lead to them."""
    from ftrace.core.runtime import runtime
    from sandbox.memory.mappings import mappings

    islands = [
        (start, end) for start, end, permissions, path in mappings() if "fprobe-masks" in path and "x" in permissions
    ]
    assert islands
    return [*islands, runtime().image.text]


def main(rounds: int) -> int:
    module, driver = load_c(PROGRAM), load_c(DRIVER)
    probe = kprobes.kprobe(symbol_name="leaf", pre_handler=pre, post_handler=post)  # so that it becomes no jump
    kprobes.register_kprobe(probe)
    drive = driver.symbol("drive")
    driver["prepare"](module["path"], module["aside"], drive.address, drive.end, 1)
    print(json.dumps(spans()), flush=True)
    sys.stdin.readline()
    driver["drive"](rounds)
    numbers, places = (ctypes.c_long * 3)(), (ctypes.c_void_p * 1024)()
    driver["told"](numbers, places)
    handled, wrong, lost = numbers
    complaints = [f"{wrong} wrong results"] * (wrong > 0) + stacks_not_empty()
    complaints += [f"{lost} backtraces end before the driver, from {[hex(p) for p in places if p]}"] * (lost > 0)
    kprobes.unregister_kprobe(probe)
    print(json.dumps({"handled": handled, "complaints": complaints}), flush=True)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[2])))
