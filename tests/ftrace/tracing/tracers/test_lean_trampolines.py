"""The trampolines of lean handlers keep what the program has in its registers, though the handlers destroy all that they may."""

from __future__ import annotations

from isolation import isolated
from programs import load_c
from traced import program

HANDLERS = r"""
unsigned long words[7];
unsigned long told(int at) { return words[at]; }
void begin(void) { for (int at = 0; at < 7; at++) words[at] = 0; }
void answer(int value) { words[0] = value; }
#define DESTROY "mov $-1, %rdi; mov %rdi, %rsi; mov %rdi, %rdx; mov %rdi, %rcx;" \
    "mov %rdi, %r8; mov %rdi, %r9; mov %rdi, %r10; mov %rdi, %r11;"
__attribute__((naked)) void preserving(void) { asm("xor %eax, %eax; ret"); }
__attribute__((naked)) void at_entry(void) {
    asm("incq words+8(%rip); mov %rsi, (%r8); mov %rcx, words+24(%rip); mov words(%rip), %rax;" DESTROY "ret");
}
__attribute__((naked)) void at_entry_only(void) { asm("incq words+8(%rip); mov $-1, %rax;" DESTROY "ret"); }
__attribute__((naked)) void at_return(void) {
    asm("incq words+16(%rip); mov (%r8), %rax; mov %rax, words+32(%rip); mov %rcx, words+40(%rip); mov %rdx, words+48(%rip);"
        "mov $-1, %rax;" DESTROY "ret");
}
"""
WORDS = ("answer", "entries", "returns", "task at entry", "data", "task at return", "result")
PROGRAM = """
#include <stdarg.h>
#define CALL __attribute__((noinline, noipa))
struct two { long a, b; };
CALL long six(long a, long b, long c, long d, long e, long f) {
    return a + 10 * b + 100 * c + 1000 * d + 10000 * e + 100000 * f;
}
CALL struct two both(long n) { struct two r = { n + 1, n + 2 }; return r; }
CALL long doubles(int n, ...) { va_list l; double t = 0; va_start(l, n); while (n--) t += va_arg(l, double); return t; }
long run(long kind) {
    if (kind == 0) return six(1, 2, 3, 4, 5, 6);
    if (kind == 1) { struct two r = both(10); return r.a * 100 + r.b; }
    return doubles(3, 1.0, 2.0, 4.0);
}
"""
NAMES = ("six", "both", "doubles")
RESULTS = (654321, 1112, 7)
NODES = 2


class Lean:
    """The functions of PROGRAM, probed by lean handlers, at the entry or at both ends."""

    def __init__(self, both_ends: bool) -> None:
        from ftrace.core.ops import ftrace_ops, ftrace_set_filter, register_ops
        from ftrace.core.probe import NativeProbe
        from ftrace.core.tracer import tracer
        from ftrace.hit.records import EXIT_VALUE, HAS_ENTRY, HAS_EXIT, LEAN

        self.module, self.handlers = program(PROGRAM, "lean"), load_c(HANDLERS)
        at = {
            name: self.handlers.symbol(name).address
            for name in ("preserving", "at_entry", "at_entry_only", "at_return")
        }
        values = {"lean_entry": at["at_entry" if both_ends else "at_entry_only"]}
        if both_ends:
            values |= {"exit": at["preserving"], "lean_exit": at["at_return"], "data_size": 8}
            values |= {"pool_unclaimed": NODES, "nr_nodes": NODES}
        kind = HAS_ENTRY | LEAN | (HAS_EXIT | EXIT_VALUE) * both_ends
        self.ops = ftrace_ops(at["preserving"])
        self.ops.hooks_return = both_ends
        for name in NAMES:
            ftrace_set_filter(self.ops, name)
        self.probe = NativeProbe(tracer().table.lines, None, kind=kind, entry=at["preserving"], **values)
        register_ops(self.ops, self.probe)
        self.module["run"](0)  # a thread's first hit with an exit handler takes the slow path
        self.handlers["begin"]()
        self.begun = self.probe.counts().hits

    def word(self, name: str) -> int:
        """One of WORDS."""
        return int(self.handlers["told"](WORDS.index(name)))

    @property
    def hits(self) -> int:
        """Since the handlers' words are counted."""
        return int(self.probe.counts().hits) - self.begun

    def run(self) -> list[int]:
        """The results of the functions."""
        return [self.module["run"](kind) for kind in range(len(NAMES))]


@isolated
def test_at_the_entry_arguments_and_the_number_of_vector_registers_are_kept() -> None:
    lean = Lean(both_ends=False)
    assert lean.run() == list(RESULTS)
    assert lean.word("entries") == lean.hits == 3


@isolated
def test_at_both_ends_arguments_and_results_are_kept() -> None:
    lean = Lean(both_ends=True)
    for rounds in range(1, 6):
        assert lean.run() == list(RESULTS)
        assert lean.word("entries") == lean.word("returns") == lean.hits == 3 * rounds


@isolated
def test_lean_handlers_get_the_task_the_result_and_their_data() -> None:
    from ftrace.core.runtime import runtime

    lean = Lean(both_ends=True)
    lean.run()
    assert lean.word("result") == RESULTS[-1]
    assert lean.word("data") == lean.module.symbol("doubles").address
    assert lean.word("task at entry") == lean.word("task at return") == runtime().image.call("task_get") & (1 << 64) - 1


@isolated
def test_a_call_that_the_entry_declines_gives_its_node_back_and_has_no_return() -> None:
    lean = Lean(both_ends=True)
    lean.handlers["answer"](1)
    for _ in range(3 * NODES):
        assert lean.run() == list(RESULTS)
    assert (lean.word("entries"), lean.word("returns")) == (18, 0)
    lean.handlers["answer"](0)
    assert lean.run() == list(RESULTS)
    assert (lean.word("returns"), lean.probe.counts().missed) == (3, 0)


@isolated
def test_beside_another_probe_the_preserving_forms_are_called() -> None:
    import fprobe

    lean = Lean(both_ends=True)
    with fprobe.attach(list(NAMES), action=fprobe.Count()) as other:
        assert lean.run() == list(RESULTS)
        assert (lean.word("entries"), lean.hits, other.hits) == (0, 3, 3)
    assert lean.run() == list(RESULTS)
    assert (lean.word("entries"), lean.word("returns")) == (3, 3)
