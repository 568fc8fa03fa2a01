"""What is stepped through: a call whose credit is being taken, or given back, while another thread switches the pool to shared.

The signal comes at that instruction. Its handler calls the same function, and during that hit, while the thread's own credit
does not count as being touched, another thread calls it too: it finds no credit of its own, and gathers those of all threads.

Run as a program, as `stepped.py` is.
"""

# ruff: noqa: E402  (it is run as a program)

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import NamedTuple

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

from handlers_native import tally_exit_alone
from programs import load_c, stacks_not_empty
from stepped import DRIVER

from ftrace.hit.records import Probe
from sandbox.native import Structure, cast, fn, i32, native, ptr, struct, u64

PROGRAM = r"""
#include <pthread.h>
#include <stddef.h>
static struct { long tallies[3]; long (*other)(long); long wanted; } *action;
__attribute__((noipa)) long leaf(long x) { return x + 1; }
__attribute__((noipa)) long path(long x) { return leaf(4 * x + 5); }
static void *calls(void *unused) { return (void *)leaf(0); }
static long other(long x) {
    pthread_t thread; void *result;
    pthread_create(&thread, NULL, calls, NULL);
    pthread_join(thread, &result);
    return (long)result;
}
long aside(long x) { action->wanted = 1; return leaf(x); }
void let(void *where) { action = where; action->other = other; }
"""


@struct
class Action(Structure):
    """The words of tally_exit_alone; what the entry handler calls, once each time that it is wanted."""

    first: u64
    exits: u64
    wrong: u64
    other: fn[u64, u64]
    wanted: u64


@native(cc="preserve_most")
def call_if_wanted(fp: ptr[Probe], ip: u64, ret_ip: u64, regs: u64, data: u64) -> i32:
    action = cast(ptr[Action], fp.action)
    if action.wanted != 0:
        action.wanted = 0
        action.other(0)
    return 0


class Manner(NamedTuple):
    """The name of a routine, and of the instruction by which it changes the credits in rsi or r8."""

    routine: str
    change: str
    slow: bool


MANNERS = {
    "a credit taken": Manner("pool_take", "sub", True),
    "a credit given back": Manner("ftrace_exit_fast_data", "add", False),
}


def change_of_credits(manner: Manner) -> list[tuple[int, int]]:
    """Where that instruction is, behind the check that the pool is not shared."""
    from ftrace.core.runtime import runtime
    from sandbox.x86_64.decoding import decoder

    start = runtime().image.address(manner.routine)
    for at, size, name, operands in decoder().disasm_lite(ctypes.string_at(start, 256), start):
        if name == manner.change and operands.startswith("qword ptr ["):
            return [(at, at + size)]
    raise LookupError(f"no {manner.change} of a word in {manner.routine}")


def main(name: str, rounds: int) -> int:
    import fprobe

    manner = MANNERS[name]
    module, driver = load_c(PROGRAM), load_c(DRIVER)
    action = Action.ctypes()
    limits = {"nr_maxactive": 1, "max_hits": 1 << 40 if manner.slow else 0}
    probe = fprobe.attach(["leaf"], entry=call_if_wanted, exit=tally_exit_alone, entry_data_size=8, **limits)
    probe.fp.action = ctypes.addressof(action)
    with probe:
        module["let"](ctypes.addressof(action))
        drive = driver.symbol("drive")
        driver["prepare"](module["path"], module["aside"], drive.address, drive.end, 1)
        module["leaf"](0)  # its node becomes this thread's credit
        print(json.dumps(change_of_credits(manner)), flush=True)
        sys.stdin.readline()
        driver["drive"](rounds)
        numbers, places = (ctypes.c_long * 3)(), (ctypes.c_void_p * 1024)()
        driver["told"](numbers, places)
        misses = [probe.counts.missed_nodes]
        for call in ("leaf", "aside"):
            module[call](0)
            misses.append(probe.counts.missed_nodes)
    alone, within = misses[1] - misses[0], misses[2] - misses[1]
    complaints = [f"{alone} misses of a call alone, {within} of one within another"] * ((alone, within) != (0, 1))
    complaints += [f"{numbers[1]} wrong results"] * (numbers[1] > 0) + stacks_not_empty()
    print(json.dumps({"handled": numbers[0], "complaints": complaints}), flush=True)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
