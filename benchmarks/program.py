"""The program under test: loops that call through a volatile pointer, and small functions to call."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache, partial
from random import Random

import sandbox
from sandbox import Module

LOOP_NAME = "loop"
_LOOP = """
@{name}_target = global ptr @work

; n calls of `target`, each with a value that hangs on the one before; the sum of what they return.
define i64 @{name}(i64 %n, ptr %target) #1 {prefix} {{
entry:
  store volatile ptr %target, ptr @{name}_target
  br label %body
body:
  %i = phi i64 [ 0, %entry ], [ %i.next, %body ]
  %sum = phi i64 [ 0, %entry ], [ %sum.next, %body ]
  %mixed = xor i64 %sum, %i
  %x = call i64 asm sideeffect "", "=r,0"(i64 %mixed)
  %callee = load volatile ptr, ptr @{name}_target
  %value = call i64 %callee(i64 %x)
  %sum.next = add i64 %sum, %value
  %i.next = add i64 %i, 1
  %more = icmp ult i64 %i.next, %n
  br i1 %more, label %body, label %done
done:
  ret i64 %sum.next
}}
"""
_WORK = """
define i64 @{name}(i64 %x) #{group} {prefix} {{
  %a = mul i64 %x, 3
  %r = add i64 %a, 1
  ret i64 %r
}}
"""
_FIB = """
define i64 @fib(i64 %n) #0 {
  %small = icmp ult i64 %n, 2
  br i1 %small, label %base, label %step
base:
  ret i64 %n
step:
  %n1 = sub i64 %n, 1
  %n2 = sub i64 %n, 2
  %a = call i64 @fib(i64 %n1)
  %b = call i64 @fib(i64 %n2)
  %s = add i64 %a, %b
  ret i64 %s
}
"""
_TICKS = """
declare i64 @llvm.readcyclecounter()

; Time-stamp counter ticks that one call of `target` takes.
define i64 @ticks(ptr %target) #1 {
  %start = call i64 @llvm.readcyclecounter()
  %value = call i64 %target(i64 5)
  %used = call i64 asm sideeffect "", "=r,0"(i64 %value)
  %end = call i64 @llvm.readcyclecounter()
  %taken = sub i64 %end, %start
  ret i64 %taken
}
"""
_TAIL = """
define i64 @tail(i64 %x) #0 {
  %a = mul i64 %x, 3
  %r = musttail call i64 @work(i64 %a)
  ret i64 %r
}
"""
_ATTRIBUTES = """
attributes #0 = { noinline nounwind "no-builtins" }
attributes #1 = { noinline nounwind "no-builtins" "notrace" }
"""


def loop_text(name: str = LOOP_NAME, prefix: str = "") -> str:
    """IR of a loop i64 (i64 n, ptr target)."""
    return _LOOP.format(name=name, prefix=prefix)


def work_text(name: str = "work", traced: bool = True, prefix: str = "") -> str:
    """IR of a function of two instructions, i64 (i64)."""
    return _WORK.format(name=name, group=0 if traced else 1, prefix=prefix)


def program_text() -> str:
    """IR of the whole program: `loop`, `work`, `fib`, `ticks` and `tail`, which tail-calls `work`."""
    return "".join((loop_text(), work_text(), _FIB, _TICKS, _TAIL, _ATTRIBUTES))


def layout_text(random: Random) -> str:
    """IR of the same function with and without a stub, each with a loop of its own, all moved by random numbers of bytes."""
    parts = [
        loop_text("loop_work", _padding(random)),
        work_text("work", True, _padding(random)),
        loop_text("loop_plain", _padding(random)),
        work_text("plain", False, _padding(random)),
    ]
    return "".join([*parts, _ATTRIBUTES])


def _padding(random: Random) -> str:
    """A function attribute that puts so many bytes in front of the entry, which is thereby moved."""
    count = random.randrange(64)
    return f"prefix [{count} x i8] zeroinitializer" if count else ""


@cache
def program() -> Module:
    """The program, loaded at first use."""
    return sandbox.load(program_text(), name="bench", opt=2)


def timed(run: Callable[[], object], calls: int) -> Callable[[], float]:
    """A function that calls `run`, which makes `calls` calls, and returns the nanoseconds for each of them."""

    def once() -> float:
        start = time.perf_counter_ns()
        run()
        return (time.perf_counter_ns() - start) / calls

    return once


def timed_loop(module: Module, target: str, calls: int, loop: str = LOOP_NAME) -> Callable[[], float]:
    """A function that makes `calls` calls of `target` in a loop of the module and returns the nanoseconds per call.

    A loop should only ever call one target: CPUs predict an indirect call that has had several more slowly, for good.
    """
    return timed(partial(module[loop], calls, module[target].address), calls)
