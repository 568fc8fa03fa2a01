"""HAZARDS 2: signals and traps."""

# ruff: noqa: ARG005  (the signature of a handler is given; C is as wide as it is)

from __future__ import annotations

import shutil
import signal
import sys

import pytest
from isolation import isolated, run, run_forked, run_source
from programs import assert_untouched, basic, is_patched, load_c, text_of
from sampled import in_stress, sampled

needs_cc = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")

# Timers of its own shake a thread that runs probed code; the signal handler runs probed code too.
SHAKEN = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <sys/syscall.h>
static volatile long handled, wrong;
__attribute__((noipa)) long leaf(long x) { return x + 1; }
__attribute__((noipa)) long middle(long x) { return leaf(x) + leaf(x + 1); }
__attribute__((noipa)) long on_path(long x) { return middle(x) * 2; }
static void on_signal(int s) { long x = __atomic_fetch_add(&handled, 1, __ATOMIC_RELAXED); if (on_path(x) != 4 * x + 6) wrong++; }
static void *poke(void *target) {
    struct timespec nap = { 0, 20000 };
    pthread_t t = *(pthread_t *)target;
    while (!atomic_load((atomic_int *)((char *)target + 8))) { pthread_kill(t, SIGUSR1); nanosleep(&nap, 0); }
    return 0;
}
long shaken(long n, long *signals) {
    struct { pthread_t t; atomic_int stop; } target = { pthread_self(), 0 };
    struct sigaction sa = { .sa_handler = on_signal, .sa_flags = SA_NODEFER | SA_RESTART };
    sigaction(SIGUSR1, &sa, 0);
    pthread_t t; long bad = 0;
    pthread_create(&t, 0, poke, &target);
    long i = 0;
    for (; i < n || handled < 300; i++) if (on_path(i) != 4 * i + 6) bad++;
    atomic_store(&target.stop, 1);
    pthread_join(t, 0);
    signals[0] = handled;
    signals[1] = i;
    return bad * 1000000 + wrong;
}
__attribute__((noipa)) long blocked_leaf(long n) {
    sigset_t all, old; sigfillset(&all); sigprocmask(SIG_BLOCK, &all, &old);
    long s = 0;
    for (long i = 0; i < n; i++) s += leaf(i);
    sigprocmask(SIG_SETMASK, &old, 0);
    return s;
}
"""


@needs_cc
@pytest.mark.parametrize(
    "kind", ["Count", in_stress("Record"), "Stat", in_stress("native"), in_stress("foreign"), "one node"]
)
@isolated(shared=True)
def test_a_signal_at_any_instruction_of_a_hit_finds_its_way_back(kind):
    import ctypes

    from handlers_native import cancel_odd, note_exit

    import fprobe

    module = load_c(SHAKEN)
    notes = (ctypes.c_uint64 * 3)()
    options = {"nr_maxactive": 100_000}
    if kind == "native":
        options |= {"entry": cancel_odd, "exit": note_exit, "entry_data_size": 8}
    elif kind == "foreign":
        handlers = load_c("int nothing(void *fp, unsigned long ip) { return 0; }\n")
        options |= {"entry": handlers["nothing"], "exit": handlers["nothing"]}
    elif kind == "one node":
        options = {"action": fprobe.Stat(), "nr_maxactive": 1}
    else:
        options |= {"action": getattr(fprobe, kind)()}
    probe = fprobe.attach(["leaf", "middle", "on_path"], **options)
    if kind == "native":
        probe.fp.action = ctypes.addressof(notes)
    told = (ctypes.c_int64 * 2)()
    with probe:
        assert module["shaken"](300_000, told) == 0
    counts = probe.counts
    signals, rounds = told
    # Every call was seen, or missed for a reason that was counted.
    calls = 4 * (rounds + signals)
    missed_at_entry = counts.missed - (counts.missed_nodes if kind == "one node" else 0)
    assert calls - missed_at_entry <= counts.hits <= calls, (calls, counts)
    assert counts.missed_depth == counts.missed_task == counts.missed_busy == 0
    if kind == "one node":  # at rest the one node is back: exactly one of two nested calls gets it
        with fprobe.attach(["leaf", "middle"], action=fprobe.Stat(), nr_maxactive=1) as again:
            module["middle"](1)
        assert again.counts.missed_nodes == 2


@needs_cc
@pytest.mark.parametrize("forced", [0, 1])
@isolated(shared=True)
def test_a_signal_while_sites_come_and_go(forced):
    import ctypes
    import threading

    import fprobe
    from ftrace.core.runtime import runtime

    runtime().force_breakpoints = forced
    module = load_c(SHAKEN)
    before = text_of(module)
    stop = threading.Event()
    told = (ctypes.c_int64 * 2)()
    results = []

    cycles = 0

    def run():
        while cycles <= 20:  # however long that takes here
            results.append(module["shaken"](1_500_000, told))
        stop.set()

    thread = threading.Thread(target=run)
    thread.start()
    while not stop.is_set():
        with fprobe.attach(["leaf", "middle", "on_path"], action=fprobe.Stat(), nr_maxactive=4):
            pass
        cycles += 1
    thread.join()
    assert set(results) == {0} and cycles > 20 and told[0] >= 300, (results, cycles, told[0])
    assert text_of(module) == before
    assert_untouched()


@needs_cc
@isolated
def test_a_thread_that_blocks_all_signals_is_safe_where_a_single_store_does():
    """No breakpoint is ever in sites that lie within one aligned word."""
    import threading

    import fprobe

    module = load_c(SHAKEN)
    thread = threading.Thread(target=lambda: [module["blocked_leaf"](100_000) for _ in range(100)])
    thread.start()
    while thread.is_alive():
        with fprobe.attach("leaf", action=fprobe.Stat()):
            pass
    thread.join()


@pytest.mark.stress
@needs_cc
@isolated(shared=True)
def test_a_thread_that_blocks_sigtrap_is_reported_where_breakpoints_are_needed():
    import errno
    import threading

    import fprobe
    from ftrace.core.runtime import runtime

    runtime().force_breakpoints = 1
    module = load_c(SHAKEN)
    blocked, over = threading.Event(), threading.Event()

    def run():
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        blocked.set()
        over.wait(30)

    thread = threading.Thread(target=run)
    thread.start()
    blocked.wait(30)
    with pytest.raises(OSError, match="SIGTRAP") as refused, fprobe.attach("middle", action=fprobe.Count()):
        pass
    assert refused.value.errno == errno.EBUSY
    assert not is_patched(module, "middle")
    over.set()
    thread.join()
    with fprobe.attach("middle", action=fprobe.Count()):
        assert is_patched(module, "middle")


@isolated
def test_a_breakpoint_that_is_not_ours_goes_to_the_handler_that_was_there_before():
    import signal

    import fprobe
    import sandbox

    caught = []
    signal.signal(signal.SIGTRAP, lambda *what: caught.append(1))
    module = sandbox.load(
        "declare void @llvm.debugtrap()\ndefine i64 @traps(i64 %x) noinline { call void @llvm.debugtrap()  ret i64 %x }\n",
        name="traps",
    )
    with fprobe.attach("traps", exit=lambda *hit: None):
        assert module["traps"](3) == 3
    assert caught


def test_a_breakpoint_that_is_nobodys_ends_the_process_by_sigtrap():
    done = run_source(
        "import sandbox, fprobe\n"
        "m = sandbox.load('declare void @llvm.debugtrap()\\n"
        "define i64 @traps(i64 %x) noinline { call void @llvm.debugtrap()  ret i64 %x }', name='traps')\n"
        "fprobe.attach('traps', action=fprobe.Count()).attach()\n"
        "import ctypes\n"
        "ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(m.symbol('traps').address)(3)\n"
    )
    assert done.returncode == -5


@isolated(shared=True)
def test_synchronous_signals_are_never_blocked_by_us():

    import fprobe

    module = basic()
    seen = []

    def entry(*hit):
        import signal

        seen.append(signal.pthread_sigmask(signal.SIG_BLOCK, []))

    with fprobe.attach("leaf", entry=entry):
        module["leaf"](1)
    assert seen == [set()]


@isolated
def test_somebody_elses_handler_over_ours_is_noticed():
    import signal
    import warnings

    import fprobe

    module = basic()
    with fprobe.attach("leaf", entry=lambda *hit: 0):
        module["leaf"](1)
    signal.signal(signal.SIGTRAP, lambda *what: None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with fprobe.attach("leaf", entry=lambda *hit: 0):
            pass
    assert any("signal 5" in str(warning.message) for warning in caught)


ASYNCHRONOUS = r"""
#include <signal.h>
#include <sys/time.h>
static volatile long handled;
__attribute__((noipa)) long leaf(long x) { return x + 1; }
static void on_signal(int s) { handled += leaf(1) - 1; }
long start(void) {
    struct sigaction sa = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
    sigaction(SIGALRM, &sa, 0);
    struct itimerval often = { { 0, 200 }, { 0, 200 } };
    return setitimer(ITIMER_REAL, &often, 0);
}
long stop(void) { struct itimerval never = { 0 }; setitimer(ITIMER_REAL, &never, 0); return handled; }
"""


@needs_cc
@isolated(shared=True)
def test_a_python_handler_in_an_asynchronous_signal_is_a_miss_and_no_crash():
    """FP-36, HAZARDS 6: the signal may have come in the middle of the interpreter."""
    import fprobe

    module = load_c(ASYNCHRONOUS)
    seen = []
    with fprobe.attach("leaf", entry=lambda *hit: seen.append([1] * 10) and 0, exit=lambda *hit: None) as probe:
        assert module["start"]() == 0
        total = 0
        for i in range(300_000):  # the interpreter, busy with its own memory
            total += len([i, str(i), {i: i}])
        handled = module["stop"]()
    assert handled > 100
    counts = probe.counts
    assert counts.missed_context == handled and not counts.hits and not seen, (counts, handled)
    module["leaf"](1)  # no signal, no miss: the same probe, were it still attached
    with fprobe.attach("leaf", entry=lambda *hit: seen.append(1) and 0) as probe:
        module["leaf"](1)
    assert seen == [1] and not probe.counts.missed


@needs_cc
@isolated(shared=True)
def test_python_handlers_of_kprobes_in_an_asynchronous_signal_are_missed_once_for_each_hit():
    """Also of those that have only a post_handler: they were not counted at all."""
    import kprobes

    @kprobes.native
    def nothing(p, regs):
        return 0

    def ignored(*hit):
        return 0

    module = load_c(ASYNCHRONOUS)
    handlers = {"pre": (ignored, None), "post": (None, ignored), "both": (ignored, ignored)}
    attached = {name: kprobes.attach("leaf", pre=pre, post=post) for name, (pre, post) in handlers.items()}
    attached["native"] = kprobes.attach("leaf", pre=nothing, post=ignored)
    for each in attached.values():
        each.attach()
    assert module["start"]() == 0
    assert sum(len([i, str(i)]) for i in range(100_000))
    handled = module["stop"]()
    missed = {name: each.missed for name, each in attached.items()}
    for each in attached.values():
        each.detach()
    assert handled > 0 and missed == dict.fromkeys(attached, handled)


NESTED = r"""
#include <alloca.h>
#include <signal.h>
__attribute__((noipa)) long leaf(long x) { return x + 1; }
static void handler(int n) { (void)n; leaf(1); }
__attribute__((noipa)) static void deeper(char *room) { room[0] = 1; raise(SIGUSR1); leaf(room[0]); }
/* A handler for each size of the stack between here and it; one more hit outside each. */
long nested(long most) {
    signal(SIGUSR1, handler);
    for (long size = 1; size <= most; size++) deeper(alloca(size));
    return 0;
}
"""


@needs_cc
@isolated(shared=True)
def test_a_signal_handler_is_recognised_wherever_its_frame_lies_on_the_stack():
    """FP-36, HAZARDS 6: in a call from Python only frames on the stack tell that the hit is in a signal handler."""
    import fprobe

    module = load_c(NESTED)
    seen = []
    with fprobe.attach("leaf", entry=lambda fp, ip, ret, regs, data: seen.append(regs.di) and 0) as probe:
        module["nested"](80)  # 3 KiB of stack
    assert seen == [1] * 80 and probe.counts.missed_context == 80


@isolated
def test_a_thread_that_blocks_signals_of_its_own_choice_still_runs_python_handlers():
    import signal

    import fprobe

    module = basic()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGTERM])
    with fprobe.attach("leaf", entry=lambda *hit: 0) as probe:
        module["leaf"](1)
        assert (probe.counts.hits, probe.counts.missed) == (1, 0)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])  # more than it did at registration
        module["leaf"](1)  # no signal's frame is on the stack of a call from Python
        assert (probe.counts.hits, probe.counts.missed_context) == (2, 0)
        module["leaf"].pointer(1)  # a bare call: how far its stack goes up is not known
        assert (probe.counts.hits, probe.counts.missed_context) == (2, 1)


@isolated
def test_forced_breakpoints_the_protocol_by_hand():
    """What a thread finds at each step, and that it goes on as if the new instruction were there."""
    import ctypes

    import fprobe
    from ftrace.core.runtime import runtime
    from ftrace.core.sites.block import SiteBlock

    native = runtime()
    native.force_breakpoints = 1
    module = basic()
    seen = []
    call = SiteBlock._call

    def spying(self, function, *arguments):
        result = call(self, function, *arguments)
        if function == "poke_step":
            first = ctypes.string_at(module.symbol("leaf").address, 5)
            seen.append((arguments[1], first[0] == 0xCC, module["leaf"](41)))
        return result

    SiteBlock._call = spying
    with fprobe.attach("leaf", action=fprobe.Count()) as probe:
        assert is_patched(module, "leaf")
        assert probe.hits == 3  # the new instruction from the first step on
    assert seen == [(0, True, 42), (1, True, 42), (2, False, 42)] * 2
    assert not is_patched(module, "leaf")


@pytest.mark.parametrize("turns", [60, pytest.param(200, marks=pytest.mark.stress)])
@isolated
def test_forced_breakpoints_in_two_modules_by_turns(turns):
    """A thread that has trapped in one may come to the handler when the other one is being patched."""
    import threading

    import fprobe
    from ftrace.core.runtime import runtime

    runtime().force_breakpoints = 1
    modules = [basic(), basic()]
    stop = threading.Event()
    failures = []

    def run(module):
        while not stop.is_set():
            if module["loop"](20_000) != 20_000:
                failures.append(1)

    threads = [threading.Thread(target=run, args=(modules[i % 2],)) for i in range(6)]
    for thread in threads:
        thread.start()
    sites = [[module.sites[index] for index in range(len(module.sites))] for module in modules]
    for turn in range(turns):
        with fprobe.attach(sites[turn % 2], action=fprobe.Count()):
            pass
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert_untouched()


@isolated(shared=True)
def test_a_trap_that_is_handled_when_its_batch_is_over_is_run_again():
    """FT-59: the breakpoint has gone, and another module's batch may be under way."""
    import ctypes

    from programs import site_of

    import fprobe
    from ftrace.core.runtime import runtime
    from ftrace.core.tracer import tracer
    from sandbox.threads.signals import ucontext

    first, second = basic(), basic()
    with fprobe.attach([first.sites[0], second.sites[0]], action=fprobe.Count()):
        pass
    image = runtime().image
    poking = image.variable("text_poking")
    context = ucontext.ctypes()
    site = site_of(first, "leaf")
    for batch in (0, ctypes.addressof(tracer().table.block_of(second)._native)):
        context.ip, poking.value = site + 1, batch
        assert image.call("poke_trap", 5, 0, ctypes.addressof(context)) & 1
        assert context.ip == site
    poking.value = ctypes.addressof(tracer().table.block_of(first)._native)
    context.ip = site + 1
    assert image.call("poke_trap", 5, 0, ctypes.addressof(context)) & 1
    assert context.ip == site + 5  # its own batch: as if the new instruction, a NOP, were there
    poking.value = 0


@isolated(shared=True)
def test_a_signals_handler_makes_a_functions_first_call_inside_anothers():
    """Each gets an entrance of its own, and neither waits for the other."""
    from ftrace.core.tracer import tracer
    from sandbox.memory import mappings

    tracer()
    module = basic()
    write, inside = mappings.TextMapping.write, []

    def interrupted(self, where, data):
        if not inside:
            inside.append(where)
            assert module["leaf"](1) == 2
        write(self, where, data)

    mappings.TextMapping.write = interrupted
    assert module["loop"](10) == 10
    mappings.TextMapping.write = write
    assert inside and (module["leaf"](5), module["loop"](7)) == (6, 7)


@pytest.mark.parametrize("number", sampled(["SIGSEGV", "SIGBUS", "SIGTRAP", "SIGFPE", "SIGILL"], 2))
def test_a_signal_that_was_sent_takes_its_default_course(number):
    """It has no instruction that would make it happen again."""
    source = f"""
import os, signal, fprobe, kprobes, sandbox, sandbox.demo
module = sandbox.load(sandbox.demo.source(), name="demo")
with fprobe.attach("vfs_*", action=fprobe.Count()), kprobes.attach("kmalloc+0x5", pre=lambda p, regs: 0):
    os.kill(os.getpid(), signal.{number})
    print("lives on")
"""
    assert (done := run_forked(source, 30)).returncode == -getattr(signal, number), done


def test_a_signal_that_was_sent_is_ignored_where_it_was():
    source = """
import os, signal
signal.signal(signal.SIGSEGV, signal.SIG_IGN)
import fprobe, sandbox, sandbox.demo
module = sandbox.load(sandbox.demo.source(), name="demo")
with fprobe.attach("vfs_*", action=fprobe.Count()):
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGSEGV)
    print("lives on")
"""
    assert (done := run_forked(source, 30)).stdout == "lives on\n", done


# It makes a system call without libc: a signal that the call sends arrives in the program's own code.
SENDING = """
define i64 @send(i64 %number, i64 %a, i64 %b, i64 %c, i64 %d) noinline {
  %r = call i64 asm sideeffect "syscall",
       "={rax},{rax},{rdi},{rsi},{rdx},{r10},~{rcx},~{r11},~{memory}"(i64 %number, i64 %a, i64 %b, i64 %c, i64 %d)
  %s = add i64 %r, 1
  ret i64 %s
}
"""
SENDS = """
import ctypes, os, signal, threading, fprobe, kprobes, sandbox
from sandbox.native import i32, native, syscall
signal.pthread_sigmask(signal.SIG_SETMASK, [])
number = signal.{number}
word = (ctypes.c_int32 * 32)(number, 0, -1)
pid, tid = os.getpid(), threading.get_native_id()
ways = dict(kill=(62, pid, number, 0, 0), tgkill=(234, pid, tid, number, 0),
            sigqueue=(129, pid, number, ctypes.addressof(word), 0))
{first}
module = sandbox.load({ir!r}, name="sends")
with fprobe.attach("send", action=fprobe.Count()):
    for way in {ways!r}:
        print(module["send"](*ways[way]), flush=True)
"""


@pytest.mark.parametrize("way", sampled(["kill", "tgkill", "sigqueue"], 2))
@pytest.mark.parametrize("number", sampled(["SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL"], 2))
def test_a_signal_sent_to_probed_code_is_no_fault_of_it(number, way):
    source = SENDS.format(number=number, first="", ir=SENDING, ways=[way])
    done = run_forked(source, 30)
    assert (done.returncode, done.stdout, done.stderr) == (-getattr(signal, number), "", "")


@pytest.mark.parametrize("number", sampled(["SIGSEGV", "SIGFPE"], 1))
def test_a_signal_sent_to_probed_code_reaches_the_programs_handler(number):
    """The call that it interrupts continues."""
    first = "signal.signal(number, lambda *_: print('handled', flush=True))"
    source = SENDS.format(number=number, first=first, ir=SENDING, ways=["kill", "tgkill", "sigqueue"])
    done = run_forked(source, 30)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "handled\n1\n" * 3)


# A handler's source must be in a file.
SENT_TO_A_HANDLER = """
import fprobe, kprobes, sandbox, sandbox.demo
from sandbox.native import cast, i32, syscall, u64
faults = fprobe.Array(u64, 1)
@kprobes.native
def pre(p, regs) -> i32:
    return cast(i32, syscall(200, syscall(186, 0, 0, 0, 0, 0, 0), NUMBER, 0, 0, 0, 0))  # tkill(gettid(), NUMBER)
@kprobes.native
def fault(p, regs, trapnr) -> i32:
    faults[0] += 1
    return 1
module = sandbox.load(sandbox.demo.source(), name="demo")
with kprobes.attach("kmalloc+0x5", pre=pre, fault=fault):
    module["demo_main"](3)
    print("lives on", faults[0])
"""


@pytest.mark.parametrize("number", sampled([signal.SIGSEGV, signal.SIGILL], 1))
def test_a_signal_sent_to_a_handler_is_no_fault_of_it(number, tmp_path):
    """Neither a fault_handler is called, nor is the handler blamed."""
    program = tmp_path / "sent.py"
    program.write_text(SENT_TO_A_HANDLER.replace("NUMBER", str(int(number))))
    done = run([sys.executable, str(program)], 30)
    assert (done.returncode, done.stdout, done.stderr) == (-number, "", "")
