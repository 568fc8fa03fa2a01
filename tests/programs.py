"""Small programs to probe, and what can be asked of any loaded one."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import sandbox
from sandbox.x86_64.encoding import NOP5

BASIC = """
@sink = global i64 0
define i64 @leaf(i64 %x) noinline { %r = add i64 %x, 1  ret i64 %r }
define i64 @other(i64 %x) noinline { %r = add i64 %x, 2  ret i64 %r }
define i64 @twice(i64 %x) noinline {
  %a = call i64 @leaf(i64 %x)
  %b = call i64 @leaf(i64 %a)
  ret i64 %b
}
define i64 @loop(i64 %n) noinline {
entry:
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %i.next, %head ]
  %s = phi i64 [ 0, %entry ], [ %s.next, %head ]
  %s.next = call i64 @leaf(i64 %s)
  %i.next = add i64 %i, 1
  %more = icmp ult i64 %i.next, %n
  br i1 %more, label %head, label %done
done:
  ret i64 %s.next
}
define i64 @factorial(i64 %n) noinline {
entry:
  %end = icmp ule i64 %n, 1
  br i1 %end, label %one, label %more
one:
  ret i64 1
more:
  %less = sub i64 %n, 1
  %rest = call i64 @factorial(i64 %less)
  %r = mul i64 %n, %rest
  ret i64 %r
}
define i64 @nine(i64 %a, i64 %b, i64 %c, i64 %d, i64 %e, i64 %f, i64 %g, i64 %h, i64 %i) noinline {
  %1 = mul i64 %a, 2
  %2 = add i64 %1, %b
  %3 = mul i64 %2, 2
  %4 = add i64 %3, %c
  %5 = mul i64 %4, 2
  %6 = add i64 %5, %d
  %7 = mul i64 %6, 2
  %8 = add i64 %7, %e
  %9 = mul i64 %8, 2
  %10 = add i64 %9, %f
  %11 = mul i64 %10, 2
  %12 = add i64 %11, %g
  %13 = mul i64 %12, 2
  %14 = add i64 %13, %h
  %15 = mul i64 %14, 2
  %16 = add i64 %15, %i
  ret i64 %16
}
define i64 @apply(ptr %f, i64 %x) noinline {
  %r = call i64 %f(i64 %x)
  %s = add i64 %r, 0
  ret i64 %s
}
"""
"""leaf(x) = x+1, other(x) = x+2, twice(x) = leaf(leaf(x)), loop(n) = leaf n times, factorial, nine arguments, a callback."""

_numbers = itertools.count()


def basic(**options: Any) -> Any:
    """BASIC, loaded under a name of its own; `unload()` it if others must not see its names."""
    return sandbox.load(BASIC, name=f"basic{next(_numbers)}", **options)


def text_of(module: Any) -> bytes:
    """All of a module's code, as the CPU would execute it."""
    return b"".join(ctypes.string_at(text.base, text.size) for text in module.texts)


def site_bytes(module: Any, name: str) -> bytes:
    """The five bytes of a function's stub."""
    index = next(i for i, symbol in enumerate(module.site_functions) if symbol.name == name)
    return ctypes.string_at(module.sites[index], 5)


def site_of(module: Any, name: str) -> int:
    """The address of a function's stub: entry_ip."""
    return next(site for site, symbol in zip(module.sites, module.site_functions, strict=True) if symbol.name == name)


def is_patched(module: Any, name: str) -> bool:
    """Whether the function jumps to its stub."""
    return site_bytes(module, name)[0] == 0xE9


def assert_untouched() -> None:
    """Nothing is registered, every stub of every module is a NOP, and no call is on a shadow stack.

    What is registered, or switched off, is so no longer afterwards: later tests do not fail because of it.
    """
    from ftrace.core.tracer import detach_all, tracer

    found, is_on = list(tracer().enabled), tracer().switched_on
    if found or not is_on:
        tracer().switch(True)
        detach_all()
    assert found == [], "something was left registered"
    assert is_on, "ftrace was left switched off"
    for module in sandbox.modules():
        patched = [
            symbol.name
            for site, symbol in zip(module.sites, module.site_functions, strict=True)
            if ctypes.string_at(site, 5) != NOP5
        ]
        assert patched == [], f"{module.name}: still patched"
    assert tracer().runtime.shadow_ips() == []
    busy = [(task.tid, task.rec) for task in tracer().runtime.tasks() if task.state and task.rec]
    assert busy == [], "a task is still marked as inside"


def stacks_not_empty() -> list[str]:
    """Tasks with nodes, or entry data, of calls that are over."""
    from ftrace.core.runtime import runtime
    from sandbox.threads.tasks import DATA_STACK, STRIDE

    native = runtime()
    tops = [
        (task.top - task.bottom, task.data_top - (native.slab + index * STRIDE + DATA_STACK))
        for index, task in enumerate(native.tasks())
    ]
    return [f"stacks of {nodes:#x} bytes of nodes, {data:#x} of data" for nodes, data in tops if nodes or data]


def writable_and_executable() -> list[tuple[int, int]]:
    """Where memory can be both written and executed."""
    from sandbox.memory.mappings import mappings

    return [(start, end) for start, end, flags, _ in mappings() if "w" in flags and "x" in flags]


def nodes_lost(probe: Any) -> int:
    """How many return nodes of the fprobe are neither free nor at a call, once no call of it is left; below 0: too many."""
    import ctypes

    from ftrace.core.runtime import runtime
    from sandbox.threads.tasks import STRIDE, Counters

    native, tasks = probe.ops.probe.native, runtime()
    lines = [tasks.slab + index * STRIDE + native.counters for index, _ in enumerate(tasks.tasks())]
    credits = sum(ctypes.c_int64.from_address(line + Counters.offset("tally")).value >> 48 for line in lines)
    return int(native.nr_nodes - native.pool_unclaimed - native.pool_shared - credits)


def load_c(source: str, *cflags: str, suffix: str = ".c") -> Any:
    """A C program from its text. Needs a compiler."""
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / f"program{next(_numbers)}{suffix}"
        path.write_text(source)
        return sandbox.load(path, cflags=cflags)
