"""HAZARDS 1: the balanced return hook. Each test names its hazard."""

# ruff: noqa: ARG005  (the signature of a handler is given)

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from isolation import isolated
from programs import basic, load_c, site_of

needs_cc = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")

TAIL_CALLS = """
define i64 @third(i64 %x) noinline { %r = add i64 %x, 3  ret i64 %r }
define i64 @second(i64 %x) noinline { %a = add i64 %x, 2  %r = musttail call i64 @third(i64 %a)  ret i64 %r }
define i64 @first(i64 %x) noinline { %a = add i64 %x, 1  %r = musttail call i64 @second(i64 %a)  ret i64 %r }
define i64 @caller(i64 %x) noinline { %r = call i64 @first(i64 %x)  %s = mul i64 %r, 2  ret i64 %s }
define i64 @odd(i64 %n) noinline {
  %z = icmp eq i64 %n, 0
  br i1 %z, label %end, label %go
end:
  ret i64 0
go:
  %m = sub i64 %n, 1
  %r = musttail call i64 @even(i64 %m)
  ret i64 %r
}
define i64 @even(i64 %n) noinline {
  %z = icmp eq i64 %n, 0
  br i1 %z, label %end, label %go
end:
  ret i64 1
go:
  %m = sub i64 %n, 1
  %r = musttail call i64 @odd(i64 %m)
  ret i64 %r
}
"""

LONGJMP = r"""
#include <setjmp.h>
static jmp_buf back;
__attribute__((noipa)) long deeper(long x) { if (x > 0) longjmp(back, (int)x); return x - 1; }
__attribute__((noipa)) long deep(long x) { volatile long y = deeper(x); return y; }
__attribute__((noipa)) long leaf(long x) { return x + 1; }
__attribute__((noipa)) long guarded(long x) { int n = setjmp(back); return n ? n : deep(x); }
long many(long n) {
    volatile long sum = 0;
    for (volatile long i = 1; i <= n; i++) sum += guarded(i) + leaf(0);
    return sum;
}
"""


def counting(name, **options):
    import fprobe

    back = []
    return back, fprobe.attach(name, exit=lambda fp, ip, ret, regs, data: back.append((ip, ret, regs.ax)), **options)


@isolated(shared=True)
def test_tail_calls_two_nodes_with_one_frame_return_in_order():
    import sandbox

    module = sandbox.load(TAIL_CALLS, name="tails")
    back, probe = counting("*")
    with probe:
        assert module["caller"](1) == 14
    assert [ip for ip, _, _ in back] == [site_of(module, name) for name in ("third", "second", "first", "caller")]
    callers = {ret for _, ret, _ in back[:3]}
    caller = module.symbol("caller")
    assert len(callers) == 1 and caller.address < callers.pop() < caller.address + caller.size  # FP-5: the real one
    assert probe.fp.nmissed == 0


@isolated(shared=True)
def test_tail_calls_on_the_fast_path_get_the_real_return_address():
    """FP-5, RB-3: with handlers that need no registers, too."""
    import fprobe
    import sandbox

    module = sandbox.load(TAIL_CALLS, name="tails")
    record = fprobe.Record()
    with fprobe.attach(["first", "second", "third"], action=record):
        for _ in range(3):
            assert module["caller"](1) == 14
    caller = module.symbol("caller")
    callers = [(hex(r.ip), r.caller) for r in record.records()]
    assert len(callers) == 9
    assert all(caller.address < ret < caller.address + caller.size for _, ret in callers), (callers, caller)


@pytest.mark.stress
@pytest.mark.parametrize("kind", ["Stat", pytest.param("Python", marks=pytest.mark.stress)])
@isolated(shared=True)
def test_mutual_tail_recursion_grows_the_shadow_stack_up_to_its_limit(kind):
    """RB-7: overflow is a counted miss with cause `depth`, and every return still finds its way."""
    import fprobe
    import sandbox

    module = sandbox.load(TAIL_CALLS, name="tails")
    handlers = {"action": fprobe.Stat()} if kind == "Stat" else {"exit": lambda *hit: None}
    with fprobe.attach("[eo][vd][ed]*", nr_maxactive=1 << 20, **handlers) as probe:
        pass
    names = ["even", "odd"]
    with fprobe.attach(names, nr_maxactive=1 << 20, **handlers) as probe:
        assert module["even"](100_001) == 0
        assert module["even"](10) == 1
    assert probe.counts.hits == 100_002 + 11
    assert 60_000 < probe.counts.missed_depth < 100_002, probe.counts
    assert probe.counts.missed_nodes == 0


@needs_cc
@isolated(shared=True)
def test_longjmp_out_of_hooked_functions_leaks_no_nodes():
    """`drop what is below sp` alone leaks a node for each; the pool would run dry."""
    import fprobe
    from ftrace.core.tracer import tracer

    module = load_c(LONGJMP)
    back, probe = counting(["guarded", "deep", "deeper", "leaf"], nr_maxactive=8)
    with probe:
        assert module["many"](1000) == 1000 * 1001 // 2 + 1000
    assert probe.counts.hits == 4000 and probe.fp.nmissed == 0
    assert len(back) == 2000  # guarded and leaf return; deep and deeper never do
    assert tracer().runtime.shadow_ips() == []
    with fprobe.attach(["deep", "deeper", "leaf"], action=fprobe.Stat(), nr_maxactive=8) as probe:
        assert module["many"](1000) == 1000 * 1001 // 2 + 1000
    assert probe.counts.missed == 0


@needs_cc
@isolated(shared=True)
def test_ret_imm16_finds_its_node_below_the_slot():
    """A function that drops its own stack arguments returns with rsp above what its node remembers."""
    import fprobe

    module = load_c(r"""
asm(".text\n.globl pops\n.type pops,@function\npops:\n.Lsite: .byte 0x0f,0x1f,0x44,0,0\n"
    "  mov 8(%rsp),%rax\n  add 16(%rsp),%rax\n  ret $16\n.size pops,.-pops\n"
    ".section __patchable_function_entries,\"awo\",@progbits,.text\n.p2align 3\n.quad .Lsite\n.text\n");
long use(long a, long b) {
    long r;
    asm volatile("mov %%rsp,%%rbx\n\tsub $128,%%rsp\n\tpush %1\n\tpush %2\n\tcall pops\n\tadd $128,%%rsp\n\t"
                 "cmp %%rbx,%%rsp\n\tje 1f\n\tud2\n1:" : "=a"(r) : "r"(a), "r"(b)
                 : "rbx", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "memory", "cc");
    return r;
}
""")
    assert "pops" in [symbol.name for symbol in module.site_functions]
    back, probe = counting("pops")
    with probe:
        assert [module["use"](i, 7) for i in range(100)] == [i + 7 for i in range(100)]
    assert len(back) == 100 and probe.fp.nmissed == 0
    with fprobe.attach("pops", action=fprobe.Stat()) as probe:
        assert [module["use"](i, 7) for i in range(100)] == [i + 7 for i in range(100)]
    assert probe.hits == 100


RETURNS_TWICE = r"""
#include <setjmp.h>
#include <ucontext.h>
#include <sys/mman.h>
__attribute__((noipa)) long leaf(long x) { return x + 1; }

/* A coroutine that yields inside a hooked function. */
static ucontext_t outside, inside;
static char low[65536] __attribute__((aligned(16)));
static volatile long given;
__attribute__((noipa)) long yields(long x) { given = leaf(x); swapcontext(&inside, &outside); return given + x; }
static void body(void) { given = yields(5) + yields(6); }
long coroutine(long rounds) {
    getcontext(&inside);
    inside.uc_stack.ss_sp = low; inside.uc_stack.ss_size = sizeof low; inside.uc_link = &outside;
    makecontext(&inside, body, 0);
    swapcontext(&outside, &inside);
    long sum = given;
    for (long i = 0; i < rounds; i++) sum += leaf(i);
    swapcontext(&outside, &inside);
    for (long i = 0; i < rounds; i++) sum += leaf(i);
    swapcontext(&outside, &inside);
    return sum + given;
}
"""


@needs_cc
@isolated(shared=True)
def test_other_stacks_a_coroutine_that_yields_inside_a_hooked_function():
    """A node of another stack is live if its slot still holds it, wherever that stack lies."""
    module = load_c(RETURNS_TWICE)
    expected = module["coroutine"](3)
    back, probe = counting(["leaf", "yields"])
    with probe:
        assert module["coroutine"](3) == expected
    assert len(back) == 10


ALTERNATE_STACK = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
static volatile long handled;
__attribute__((noipa)) long leaf(long x) { return x + 1; }
static void on_signal(int s) { handled += leaf(1); }
__attribute__((noipa)) long interrupted(long x) { raise(SIGUSR1); return leaf(x); }
static char *area;
enum { HALF = 1 << 18 };
static void *run(void *high) {
    stack_t alt = { .ss_sp = area + (high ? HALF : 0), .ss_size = HALF };
    sigaltstack(&alt, 0);
    long sum = 0;
    for (long i = 0; i < 100; i++) sum += interrupted(i);
    alt.ss_flags = SS_DISABLE;
    sigaltstack(&alt, 0);
    return (void *)sum;
}
long with_stack_above(long high) {
    struct sigaction sa = { .sa_handler = on_signal, .sa_flags = SA_ONSTACK };
    sigaction(SIGUSR1, &sa, 0);
    area = mmap(0, 2 * HALF, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstack(&attr, area + (high ? 0 : HALF), HALF);
    pthread_t thread;
    void *result;
    handled = 0;
    pthread_create(&thread, &attr, run, (void *)high);
    pthread_join(thread, &result);
    munmap(area, 2 * HALF);
    return (long)result + handled;
}
"""


@needs_cc
@pytest.mark.parametrize("high", [0, 1])
@isolated(shared=True)
def test_other_stacks_a_signal_stack_below_and_above_the_threads_own(high):
    import fprobe

    module = load_c(ALTERNATE_STACK)
    expected = module["with_stack_above"](high)
    with fprobe.attach(["leaf", "interrupted", "on_signal"], action=fprobe.Stat()) as probe:
        assert module["with_stack_above"](high) == expected
    assert probe.counts.hits == 400 and probe.counts.missed_nodes == 0


@needs_cc
@isolated(shared=True)
def test_returns_twice_functions_are_not_hooked():
    import fprobe

    module = load_c(
        "#include <setjmp.h>\nstatic jmp_buf b; static volatile long n;\n"
        "__attribute__((noinline, returns_twice)) int twice(void) { return __builtin_setjmp((void **)b); }\n"
        "long getcontext(long x) { return x + 1; }\nlong plain(long x) { return getcontext(x); }\n"
    )
    with fprobe.attach("*", exit=lambda *hit: None) as probe:
        assert module["plain"](1) == 2
    assert "getcontext" not in probe.functions
    assert probe.hits == 1


@isolated(shared=True)
def test_scratch_registers_functions_of_other_conventions_are_left_alone():
    """r10 and r11 carry arguments in some conventions; such functions are not patched, with or without an exit handler."""
    import fprobe
    import sandbox

    module = sandbox.load(
        """
define i64 @nested(ptr nest %chain, i64 %x) noinline { %v = load i64, ptr %chain  %r = add i64 %v, %x  ret i64 %r }
define i64 @outer(i64 %x) noinline {
  %chain = alloca i64
  store i64 40, ptr %chain
  %r = call i64 @nested(ptr nest %chain, i64 %x)
  ret i64 %r
}
""",
        name="nest",
    )
    for handlers in ({"entry": lambda *hit: 0}, {"exit": lambda *hit: None}, {"action": fprobe.Count()}):
        with fprobe.attach("*", **handlers) as probe:
            assert module["outer"](2) == 42
        assert probe.hits == 1


@isolated(shared=True)
def test_stack_alignment_at_handlers_whatever_the_depth():
    """rsp is 16-byte aligned where a handler is called, for C handlers at both ends and at every parity of the caller."""
    import fprobe
    import sandbox

    asm = "\\n".join(
        [".text", ".globl aligned", "aligned:",
         "lea 8(%rsp),%rax", "and $15,%rax", "add %rax,misaligned(%rip)", "xor %eax,%eax", "ret"]
    )  # fmt: skip
    watcher = sandbox.load(
        'module asm "' + asm.replace("\\n", "\\0A") + '"\n@misaligned = global i64 0\n'
        "declare i32 @aligned(ptr, i64, i64, ptr, ptr)\n"
        "define ptr @where() { ret ptr @aligned }\ndefine ptr @sum() { ret ptr @misaligned }\n",
        name="watcher",
    )
    import ctypes

    prototype = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 5)
    handler = prototype(watcher["where"]())
    module = basic()
    probes = [fprobe.attach("[lntf]*", entry=handler, exit=handler, nr_maxactive=1000).attach() for _ in range(3)]
    module["loop"](10)
    module["factorial"](10)
    module["nine"](*range(9))
    assert all(probe.hits == 10 + 1 + 10 + 1 for probe in probes)
    for probe in probes:
        probe.detach()
    assert ctypes.c_uint64.from_address(watcher["sum"]()).value == 0


CXX = r"""
#include <stdexcept>
extern "C" __attribute__((noipa)) long throws(long x) { if (x % 3 == 0) throw std::runtime_error("three"); return x; }
extern "C" __attribute__((noipa)) long between(long x) { return throws(x) + 1; }
extern "C" __attribute__((noipa)) long catches(long n) {
    long sum = 0;
    for (long i = 0; i < n; i++) { try { sum += between(i); } catch (const std::runtime_error &) { sum += 1000; } }
    return sum;
}
"""


@pytest.mark.skipif(not shutil.which("c++"), reason="no C++ compiler")
@isolated(shared=True)
def test_cfi_a_cpp_exception_passes_through_hooked_frames():
    import tempfile

    import sandbox

    path = Path(tempfile.mkdtemp()) / "throwing.cpp"
    path.write_text(CXX)
    module = sandbox.load(path)
    expected = module["catches"](30)
    back, probe = counting(["throws", "between", "catches"], nr_maxactive=8)
    with probe:
        assert module["catches"](30) == expected
    assert probe.fp.nmissed == 0 and len(back) == 20 + 20 + 1


@isolated(shared=True)
def test_order_a_handler_that_calls_hooked_functions_leaves_the_reserved_node_alone():
    """The node of a call is reserved before its entry handler runs; what is hooked meanwhile comes and goes above it."""
    import fprobe

    module = basic()
    inner = fprobe.attach("leaf", exit=lambda *hit: None)
    outer = fprobe.attach("loop", entry=lambda *hit: module["twice"](1) and 0, exit=lambda *hit: None)
    with inner, outer:
        assert [module["loop"](3) for _ in range(20)] == [3] * 20
    assert outer.fp.errors.first is None and inner.fp.nmissed == 0


COROUTINE_UNDER_A_HOOKED_FUNCTION = r"""
#include <ucontext.h>
static ucontext_t outside, inside;
static char stack[65536] __attribute__((aligned(16)));
static volatile long given;
__attribute__((noipa)) long leaf(long x) { return x + 1; }
__attribute__((noipa)) long yields(long x) { given = leaf(x); swapcontext(&inside, &outside); return given + x; }
static void body(void) { for (long i = 0;; i++) given = yields(i); }
__attribute__((noipa)) long resume(long x) { given += x; swapcontext(&outside, &inside); return leaf(given); }
long rounds(long n) {
    getcontext(&inside);
    inside.uc_stack.ss_sp = stack; inside.uc_stack.ss_size = sizeof stack; inside.uc_link = &outside;
    makecontext(&inside, body, 0);
    long sum = 0;
    for (long i = 0; i < n; i++) sum += resume(i);
    return sum;
}
"""


@needs_cc
@isolated
def test_other_stacks_a_hooked_function_returns_while_a_coroutine_waits_in_another():
    """Its node is not the newest: the coroutine's stays, and both find their way."""
    import fprobe

    module = load_c(COROUTINE_UNDER_A_HOOKED_FUNCTION)
    expected = module["rounds"](1000)
    back, probe = counting(["leaf", "yields", "resume"], nr_maxactive=16)
    with probe:
        assert module["rounds"](1000) == expected
    assert probe.fp.nmissed == 0 and len(back) == 2000 + 1000 + 999
    with fprobe.attach(["leaf", "yields", "resume"], action=fprobe.Stat(), nr_maxactive=16) as probe:
        assert module["rounds"](1000) == expected
    assert probe.counts.missed == 0


MALLOCED_STACKS = COROUTINE_UNDER_A_HOOKED_FUNCTION.replace("static char stack[65536] __attribute__((aligned(16)));", "").replace(
    "long rounds(long n) {",
    """static void *own_stacks;
#include <stdlib.h>
#include <pthread.h>
static long rounds(long n);
static void *run(void *n) { return (void *)rounds((long)n); }
long on_adjacent_stacks(long n) {
    static char both[2 * 262144] __attribute__((aligned(4096)));
    own_stacks = both;
    pthread_attr_t attr; pthread_attr_init(&attr); pthread_attr_setstack(&attr, both + 262144, 262144);
    pthread_t t; void *r;
    pthread_create(&t, &attr, run, (void *)n); pthread_join(t, &r);
    return (long)r;
}
static long rounds(long n) {
    char *stack = own_stacks;""",
).replace("sizeof stack", "262144")  # fmt: skip


@needs_cc
@isolated(shared=True)
def test_other_stacks_a_coroutine_whose_stack_adjoins_the_threads():
    module = load_c(MALLOCED_STACKS)
    expected = module["on_adjacent_stacks"](100)
    _, probe = counting(["leaf", "yields", "resume"], nr_maxactive=16)
    with probe:
        assert module["on_adjacent_stacks"](100) == expected


TWO_COROUTINES = r"""
#include <ucontext.h>
static ucontext_t outside, inside[2];
static char stacks[2][65536] __attribute__((aligned(4096)));
static volatile long given;
__attribute__((noipa)) long leaf(long x) { return x + 1; }
__attribute__((noipa)) long yields(long i) { given = leaf(i); swapcontext(&inside[i], &outside); return given + i; }
static void body(int i) { for (;;) given = yields(i) + leaf(i); }
__attribute__((noipa)) long resume(long i) { swapcontext(&outside, &inside[i]); return leaf(given); }
long rounds(long n) {
    long sum = 0;
    for (int i = 0; i < 2; i++) {
        getcontext(&inside[i]);
        inside[i].uc_stack.ss_sp = stacks[i]; inside[i].uc_stack.ss_size = sizeof stacks[i];
        makecontext(&inside[i], (void (*)(void))body, 1, i);
    }
    for (long i = 0; i < n; i++) sum += resume(i % 2) + resume(i % 3 % 2);
    return sum;
}
"""


@needs_cc
@pytest.mark.parametrize("first", [True, False])
@isolated
def test_other_stacks_two_coroutines_side_by_side(first):
    """In the process's first thread and in another: each coroutine's calls wait while the other's come and go."""
    import threading

    import fprobe

    module = load_c(TWO_COROUTINES)
    expected = module["rounds"](500)

    def run():
        assert module["rounds"](500) == expected
        done.append(1)

    done = []
    for handlers in ({"exit": lambda *hit: None}, {"action": fprobe.Stat()}):
        with fprobe.attach(["leaf", "yields", "resume"], nr_maxactive=16, **handlers) as probe:
            if first:
                run()
            else:
                thread = threading.Thread(target=run)
                thread.start()
                thread.join()
        assert probe.counts.missed == 0
    assert done == [1, 1]


DEEP = r"""
#include <setjmp.h>
static jmp_buf back;
__attribute__((noipa)) long leaf(long x) { return x + 1; }
__attribute__((noipa)) long deep(long n) {
    char room[1 << 16];
    room[n & 0xffff] = n;
    if (!n) longjmp(back, 1);
    return deep(n - 1) + *(volatile char *)room; }
long jumps(long n) { for (volatile long i = 0; i < n; i++) { if (!setjmp(back)) deep(100); leaf(i); } return n; }
"""


@needs_cc
@isolated(shared=True)
def test_longjmp_over_more_stack_than_any_limit():
    """6.5 MB of frames are left at once; none of their nodes stays."""
    import threading

    import fprobe
    from ftrace.core.tracer import tracer

    module = load_c(DEEP)
    seen = []

    def run():
        module["jumps"](5)
        seen.append(module["jumps"](5))
        seen.append(tracer().runtime.shadow_ips())

    threading.stack_size(16 << 20)
    with fprobe.attach(["deep", "leaf"], action=fprobe.Stat(), nr_maxactive=101) as probe:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert seen == [5, []] and probe.counts.missed == 0


@isolated(shared=True)
def test_other_stacks_where_a_threads_own_is_known():
    import ctypes
    import threading
    from pathlib import Path

    from ftrace.core.runtime import runtime
    from sandbox.threads.thread_key import main_stack, own_stack

    field = runtime().key.stack_field
    libc = ctypes.CDLL(None)
    libc.pthread_self.restype = ctypes.c_uint64
    seen = []

    def words():
        start, size = (ctypes.c_uint64 * 2).from_address(libc.pthread_self() + field)
        return start, start + size

    def look():
        seen.append((words(), own_stack()))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    (start, end), (without_guard, same_end) = seen[0]
    assert field and end == same_end and 0 <= without_guard - start <= 1 << 16
    assert words()[0] == 0  # the first thread's is elsewhere, and may grow downwards
    line = next(line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith("[stack]"))
    start, end = (int(part, 16) for part in line.split()[0].split("-"))
    low, high = main_stack()
    assert low < start < high <= end


@isolated(shared=True)
def test_cet_shadow_stacks_the_classic_swap_is_refused_with_the_reason():
    """The balanced hook pairs its calls and returns; the swap of stubs after the prologue does not."""
    import errno

    import fprobe
    import sandbox
    from sandbox.memory import cpu

    cpu.has_shadow_stacks = lambda: True  # as on a machine and in a process that has them
    ir = "define i64 @{0}(i64 %x) noinline {{ %r = add i64 %x, 1  ret i64 %r }}\n"
    late = sandbox.load(ir.format("late"), name="late", flavour="mcount")
    early = sandbox.load(ir.format("early"), name="early")
    with fprobe.attach("late", entry=lambda *hit: 0) as probe:
        assert late["late"](1) == 2
        try:
            fprobe.attach("late", exit=lambda *hit: None).attach()
        except OSError as error:
            assert error.errno == errno.EOPNOTSUPP and "CET" in str(error) and "mcount" in str(error)
        else:
            raise AssertionError("an exchanged return address would end the process")
        assert late["late"](1) == 2 and probe.hits == 2
    with fprobe.attach("early", exit=lambda *hit: None) as probe:
        assert early["early"](1) == 2 and probe.hits == 1
