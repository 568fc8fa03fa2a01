"""What is stepped through: functions probed in every manner, and a driver that checks what becomes of the calls.

Run as a program: `stepped.py MANNER ROUNDS [FILE]`. It prints the ranges of code to be interrupted, waits for a line, then calls.
"""

# ruff: noqa: E402, E501  (it is run as a program; C is as wide as it is)

from __future__ import annotations

import ctypes
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

from handlers_native import (
    tally_cancel,
    tally_entry,
    tally_entry_all,
    tally_entry_regs,
    tally_entry_sp,
    tally_exit,
    tally_exit_all,
    tally_exit_alone,
    tally_exit_regs,
)
from programs import assert_untouched, load_c, nodes_lost, stacks_not_empty

# leaf(x) = x + 1, middle(x) = 2x + 3, on_path(x) = 4x + 6; last is tail-called
IR = """
define i64 @leaf(i64 %x) noinline { %r = add i64 %x, 1  ret i64 %r }
define i64 @middle(i64 %x) noinline {
  %a = call i64 @leaf(i64 %x)
  %y = add i64 %x, 1
  %b = call i64 @leaf(i64 %y)
  %r = add i64 %a, %b
  ret i64 %r
}
define i64 @on_path(i64 %x) noinline { %a = call i64 @middle(i64 %x)  %r = mul i64 %a, 2  ret i64 %r }
"""
TAIL = """
define i64 @leaf(i64 %x) noinline { %r = add i64 %x, 6  ret i64 %r }
define i64 @middle(i64 %x) noinline { %y = mul i64 %x, 2  %r = musttail call i64 @leaf(i64 %y)  ret i64 %r }
define i64 @on_path(i64 %x) noinline { %y = mul i64 %x, 2  %r = musttail call i64 @middle(i64 %y)  ret i64 %r }
"""
PLACES = 1024
"""How many places are noted from which a backtrace did not reach the driver."""
DRIVER = (
    f"#define PLACES {PLACES}"
    + r"""
#define _GNU_SOURCE
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>
static long (*path)(long);
static long (*aside)(long);
static volatile long handled, wrong, lost;
static long times;
static void *lost_at[PLACES];
static long pid, tid;
static inline void tell(int s) { long r; asm volatile("syscall" : "=a"(r) : "0"(SYS_tgkill), "D"(pid), "S"(tid), "d"(s) : "rcx", "r11", "memory"); }
static void *drive_start, *drive_end;
static void on_signal(int s, siginfo_t *info, void *context) {
    void *frames[64];
    long found = 0;
    for (long i = 0; i < times; i++) {
        long x = handled++;
        if (aside) { if (aside(x) != x + 1) wrong++; } else if (path(x) != 4 * x + 6) wrong++;
    }
    long n = backtrace(frames, 64);
    for (long i = 0; i < n; i++) found |= frames[i] >= drive_start && frames[i] < drive_end;
    if (!found) lost_at[lost++ % PLACES] = (void *)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    tell(SIGUSR2);
}
static unsigned key;
static void (*release)(void *);
void renew(unsigned number, void (*destructor)(void *)) { key = number; release = destructor; }
/* As a new thread, which has no record yet. */
static void forget(void) { void *own = pthread_getspecific(key); if (own) { pthread_setspecific(key, 0); release(own); } }
__attribute__((noipa)) static long call(long i) { if (release) forget(); tell(SIGUSR2); long r = path(i); tell(SIGURG); return r; }
__attribute__((noipa)) long drive(long rounds) {
    for (long i = 0; i < rounds; i++) if (call(i) != 4 * i + 6) wrong++;
    return wrong;
}
void prepare(long (*f)(long), long (*g)(long), void *start, void *end, long calls) {
    void *frames[4];
    backtrace(frames, 4);
    path = f; aside = g; times = calls; pid = getpid(); tid = syscall(SYS_gettid);
    drive_start = start; drive_end = end;
    struct sigaction ignore = { .sa_handler = SIG_IGN }, sa = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_NODEFER };
    sigaction(SIGUSR1, &sa, 0); sigaction(SIGUSR2, &ignore, 0); sigaction(SIGURG, &ignore, 0);
}
void told(long *numbers, void **places) {
    numbers[0] = handled; numbers[1] = wrong; numbers[2] = lost;
    for (int i = 0; i < PLACES; i++) places[i] = lost_at[i];
}
"""
)
JUMPS = r"""
#include <setjmp.h>
static __thread jmp_buf back;
__attribute__((noipa)) void jumps(long x) { longjmp(back, 1); }
__attribute__((noipa)) long around(long x) { volatile long y = x; if (!setjmp(back)) jumps(x); return y + 1; }
"""
"""What the handler of the signal calls where it is to leave a hooked call behind that never returns."""
RETURNS = r"""
__attribute__((noipa, patchable_function_entry(0))) long around(long x) { return x + 1; }
"""
"""What it calls where that is to have its return hooked by a kretprobe."""
RETURNING = {"breakpoint": "around", "jump": "around", "stub": "jumps"}
"""Where a kretprobe is, by the way that a hit of it comes."""
NAMES = ("leaf", "middle", "on_path")
FOREIGN = "#include <stdatomic.h>\nstatic atomic_long n; int nothing(void *fp, unsigned long ip) { n++; return 0; }\n"
CALLS_IN_PATH = {IR: {"leaf": 2, "middle": 1, "on_path": 1}, TAIL: dict.fromkeys(NAMES, 1)}


class Manner:
    """How the functions are probed: a program, its stubs, the attachments. `jumping`: see JUMPS.

    `returns`: see RETURNING. `times`: how often the handler of the signal calls. `anew`: each call is a thread's first. `between`: instructions after which a
    trampoline has checked the top of the shadow stack and not yet stored it; where a signal's handler jumps there, a node is lost.
    """

    def __init__(
        self,
        attach: Callable[[], list[Any]],
        program: str = IR,
        flavour: str = "fentry",
        jumping: bool = False,
        returns: str = "",
        times: int = 1,
        between: int = 6,
        anew: bool = False,
    ) -> None:
        self.attach, self.program, self.flavour, self.jumping, self.returns = attach, program, flavour, jumping, returns
        self.times, self.between = times, between if jumping else 0
        self.anew = anew


def _attach(*more: str, **options: Any) -> list[Any]:
    import fprobe

    options.setdefault("nr_maxactive", 1000 if "exit" in options or "action" in options else 0)
    return [fprobe.attach([*NAMES, *more], **options)]


def _action(name: str, **options: Any) -> list[Any]:
    import fprobe

    return _attach(action=getattr(fprobe, name)(), **options)


def _foreign() -> list[Any]:
    handlers = load_c(FOREIGN)
    return _attach(entry=handlers["nothing"], exit=handlers["nothing"])


def _two() -> list[Any]:
    return _attach(entry=tally_entry, exit=tally_exit, entry_data_size=8) + _action("Stat")


def _two_complete() -> list[Any]:
    return _attach(entry=tally_entry, exit=tally_exit, entry_data_size=8) + _attach(**BOTH, shared=True)


def _four() -> list[Any]:
    """At entry only, cancelling, a shortage of nodes, at return only."""
    return [
        *_attach(entry=tally_entry),
        *_attach(entry=tally_cancel, exit=tally_exit, entry_data_size=16),
        *_attach(**REGS, entry_data_size=8, nr_maxactive=2),
        *_attach(exit=tally_exit_alone, entry_data_size=8),
    ]


def _sizes() -> list[Any]:
    """Entry data that fits a node, and such that does not, inside of a call with the former."""
    import fprobe

    sizes = {"on_path": 8, "middle": 200, "leaf": 8}
    return [fprobe.attach([name], **BOTH, entry_data_size=size, nr_maxactive=1000) for name, size in sizes.items()]


def _jumps() -> list[Any]:
    import fprobe

    return [fprobe.attach(["jumps"], action=fprobe.Stat(), nr_maxactive=1000)]


def returning(name: str, optimized: bool) -> Any:
    """A kretprobe on what the handler of the signal calls. By a breakpoint or a jump the return slot is overwritten."""
    import kprobes

    kprobes.set_kprobes_optimization(int(optimized))
    probe = kprobes.attach_return(name, data_size=100, maxactive=1000).attach()
    kprobes.wait_for_kprobe_optimizer()
    return probe


ENTRIES = (tally_entry, tally_entry_regs, tally_entry_sp, tally_entry_all, tally_cancel)
EXITS = (tally_exit, tally_exit_alone, tally_exit_regs, tally_exit_all)
BOTH: dict[str, Any] = {"entry": tally_entry, "exit": tally_exit}
REGS: dict[str, Any] = {"entry": tally_entry_regs, "exit": tally_exit_regs}
ALL: dict[str, Any] = {"entry": tally_entry_all, "exit": tally_exit_all}
MANNERS: dict[str, Manner] = {
    "count": Manner(lambda: _action("Count")),
    "record": Manner(lambda: _action("Record")),
    "stat": Manner(lambda: _action("Stat")),
    "entry": Manner(lambda: _attach(entry=tally_entry)),
    "both": Manner(lambda: _attach(**BOTH)),
    "both, a word": Manner(lambda: _attach(**BOTH, entry_data_size=8)),
    "both, 64 bytes": Manner(lambda: _attach(**BOTH, entry_data_size=64)),
    "both, 200 bytes": Manner(lambda: _attach(**BOTH, entry_data_size=200)),
    "both, 8 and 200 bytes": Manner(_sizes, times=2),
    "exit": Manner(lambda: _attach(exit=tally_exit)),
    "exit, a word": Manner(lambda: _attach(exit=tally_exit_alone, entry_data_size=8)),
    "cancel": Manner(lambda: _attach(entry=tally_cancel, exit=tally_exit)),
    "registers": Manner(lambda: _attach(**REGS, entry_data_size=8)),
    "registers and sp": Manner(lambda: _attach(entry=tally_entry_sp, exit=tally_exit_regs, entry_data_size=8)),
    "registers at entry": Manner(lambda: _attach(entry=tally_entry_regs)),
    "all registers": Manner(lambda: _attach(**ALL, entry_data_size=8)),
    "all registers at entry": Manner(lambda: _attach(entry=tally_entry_all)),
    "one node": Manner(lambda: _attach(**BOTH, nr_maxactive=1)),
    "two nodes, registers": Manner(lambda: _attach(**REGS, nr_maxactive=2)),
    "two nodes, all registers": Manner(lambda: _attach(**ALL, nr_maxactive=2)),
    "shared with kprobes": Manner(lambda: _attach(**BOTH, shared=True)),
    "two probes": Manner(_two),
    "two at entry": Manner(lambda: _attach(entry=tally_entry) + _attach(entry=tally_entry_regs)),
    "four probes": Manner(_four),
    "two probes, complete": Manner(_two_complete),
    "C": Manner(_foreign),
    "tail calls": Manner(lambda: _attach(**BOTH, entry_data_size=8), TAIL),
    "tail calls, two probes": Manner(_two, TAIL),
    "mcount": Manner(lambda: _attach(**BOTH), IR, "mcount"),
    "mcount, two probes": Manner(_two, IR, "mcount"),
    "jumps, both": Manner(lambda: _attach("jumps", **BOTH, entry_data_size=8), jumping=True),
    "jumps, cancel at entry": Manner(
        lambda: _attach(entry=tally_cancel, exit=tally_exit) + _jumps(), jumping=True, between=12
    ),
    "jumps, registers": Manner(lambda: _attach("jumps", **REGS, entry_data_size=8), jumping=True),
    "jumps, all registers": Manner(lambda: _attach("jumps", **ALL, entry_data_size=8), jumping=True),
    "jumps, two probes": Manner(
        lambda: _attach("jumps", **BOTH, entry_data_size=8) + _attach("jumps", entry=tally_entry, exit=tally_exit),
        jumping=True,
    ),
    "jumps, two at entry": Manner(
        lambda: _attach(entry=tally_entry) + _attach(entry=tally_cancel, exit=tally_exit) + _jumps(), jumping=True
    ),
    "jumps, two nodes": Manner(lambda: _attach("jumps", **BOTH, nr_maxactive=2), jumping=True),
    "jumps, tail calls": Manner(lambda: _attach("jumps", **BOTH), TAIL, jumping=True),
    "jumps, mcount": Manner(lambda: _attach("jumps", **BOTH), IR, "mcount", jumping=True),
    "jumps, 200 bytes": Manner(lambda: _attach("jumps", **BOTH, entry_data_size=200), jumping=True),
    "jumps, a kretprobe": Manner(lambda: _attach("jumps", **BOTH, entry_data_size=200), jumping=True, returns="stub"),
    "a kretprobe's breakpoint aside": Manner(_two, returns="breakpoint"),
    "a kretprobe's jump aside": Manner(lambda: _attach(**BOTH, entry_data_size=200), returns="jump"),
    "a new record": Manner(lambda: _attach(**BOTH, entry_data_size=8), anew=True),
    "nothing": Manner(list),
}


def _spans(module: Any, attachments: list[Any]) -> list[tuple[int, int]]:
    """The code that a hit runs: the functions, their stubs, the runtime, the handlers."""
    from fprobe.handlers.roles import ENTRY, EXIT
    from ftrace.core.handlers.resolve import native
    from ftrace.core.runtime import runtime
    from ftrace.core.tracer import tracer
    from sandbox.native import NativeFunction

    spans = [(text.base, text.end) for text in module.texts] + [runtime().image.text]
    block = tracer().table.block_of(module)
    if block is not None and block.stub_text is not None:
        spans.append((block.stub_text.base, block.stub_text.end))
    for probe in attachments:
        for role, handler in ((ENTRY, probe.fp.entry_handler), (EXIT, probe.fp.exit_handler)):
            if isinstance(handler, NativeFunction):
                spans.append(native(handler, role).keep.text)
    return spans


def check(manner: Manner, attachments: list[Any], notes: list[Any], rounds: int, handled: int) -> list[str]:
    """What is wrong with the counts of that many calls of the path, and by the handler of the signal."""
    complaints = []
    for probe, note in zip(attachments, notes, strict=True):
        counts = probe.counts
        jumped = handled if manner.jumping and "jumps" in probe.target else 0
        in_path = sum(CALLS_IN_PATH[manner.program].get(name, 0) for name in probe.target)
        expected = rounds * in_path
        expected += jumped if manner.jumping else 0 if manner.returns else handled * in_path
        of_exits = counts.missed_nodes if probe.fp.exit_handler else 0
        missed_at_entry = counts.missed - of_exits
        if not expected - missed_at_entry <= counts.hits <= expected:
            complaints.append(f"{expected} calls: {counts}")
        if counts.missed_depth or counts.missed_task or counts.missed_context:
            complaints.append(f"misses for no reason: {counts}")
        if probe.fp.entry_handler in ENTRIES and note[0] != counts.hits:
            complaints.append(f"{note[0]} entries: {counts}")
        hooked = 0 if probe.fp.entry_handler is tally_cancel else counts.hits - of_exits - jumped
        told = hooked - counts.missed <= note[1] <= hooked + min(of_exits, jumped)
        if probe.fp.exit_handler in EXITS and not told:
            complaints.append(f"{note[1]} exits of {hooked}: {counts}")
        if note[2]:
            complaints.append(f"{note[2]} exits had not the data of their entry")
    return complaints


def _tell(spans: list[tuple[int, int]], into: str) -> None:
    if into:
        Path(into).write_text(" ".join(f"{start}-{end}" for start, end in spans))
    else:
        print(json.dumps(spans), flush=True)


def main(name: str, rounds: int, into: str = "") -> int:
    """Attach, say where (on the standard output, or in a file), call, check; the exit status."""
    import sandbox
    from ftrace.core.runtime import runtime
    from sandbox import symbol_table
    from sandbox.threads.tasks import CLAIMED

    manner = MANNERS[name]
    module = sandbox.load(manner.program, name="stepped", flavour=manner.flavour)
    driver = load_c(DRIVER)
    aside = load_c(JUMPS) if manner.jumping else load_c(RETURNS) if manner.returns else None
    kretprobe = returning(RETURNING[manner.returns], manner.returns == "jump") if manner.returns else None
    attachments = manner.attach()
    notes = [(ctypes.c_uint64 * 3)() for _ in attachments]
    for probe, note in zip(attachments, notes, strict=True):
        if probe.action is None:
            probe.fp.action = ctypes.addressof(note)
        probe.attach()
    drive = driver.symbol("drive")
    driver["prepare"](module["on_path"], aside["around"] if aside else None, drive.address, drive.end, manner.times)
    if manner.anew:
        driver["renew"](runtime().key.number, runtime().image.address("rethook_flush_task"))
    _tell(_spans(module, attachments), into)
    sys.stdin.readline()
    ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_long)(drive.address)(
        rounds
    )  # not by a guarded call: a record has its guard
    if manner.jumping:
        module["on_path"](0)  # the next hooked call finds those that never returned
        rounds += 1
    numbers, places = (ctypes.c_long * 3)(), (ctypes.c_void_p * PLACES)()
    driver["told"](numbers, places)
    handled, wrong, lost = numbers
    complaints = check(manner, attachments, notes, rounds, handled)
    complaints += [f"{wrong} wrong results"] if wrong else []
    complaints += [
        f"{lost} backtraces end before the driver, from {[symbol_table.describe(p) for p in places if p]}"
    ] * (lost > 0)
    complaints += stacks_not_empty()
    records = sum(task.state == CLAIMED for task in runtime().tasks())
    complaints += [f"{records} threads have records"] if records > threading.active_count() else []
    complaints += [
        f"{nodes} nodes of {probe.target} were lost"
        for probe in attachments
        if not 0 <= (nodes := nodes_lost(probe.fp)) <= manner.between
    ]
    for probe in reversed(attachments):
        probe.detach()
    if kretprobe is not None:
        complaints += [f"{kretprobe.missed} returns missed"] if kretprobe.missed else []
        kretprobe.detach()
    assert_untouched()
    print(json.dumps({"handled": handled // manner.times, "complaints": complaints}), flush=True)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:]))
