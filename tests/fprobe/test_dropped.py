"""Whatever is made, attached, detached and dropped leaves nothing: memory, mappings and descriptors stay what they were."""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import sys
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from isolation import isolated

import fprobe
import kprobes
import sandbox
from fprobe.actions import Count, Record, Stat
from fprobe.tracefs import tracefs
from ftrace.core.filters.set_ftrace_filter import FilterFile
from ftrace.core.ops import ftrace_ops, ftrace_set_filter_ip, register_ftrace_function, unregister_ftrace_function
from ftrace.ring_buffer.buffer import Buffer
from ftrace.tracing.instances.trace_array import TraceArray
from kprobes.optimization import set_kprobes_optimization
from sandbox.native import i32, u64, void

SOURCE = Path(__file__).with_name("dropped_native.py")
PROGRAM = """
define i64 @leaf(i64 %x) noinline { %r = add i64 %x, 1  %s = mul i64 %r, 2  ret i64 %s }
define i64 @around(i64 %x) { %r = call i64 @leaf(i64 %x)  ret i64 %r }
define i32 @in_c(ptr %fp, i64 %ip, i64 %ret, ptr %regs, ptr %data) "notrace" { ret i32 0 }
"""
C_HANDLER = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 5)


def fresh() -> Any:
    """The module of handlers, loaded anew; nothing else refers to it."""
    spec = importlib.util.spec_from_file_location("dropped_native", SOURCE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    del sys.modules[spec.name]
    return module


def use(program: Any, attachment: Any) -> None:
    with attachment:
        assert program["around"](4) == 10


def fprobe_entry(program: Any) -> None:
    use(program, fprobe.attach("leaf", entry=fresh().on_entry))


def fprobe_both(program: Any) -> None:
    module = fresh()
    use(program, fprobe.attach("leaf", entry=module.on_entry, exit=module.on_exit))


def fprobe_one_in_two_roles(program: Any) -> None:
    module = fresh()
    use(program, fprobe.attach("leaf", entry=module.both, exit=module.both))


def several_fprobes(program: Any) -> None:
    module = fresh()
    with fprobe.attach("leaf", entry=module.on_entry), fprobe.attach("around", exit=module.on_exit):
        use(program, fprobe.attach("leaf", entry=module.both))


def of_a_function(program: Any) -> None:
    calls = fprobe.per_task(u64)
    seen = fprobe.Hash(u64, u64, 8)

    @fprobe.native
    def entry(fp, ip, ret_ip, regs, data) -> i32:
        calls.value += 1
        return 0

    @fprobe.native
    def exit(fp, ip, ret_ip, regs, data) -> void:
        seen[ip] += 1

    use(program, fprobe.attach("leaf", entry=entry, exit=exit))


def kprobe_at(place: str, names: tuple[str, ...], program: Any) -> None:
    module = fresh()
    use(program, kprobes.attach(place, **{name.partition("_")[0]: getattr(module, name) for name in names}))


def kretprobe(program: Any) -> None:
    module = fresh()
    use(program, kprobes.attach_return("leaf", module.on_return, entry=module.on_call))


def python_handlers(program: Any) -> None:
    seen: list[Any] = []

    def entry(fp, ip, ret_ip, regs, data):
        seen.append((fp, regs.di))

    use(program, fprobe.attach("leaf", entry=entry, exit=lambda *given: seen.append(given[1]), entry_data_size=8))
    assert len(seen) == 2


def python_kprobes(program: Any) -> None:
    seen: list[Any] = []
    with kprobes.attach_return("leaf", lambda ri, regs: seen.append((ri.rp, regs.ax))):
        use(program, kprobes.attach("leaf+5", pre=lambda p, regs: seen.append((p, regs.ip))))
    assert len(seen) == 2


def c_handlers(program: Any) -> None:
    handler = C_HANDLER(program.symbol("in_c").address)
    use(program, fprobe.attach("leaf", entry=handler))
    use(program, kprobes.attach("leaf", pre=handler))


def action(kind: Callable[[], Any], program: Any) -> None:
    use(program, fprobe.attach("*", action=kind()))


def ops_callback(program: Any) -> None:
    seen = []
    ops = ftrace_ops(lambda *given: seen.append(given[0]))
    ftrace_set_filter_ip(ops, program.symbol("leaf").address)
    register_ftrace_function(ops)
    assert program["around"](4) == 10 and len(seen) == 1
    unregister_ftrace_function(ops)


def function_probe(program: Any) -> None:
    for command in ("leaf:traceon:3", "!leaf:traceon:3"):
        with FilterFile(append=True) as file:
            file.write_all(f"{command} ")
    assert program["around"](4) == 10


def library_functions(_program: Any) -> None:
    """Detours."""
    with fprobe.attach("libz:adler32", action=Stat()), fprobe.attach("libz:crc32", exit=on_return) as probe:
        assert zlib.crc32(b"x") and zlib.adler32(b"x")
    assert probe.hits == 1


def optimised(program: Any) -> None:
    """Jumps, with detours and instances of their own."""
    set_kprobes_optimization(1)
    with (
        kprobes.attach("libz:adler32", action=kprobes.Count()) as jump,
        kprobes.attach_return("libz:adler32", return_of),
    ):
        kprobes.wait_for_kprobe_optimizer()
        zlib.adler32(b"x")
    assert jump.hits == 1
    set_kprobes_optimization(0)


def return_of(ri: Any, regs: Any) -> None:
    """A handler."""


def on_return(fp: Any, ip: int, ret_ip: int, regs: Any, data: Any) -> None:
    """Another."""


def glob(program: Any) -> None:
    with kprobes.attach(f"{program.name}:*", action=kprobes.Count()) as probe:
        assert program["around"](4) == 10
    assert probe.hits == 2


def event(program: Any) -> None:
    """Of the three types, with a filter and a histogram."""
    definitions = ("p:dropped/p leaf+5 x=%di", "r:dropped/r leaf $retval", "f:dropped/f leaf x=$arg1")
    with fprobe.event(*definitions, filter="common_pid > 0", trigger="hist:keys=common_pid") as found:
        assert program["around"](4) == 10
    assert len(found.records()) == 3


def instance(program: Any) -> None:
    tracefs.mkdir("instances/dropped")
    tracefs.write("instances/dropped/current_tracer", "function_graph")
    assert program["around"](4) == 10
    tracefs.write("instances/dropped/snapshot", "1")
    assert "around" in tracefs.read("instances/dropped/snapshot")
    tracefs.rmdir("instances/dropped")


def profiler(program: Any) -> None:
    tracefs.write("function_profile_enabled", "1")
    assert program["around"](4) == 10
    tracefs.write("function_profile_enabled", "0")


def buffer(_program: Any) -> None:
    made = Buffer("dropped", size_kb=8)
    assert made.write(7, b"x") and len(list(made.records())) == 1
    made.snapshot()
    made.close()


def module(_program: Any) -> None:
    loaded = sandbox.load(PROGRAM.replace("@leaf", "@own_leaf"), name="dropped_module")
    with fprobe.attach("own_leaf", action=Count()), kprobes.attach("own_leaf+5", action=kprobes.Count()) as probe:
        assert loaded["around"](4) == 10
    assert probe.hits == 1
    loaded.unload()


def refused_event(_program: Any) -> None:
    for wrong in ("p:dropped/p no_such", "p:dropped/p leaf+5 x=%no", "f:dropped/f leaf x=+0(no"):
        with pytest.raises(OSError):
            fprobe.event(wrong).attach()


def maps_alone(_program: Any) -> None:
    """Made and dropped, never used by anyone."""
    fresh()


def refused(program: Any) -> None:
    """Registrations that fail."""
    module = fresh()
    with pytest.raises(OSError):
        fprobe.attach("no such function", entry=module.on_entry).attach()
    with pytest.raises(TypeError):
        fprobe.attach("leaf", entry=module.on_exit, exit=module.on_entry).attach()
    with pytest.raises(OSError):
        kprobes.attach("leaf+1000", pre=module.pre).attach()


KINDS: dict[str, Callable[[Any], None]] = {
    "fprobe_entry": fprobe_entry,
    "fprobe_both": fprobe_both,
    "fprobe_one_in_two_roles": fprobe_one_in_two_roles,
    "several_fprobes": several_fprobes,
    "of_a_function": of_a_function,
    "kprobe_at_stub": partial(kprobe_at, "leaf", ("pre",)),
    "kprobe_at_stub_with_regs": partial(kprobe_at, "leaf", ("pre_with_regs",)),
    "kprobe_inside": partial(kprobe_at, "leaf+5", ("pre", "post")),
    "kretprobe": kretprobe,
    "python_handlers": python_handlers,
    "python_kprobes": python_kprobes,
    "c_handlers": c_handlers,
    "action_count": partial(action, Count),
    "action_record": partial(action, Record),
    "action_stat": partial(action, Stat),
    "ops_callback": ops_callback,
    "function_probe": function_probe,
    "library_functions": library_functions,
    "optimised": optimised,
    "glob": glob,
    "event": event,
    "instance": instance,
    "profiler": profiler,
    "buffer": buffer,
    "module": module,
    "refused_event": refused_event,
    "maps_alone": maps_alone,
    "refused": refused,
}
QUICK = {
    *(name for name in KINDS if name.startswith(("python", "c_", "action", "ops", "function"))),
    "library_functions", "glob", "instance", "profiler", "buffer",
}  # fmt: skip
"""Nothing is compiled and linked for them."""


class Used(NamedTuple):
    """What the process takes: pages of memory of its own, and of address space; mappings; descriptors."""

    memory: int
    space: int
    mappings: int
    descriptors: int

    def grown(self, before: Used) -> Used:
        return Used(*(late - early for early, late in zip(before, self, strict=True)))


def used() -> Used:
    for _ in range(2):  # what has been collected is withdrawn when the next handler is linked
        gc.collect()
        with fprobe.attach("leaf", entry=fresh().on_entry):
            pass
    gc.collect()
    space, resident, shared = map(int, Path("/proc/self/statm").read_text().split()[:3])
    mappings = Path("/proc/self/maps").read_bytes().count(b"\n")
    return Used(resident - shared, space, mappings, len(list(Path("/proc/self/fd").iterdir())))


def grows(batch: Callable[[], None], most: Used) -> bool:
    """By more than `most` in each of twelve batches: a leak does, and allocators take a while to have all that they need."""
    set_kprobes_optimization(0)
    least, before = Used(*[sys.maxsize] * len(most)), used()
    for _ in range(12):
        batch()
        now = used()
        print(now.grown(before))
        least = Used(*map(min, least, now.grown(before)))
        if all(grown <= limit for grown, limit in zip(least, most, strict=True)):
            return False
        before = now
    return True


@pytest.mark.stress
@pytest.mark.parametrize("share", [8, pytest.param(1, marks=pytest.mark.stress)])
@isolated(timeout=110)
def test_what_is_dropped_leaves_no_mapping_and_no_descriptor(share):
    """Of every kind in turn; small leaks of memory show for one kind at a time only."""
    program = sandbox.load(PROGRAM, name="program")

    def batch() -> None:
        for kind, do in KINDS.items():
            for _ in range(8 // share if kind in QUICK else max(2 // share, 1)):
                do(program)
        gc.collect()

    assert not grows(batch, Used(memory=8, space=8, mappings=0, descriptors=0))


MEASURED = ("fprobe_both",)
CASES = [
    pytest.param(kind, share, marks=[] if share == 6 and kind in MEASURED else pytest.mark.stress)
    for share in (6, 1)
    for kind in KINDS
]


@pytest.mark.stress
@isolated(timeout=300, FPROBE_NO_PERF_MAP="1", MALLOC_ARENA_MAX="1")
@pytest.mark.parametrize(("kind", "share"), CASES)
def test_what_is_dropped_leaves_nothing(kind, share):
    program = sandbox.load(PROGRAM, name="program")
    rounds = (300 if kind in QUICK else 60) // share

    def batch() -> None:
        for number in range(rounds):
            KINDS[kind](program)
            if number % 10 == 0 and kind not in QUICK:
                gc.collect()  # the names of maps are free again, and what was compiled with them is found in the cache

    assert not grows(batch, Used(memory=rounds // 12, space=rounds // 4, mappings=0, descriptors=0))


@isolated(timeout=60)
def test_neither_an_events_instance_nor_a_module_stays_when_it_is_gone():
    program = sandbox.load(PROGRAM, name="program")

    def once() -> None:
        with fprobe.event("p:seen leaf n=%di"):
            pass
        module = sandbox.load("define i64 @gone(i64 %x) { ret i64 %x }", name="gone")
        with fprobe.attach("gone", action=Count()):
            module["gone"](1)
        module.unload()

    def objects() -> list[object]:
        gc.collect()
        return [type(each).__name__ for each in gc.get_objects() if isinstance(each, (TraceArray, sandbox.Module))]

    once()
    before = len(objects())
    for _ in range(3):
        once()
    assert len(objects()) == before
    assert program["leaf"](1) is not None
