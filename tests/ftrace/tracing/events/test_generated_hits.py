"""Filters and triggers of synthetic events (TE-8.9) see the hit that generated the event, as `current` is in the kernel."""

from __future__ import annotations

import errno

import pytest
from event_files import Instance, hit
from isolation import isolated

from ftrace.tracing.events.filters.fields import PlainField
from ftrace.tracing.events.hist.hist_trigger import read_hists, register_hist_command

register_hist_command()

FIELDS = (PlainField("u64", "ns", 8, 8), PlainField("__data_loc unsigned long[]", "stack", 16, 8, signed=True))


@pytest.fixture
def event():
    made = Instance().event("lat", fields=FIELDS)
    yield made
    made.triggers.remove_all()


def _record(ns, *stack):
    words = (0, ns, 24 | 8 * (1 + len(stack)) << 16, len(stack), *stack)
    return b"".join(word.to_bytes(8, "little") for word in words)


def test_te8_2_the_stack_of_a_synthetic_event_is_a_key(event):
    event.triggers.write("hist:keys=ns.buckets=100,stack.stacktrace:sort=stack.descending,ns")
    for ns in (7, 150, 8):
        hit(event, _record(ns, 0x10, 0x20))
    hit(event, _record(7, 0x10))
    listed = "hist:keys=ns.buckets=100,stack.stacktrace:vals=hitcount:sort=stack.descending,ns.buckets=100:size=2048 [active]"
    assert event.triggers.read() == f"{listed}\n"
    entries = read_hists(event.triggers).partition("#\n\n")[2].partition("\n\nTotals")[0]
    two = f"stack.stacktrace{'0x10':>13}\n{'0x20':>13}\n}} hitcount: "
    assert f"{{ ns: ~ 0-99, {two}{2:10}\n" in entries and f"{{ ns: ~ 100-199, {two}{1:10}" in entries
    assert f"{{ ns: ~ 0-99, stack.stacktrace{'0x10':>13}\n}} hitcount: {1:10}" in entries


def test_te8_2_no_other_field_is_a_stack(event):
    for text in ("keys=ns.stacktrace", "keys=ns:vals=stack.stacktrace"):
        with pytest.raises(OSError, match="Invalid field modifier") as caught:
            event.triggers.write(f"hist:{text}")
        assert caught.value.errno == errno.EINVAL
    event.triggers.write("hist:keys=ns:v=stack.stacktrace")
    assert ":v=stack:" in event.triggers.read()


def test_te8_6_a_stack_that_is_called_one_twice_is_the_same_key(event):
    event.triggers.write("hist:keys=common_stacktrace")
    with pytest.raises(OSError, match="already exists"):
        event.triggers.write("hist:keys=common_stacktrace.stacktrace")


DEFINITIONS = {
    "kprobe_events": "p:reads vfs_read\nr:done vfs_read\n",
    "synthetic_events": "lat u64 ns\n",
    "events/kprobes/reads/trigger": "hist:keys=common_pid:ts=common_timestamp",
    "events/kprobes/done/trigger": "hist:keys=common_pid:ns=common_timestamp-$ts:onmatch(kprobes.reads).lat($ns)",
    "events/synthetic/lat/filter": "comm == 'worker'",
}
TRIGGERS = (
    "hist:keys=common_pid.execname if comm == 'worker'",
    "hist:keys=common_stacktrace",
    "hist:keys=common_pid:at=common_timestamp:onmax($at).save(common_cpu)",
    "stacktrace:1",
    "traceoff:1 if comm == 'nobody'",
)


@pytest.mark.stress
@isolated
def test_te8_9_filters_and_triggers_see_the_thread_that_was_hit():
    import ctypes
    import threading

    import sandbox
    import sandbox.demo
    from fprobe.tracefs import tracefs

    module, seen = sandbox.load(sandbox.demo.source(), name="demo"), []
    for path, text in DEFINITIONS.items():
        tracefs.write(path, text)
    for text in TRIGGERS:
        tracefs.write("events/synthetic/lat/trigger", text, append=True)
    tracefs.write("events/synthetic/lat/enable", "1")

    def work():
        ctypes.CDLL(None).prctl(15, b"worker", 0, 0, 0)
        module["demo_main"](2)
        seen.append(threading.get_native_id())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    text = tracefs.read("events/synthetic/lat/hist")
    names, stacks, times = text.split("# event histogram\n")[1:]
    assert f"{{ common_pid: worker          [{seen[0]:10}] }} hitcount:" in names
    assert "         ksys_read+0x" in stacks and "Entries: 1\n" in stacks
    lines = [line for line in tracefs.read("trace").splitlines() if not line.startswith("#")]
    generated = [line for line in lines if " lat: ns=" in line]
    assert generated and all(f"worker-{seen[0]} " in line for line in generated)
    last = int(generated[-1].split(": lat:")[0].split()[-1].replace(".", ""))
    assert (int(times.split("\tmax: ")[1].split()[0]) + 500) // 1000 == last  # microseconds, of nanoseconds
    assert lines[1].endswith("<stack trace>") and lines[2] == " => ksys_read [demo]"
    listed = tracefs.read("events/synthetic/lat/trigger").splitlines()
    assert listed[:2] == ["traceoff:count=1 if comm == 'nobody'", "stacktrace:count=0"]


@pytest.mark.stress
@isolated
def test_te8_9_events_that_generate_each_other_end():
    import sandbox
    import sandbox.demo
    from fprobe.tracefs import tracefs

    module = sandbox.load(sandbox.demo.source(), name="demo")
    tracefs.write("kprobe_events", "p:reads vfs_read count=%dx:u64\n")
    tracefs.write("synthetic_events", "one u64 n\n", append=True)
    tracefs.write("synthetic_events", "two u64 n\n", append=True)
    tracefs.write("events/kprobes/reads/trigger", "hist:keys=common_pid:c=count:onchange($c).one($c)")
    tracefs.write("events/synthetic/one/trigger", "hist:keys=common_pid:n1=n*2:onchange($n1).two($n1)")
    tracefs.write("events/synthetic/two/trigger", "hist:keys=common_pid:n2=n*2:onchange($n2).one($n2)")
    module["demo_main"](1)
    hits = [line for line in tracefs.read("events/synthetic/one/hist").splitlines() if "Hits" in line]
    assert hits != ["    Hits: 0"]
    assert "Hits: 0" not in tracefs.read("events/synthetic/two/hist")


@isolated
def test_te8_9_a_marker_can_be_matched():
    from fprobe.tracefs import tracefs

    trigger = "events/ftrace/print/trigger"
    tracefs.write("synthetic_events", "latency u64 lat")
    tracefs.write(trigger, "hist:keys=common_pid:t=common_timestamp.usecs if buf == 'start'", append=True)
    action = "lat=common_timestamp.usecs-$t:onmatch(ftrace.print).latency($lat)"
    tracefs.write(trigger, f"hist:keys=common_pid:{action} if buf == 'end'", append=True)
    tracefs.write("events/synthetic/latency/trigger", "hist:keys=common_pid")
    for text in ("start", "end", "end", "other"):
        tracefs.write("trace_marker", text)
    assert "Hits: 1\n" in tracefs.read("events/synthetic/latency/hist")
    with pytest.raises(OSError):
        tracefs.write("events/synthetic/latency/trigger", "enable_event:ftrace:print", append=True)


@isolated
def test_te8_4_a_histogram_is_read_while_hits_come_faster_than_they_are_counted():
    import threading

    import sandbox
    import sandbox.demo
    from fprobe.tracefs import tracefs

    module = sandbox.load(sandbox.demo.source(), name="demo")
    tracefs.write("kprobe_events", "p:reads vfs_read count=%dx:u64\np:opens do_sys_open\n")
    tracefs.write("events/kprobes/reads/trigger", "hist:keys=common_pid:x=count*2:onmax($x).save(count)")
    tracefs.write("events/kprobes/opens/trigger", "hist:keys=common_pid:y=common_timestamp")
    is_over = threading.Event()

    def work():
        while not is_over.is_set():
            module["demo_main"](3000)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(2):
        assert "Hits: " in tracefs.read("events/kprobes/reads/hist")
    tracefs.write("events/kprobes/reads/trigger", "!hist:keys=common_pid:x=count*2:onmax($x).save(count)", append=True)
    is_over.set()
    for thread in threads:
        thread.join()


GENERATING = """
@text = constant [6 x i8] c"hello\\00"
define i64 @sp_first(ptr %name, i64 %n) noinline { ret i64 %n }
define i64 @sp_second(ptr %name, i64 %n) noinline { ret i64 %n }
define i64 @sp_both(i64 %n) noinline {
  %x = call i64 @sp_first(ptr @text, i64 %n)
  %y = call i64 @sp_second(ptr @text, i64 %x)
  ret i64 %y
}
"""


@isolated
def test_te8_2_every_kind_of_field_of_a_generated_event():
    import sandbox
    from fprobe.tracefs import tracefs

    module = sandbox.load(GENERATING, name="sp")
    tracefs.write("kprobe_events", "p:first sp_first name=+0(%di):string nn=%si:s8\n")
    tracefs.write("kprobe_events", "p:second sp_second name=+0(%di):string nn=%si:u64\n", append=True)
    fields = "s8 small; char[] text; unsigned long[] stack; char[256] fixed; u64 number; char[256] last"
    tracefs.write("synthetic_events", f"ev {fields}")
    keys = "keys=common_pid"
    tracefs.write("events/kprobes/first/trigger", f"hist:{keys}:x=nn,t=name,st=common_stacktrace")
    action = "onmatch(kprobes.first).trace(ev,$x,$t,$st,name,nn,$c)"
    tracefs.write("events/kprobes/second/trigger", f"hist:{keys}:c=common_pid.execname:{action}")
    tracefs.write("events/synthetic/ev/filter", 'text == "hello" && fixed == "hello" && small < 0')
    for file in ("kprobes/second", "synthetic/ev"):
        tracefs.write(f"events/{file}/enable", "1")
    module["sp_both"](0xFFF0)
    module["sp_both"](0x10)
    with open("/proc/self/comm") as file:  # noqa: PTH123
        comm = file.read().strip()
    lines = [line for line in tracefs.read("trace").splitlines() if not line.startswith("#")]
    at = next(index for index, line in enumerate(lines) if ": ev: " in line)
    assert lines[at].partition(": ev: ")[2] == "small=240 text=hello stack=STACK:" and "second" in lines[at - 1]
    assert lines[at + 1].startswith("=> sp_first+0x") and lines[at + 2].startswith("=> sp_both+0x")
    end = next(line for line in lines[at:] if line.startswith("fixed="))
    assert end.endswith(f"fixed=hello number=65520 last={comm}")
    assert sum(": ev: " in line for line in lines) == 1, "the filter drops the second"


ALARMS = r"""
#include <signal.h>
#include <string.h>
#include <sys/time.h>
static volatile unsigned long calls, keys, handled;
__attribute__((noipa)) void first(unsigned long key, unsigned long call) { calls += 0 * call; }
__attribute__((noipa)) void second(unsigned long key, unsigned long call) { keys += 0 * call; }
static void both(unsigned long key) { unsigned long call = __sync_add_and_fetch(&calls, 1); first(key, call); second(key, call); }
static void handle(int number) { handled++; both(1000 + handled % 64); }
unsigned long interrupted(unsigned long rounds)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handle;
    sigaction(SIGVTALRM, &action, 0);
    struct itimerval timer = {{0, 100}, {0, 100}};
    setitimer(ITIMER_VIRTUAL, &timer, 0);
    for (unsigned long i = 0; i < rounds || handled < 40; i++)
        both(i % 64);
    memset(&timer, 0, sizeof timer);
    setitimer(ITIMER_VIRTUAL, &timer, 0);
    return handled;
}
unsigned long made(void) { return calls; }
"""


@isolated(timeout=60)
def test_te8_9_a_signals_handler_that_is_hit_counts_while_the_thread_counts():
    """A hit in a signal's handler has a pad of its own, and what it counts is no part of what it interrupts."""
    from programs import load_c

    from fprobe.tracefs import tracefs

    module = load_c(ALARMS)
    arguments = "key=$arg1:u64 call=$arg2:u64"  # of function probes, which a signal's handler may hit during a hit
    tracefs.write("dynamic_events", f"f:kprobes/first first {arguments}\nf:kprobes/second second {arguments}\n")
    tracefs.write("synthetic_events", "ev u64 one; u64 two; u64 key")
    tracefs.write("events/kprobes/first/trigger", "hist:keys=key:x=call")
    tracefs.write("events/kprobes/second/trigger", "hist:keys=key:y=call:onmatch(kprobes.first).ev($x,$y,key)")
    tracefs.write("events/synthetic/ev/trigger", "hist:keys=key:vals=one,two:z=one")
    handled = module["interrupted"](200_000)
    text = tracefs.read("events/synthetic/ev/hist")
    entries = [line.replace(",", "").split() for line in text.splitlines() if line.startswith("{ key:")]
    assert len(entries) == 64 + min(handled, 64)
    assert all(entry[7] == entry[9] for entry in entries), "the variable and the field are of one call"
    hits = sum(int(entry[5]) for entry in entries)
    assert hits == module["made"]() and f"Hits: {hits}\n" in text and "Dropped: 0" in text
