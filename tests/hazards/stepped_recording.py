"""What is stepped through: a function whose calls are recorded; the signal's handler records calls of its own.

Run as a program: `stepped_recording.py MANNER ROUNDS`. It prints the ranges of code to be interrupted, waits for a line, then
calls. In manner `full` every stepped record finds its page full; in `pages` the handler records more than a page holds; in `jump`
(and `jump, full`) it leaves what it interrupted by siglongjmp.
"""

# ruff: noqa: E402, E501  (it is run as a program; C is as wide as it is)

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [
    str(Path(__file__).parent),
    str(Path(__file__).parent.parent),
    str(Path(__file__).parent.parent / "ftrace" / "ring_buffer"),
]

from recorder import FIRST, Recorder, numbers

DRIVER = r"""
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>
typedef unsigned long u64;
static long (*work)(u64, u64);
static int (*handler)(void *, u64, u64, void *, void *);
static void *probe;
static u64 first_argument, second_argument;
static volatile u64 *tail;
static volatile u64 handled, nested, filled, jumped;
static long pid, tid, jumps, times;
static sigjmp_buf back;
static void tell(int s) { long r; asm volatile("syscall" : "=a"(r) : "0"(SYS_tgkill), "D"(pid), "S"(tid), "d"(s) : "rcx", "r11", "memory"); }
static void call(u64 x) {
    u64 regs[32];
    if (!handler) { work(x, x * 0x9E3779B97F4A7C15ul); return; }
    regs[first_argument] = x;
    regs[second_argument] = x * 0x9E3779B97F4A7C15ul;
    handler(probe, __builtin_ia32_rdtsc(), 0, regs, 0);
}
static void on_signal(int s) {
    handled++;
    for (long i = 0; i < times; i++) call((1ul << 32) + ++nested);
    if (jumps) { jumped++; siglongjmp(back, 1); }
    tell(SIGUSR2);
}
__attribute__((noipa)) static void deeper(void) { volatile char room[64]; room[0] = 1; call((2ul << 32) + ++filled); room[1] = 2; }
static void fill(void) { while ((*tail & 0xfffff) + 36 <= 4080) call((2ul << 32) + ++filled); }
void drive(u64 rounds, u64 full) {
    for (volatile u64 i = 1; i <= rounds; i++) {
        call((2ul << 32) + ++filled);
        if (full) fill();
        if (!sigsetjmp(back, 1)) { tell(SIGUSR2); call(i); } else tell(SIGUSR2);
        tell(SIGURG);
        deeper();
    }
}
void prepare(void *f, volatile u64 *where, long with_jumps, long records) {
    work = f; tail = where; jumps = with_jumps; times = records; pid = getpid(); tid = syscall(SYS_gettid);
    struct sigaction ignore = { .sa_handler = SIG_IGN }, sa = { .sa_handler = on_signal, .sa_flags = SA_NODEFER };
    sigaction(SIGUSR1, &sa, 0); sigaction(SIGUSR2, &ignore, 0); sigaction(SIGURG, &ignore, 0);
}
void directly(void *f, void *p, u64 first, u64 second) { handler = f; probe = p; first_argument = first; second_argument = second; }
u64 told(u64 which) { return which == 0 ? nested : which == 1 ? filled : which == 2 ? jumped : handled; }
"""


def _spans(manner: str) -> list[tuple[int, int]]:
    """The handler, and what the runtime does of a record; in `pages` only how it publishes one."""
    from recording_native import record_pair

    from fprobe.handlers.roles import ENTRY
    from ftrace.core.handlers.resolve import native
    from ftrace.core.runtime import runtime

    image = runtime().image
    if "pages" in manner:
        return [(symbol.address, symbol.end) for symbol in image.symbols if symbol.name == "ring_publish"]
    names = ("ring_reserve", "ring_stamp", "ring_end")
    inner = [symbol for symbol in image.symbols if symbol.name in names or symbol.name in _slow_functions()]
    return [native(record_pair, ENTRY).keep.text, *((symbol.address, symbol.end) for symbol in inner)]


def _direct(recorder: Any) -> tuple[int, int, int, int]:
    """The handler, a probe for it, and the words of pt_regs that the arguments are in."""
    from recording_native import record_pair

    from fprobe.handlers.roles import ENTRY
    from ftrace.core.handlers.resolve import native
    from ftrace.hit.records import Probe
    from ftrace.hit.x86_64.pt_regs import pt_regs

    recorder.probe = Probe.ctypes(action=recorder.buffer.address)
    entry = native(record_pair, ENTRY).keep.address("record_pair")
    return entry, ctypes.addressof(recorder.probe), pt_regs.offset("di") // 8, pt_regs.offset("si") // 8


def _slow_functions() -> set[str]:
    from ftrace.hit.ring_buffer import clock_state, pool, switching, writer
    from sandbox.native import NativeFunction

    modules = (clock_state, pool, switching, writer)
    return {v.name for module in modules for v in vars(module).values() if isinstance(v, NativeFunction)}


_NEVER = (1 << 64) - 1
RECORDS_OF_A_PAGE = 100


def keep_fit(recorder: Any) -> Any:
    """Keep the clock from being fitted again: then one formula gives the time of every count of ticks, however long stepping takes."""
    clock = recorder.buffer._live.clock_state
    clock.interval = _NEVER
    return clock


def late(recorder: Any, held: list[Any]) -> list[str]:
    """Records with a later stamp than the counter had when the call after theirs began, which the record of that has as its ip."""
    from ftrace.hit.ring_buffer.clock_state import Segment

    clock = recorder.buffer._live.clock_state
    assert clock.interval == _NEVER
    segment = clock.segments[clock.sequence // Segment.size]
    outer = [record for record in held if numbers([record])[0][0] == 2]
    ticks = [int.from_bytes(record.data[8:16], "little") for record in outer[1:]]
    begun = [segment.base + (count * segment.factor >> 64) & (1 << 64) - 1 for count in ticks]
    found = [(a.stamp, b) for a, b in zip(outer, begun, strict=False) if a.stamp > b]
    return [f"stamps that are too late: {found[:3]}"] if found else []


def check(recorder: Any, rounds: int, told: Any, jumped: int, direct: bool) -> list[str]:
    """What is wrong with the records, of which none may be torn, repeated or lost uncounted."""
    held = list(recorder.buffer.records())
    found, stats = numbers(held), recorder.buffer.stats(0)
    hits, missed = recorder.attachment.hits, recorder.attachment.counts.missed
    if jumped or direct:
        hits = rounds + sum(told)
    complaints = []
    counted = len(found) + stats.overrun + stats.dropped + stats.commit_overrun
    if not hits - jumped <= counted <= hits:
        complaints.append(f"{len(found)} records of {hits} hits: {stats}")
    if [record.stamp for record in held] != sorted(record.stamp for record in held):
        complaints.append("time goes back")
    for kind, written in enumerate((rounds, *told)):
        row = [number for of, number in found if of == kind]
        if row != sorted(set(row)) or (row and row[-1] > written):
            complaints.append(f"kind {kind}: {row}")
    if hits + missed != rounds + sum(told):
        complaints.append(f"{hits} hits and {missed} misses of {rounds} + {told}")
    if not jumped and stats.dropped * 4 > hits:
        complaints.append(f"too many are lost: {stats}")
    view = recorder.buffer._live.view
    if view.slot_word(0, "writer") or view.slot_word(0, "switching") >> 32:
        complaints.append("a record is still in progress")
    if jumped and not view.slot_word(0, "abandoned"):
        complaints.append("no record was abandoned")
    if direct:
        complaints += late(recorder, held)
    consumed = numbers(recorder.buffer.consume())
    if consumed != found:
        complaints.append("the consuming reader finds others")
    return complaints


def main(manner: str, rounds: int) -> int:
    """Record, say where, call, check; the exit status."""
    from programs import load_c

    from ftrace.hit.ring_buffer.records import Slot

    recorder = Recorder(size_kb=32 << 10)
    driver = load_c(DRIVER)
    tail = recorder.buffer._live.slot_address(0) + Slot.offset("tail")
    driver["prepare"](
        recorder.module["work"], tail, int("jump" in manner), RECORDS_OF_A_PAGE if "pages" in manner else 1
    )
    if (
        "jump" in manner or "direct" in manner
    ):  # a hit that is left by siglongjmp keeps its recursion lock: the handler is called without one
        driver["directly"](*_direct(recorder))
        keep_fit(recorder)
    print(json.dumps(_spans(manner)), flush=True)
    sys.stdin.readline()
    driver["drive"](rounds, int("full" in manner))
    nested, filled, jumped, handled = (driver["told"](which) for which in range(4))
    complaints = check(recorder, rounds, (nested, filled), jumped, "direct" in manner)
    print(json.dumps({"handled": handled, "complaints": complaints}), flush=True)
    return 1 if complaints else 0


if __name__ == "__main__":
    assert FIRST == 1 << 32
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
