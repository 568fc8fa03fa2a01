"""Changes of the trampolines and of the stub: each check taken out, each value that is stored left out."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, Part

NESTING = "tests/ftrace/hit/test_nesting.py"
REGISTERS = "tests/ftrace/hit/test_fast_trampolines.py"
IMAGES = "tests/ftrace/hit/test_register_images.py"
POOLS = "tests/ftrace/hit/test_pools.py"
MULTI_PROBE = "tests/fprobe/test_multi_probe.py"
TAILS = "tests/hazards/test_return_hook.py"
JUMPS = "tests/hazards/test_every_instruction.py::test_a_signal_at_every_instruction_each_time[jumps, {}]".format
SWITCHED = (
    "tests/hazards/test_every_instruction.py::test_a_pool_that_another_thread_switches_during_a_signal_keeps_its_nodes"
)
LEFT = "tests/hazards/test_shadow_stack.py"
MISSES = "tests/fprobe/test_misses.py"
ENTRY_EXIT = "tests/fprobe/test_entry_exit.py"
RETHOOK = "tests/conformance/test_rethook_statements.py"
THREADS = "tests/hazards/test_tasks.py::test_many_threads_every_hit_is_counted"
SHORTCUTS = "tests/fprobe/test_event_shortcuts.py"
LEAN = "tests/ftrace/tracing/tracers/test_lean_trampolines.py"

_fast = Part("ftrace/hit/x86_64/fast_trampolines.py", (REGISTERS, POOLS))
_returns = Part("ftrace/hit/x86_64/fast_returns.py", (REGISTERS, POOLS))

FAST: tuple[Mutant, ...] = (
    _fast.changed(
        "entry-fast-context",
        "    jne $complete\n$save\n    mov $ITEM_COUNTERS(%r10), %rdi",
        "$save\n    mov $ITEM_COUNTERS(%r10), %rdi",
        NESTING,
    ),
    _fast.changed(
        "both-fast-context",
        "    jne $complete\n$save\n    mov $TOP(%r11), %rsi",
        "$save\n    mov $TOP(%r11), %rsi",
        NESTING,
    ),
    _fast.without("early-fast-count", "    incq $TALLY(%r11,%r10)\n", SHORTCUTS),
    _fast.changed("early-fast-rax", "8:  lea 8(%rsp), %rsp\n    pop %rax", "8:  lea 16(%rsp), %rsp", SHORTCUTS),
    _fast.changed("early-fast-otherwise", "    je $otherwise\n", "", SHORTCUTS),
    _fast.changed(
        "early-fast-inside",
        "    incq $TALLY(%r11,%r10)\n    movq $$0, $REC(%r11)",
        "    incq $TALLY(%r11,%r10)",
        SHORTCUTS,
    ),
    _returns.changed("early-exit-otherwise", "    pop %rcx\n    je 1f\n", "    pop %rcx\n", SHORTCUTS),
    _returns.changed("early-exit-none", "    test %r11, %r11\n    je 1f\n    push %rcx", "    push %rcx", SHORTCUTS),
    _returns.changed("early-exit-rcx", "    pop %rcx\n    je 1f\n", "    pop %r11\n    je 1f\n", SHORTCUTS),
    _returns.changed("early-exit-rax", "    pop %rax\n    pop %rcx\n", "    pop %r11\n    pop %rcx\n", SHORTCUTS),
    _returns.changed("early-exit-node", "    pop %r9\n    pop %rax\n", "    pop %r11\n    pop %rax\n", SHORTCUTS),
    _returns.changed(
        "early-exit-stack", "    lea 8(%rsp), %rsp\n    mov %fs:$TASK, %rdi", "    mov %fs:$TASK, %rdi", SHORTCUTS
    ),
    _returns.changed(
        "early-exit-inside",
        "    movq $$0, $REC(%rdi)\n    mov %r9, %r11",
        "    mov %r9, %r11",
        SHORTCUTS,
    ),
    _fast.without("entry-fast-count", "    incq $TALLY(%r11,%rdi)\n"),
    _fast.changed(
        "entry-fast-inside",
        '$leave\n    movq $$0, $REC(%r11)\n    ret\n"""\n\nBOTH_FAST',
        '$leave\n    ret\n"""\n\nBOTH_FAST',
        NESTING,
    ),
    _fast.changed(
        "entry-fast-hooks",
        '_NOT_ZERO = "\\n    test %rsp, %rsp',
        '_NOT_ZERO = "\\n    cmp %rsp, %rsp',
    ),
    _fast.changed(
        "both-fast-dead-node",
        "    jbe 8f\n    lea $NODE(%rsi), %r8\n    cmp $LIMIT",
        "    lea $NODE(%rsi), %r8\n    cmp $LIMIT",
        f"{TAILS}::test_tail_calls_on_the_fast_path_get_the_real_return_address",
    ),
    _fast.without(
        "both-fast-limit",
        "    ja 8f\n",
        REGISTERS,
    ),
    _fast.changed(
        "both-fast-shared-pool",
        "    jne 8f\n    mov $ITEM_COUNTERS(%r10), %rdx",
        "    mov $ITEM_COUNTERS(%r10), %rdx",
        harmless="a shared pool has left the thread no credits, so the next check leaves for the slow path, but for the few "
        "instructions of another thread that is just taking them out",
    ),
    _fast.changed("both-fast-credit", "    js 7f\n", ""),
    _fast.changed(
        "both-fast-interrupted", "    jne 7f\n    lea $NODE(%rsi), %r8", "    lea $NODE(%rsi), %r8", JUMPS("both")
    ),
    _fast.changed("both-fast-take-back", "7:  sub %r8, $TALLY(%r11,%rdx)\n", "7:\n"),
    _fast.changed("both-fast-cancel", '    mov %r10, %rax\n    jne 6f"', '    mov %r10, %rax"', REGISTERS, ENTRY_EXIT),
    _fast.changed(
        "both-fast-cancel-credit",
        "    add %rdx, $TALLY(%r11,%rsi)\n    testl",
        "    testl",
    ),
    _fast.changed(
        "both-fast-cancel-node", "3:  sub $$$NODE, %r8\n    mov %r8, $TOP(%r11)\n", "3:\n", REGISTERS, ENTRY_EXIT
    ),
    _fast.changed(
        "both-fast-cancel-shared",
        "    jne 4f\n    mov $TOP(%r11), %r8",
        "    mov $TOP(%r11), %r8",
        harmless="the check behind it finds the pool shared too, and donates the credit",
    ),
    _fast.changed("one-word-zeroed", "    movq $$0, (%r8)", "", REGISTERS),
    _fast.changed("inline-data-zeroed", "9:  movq $$0, -8(%r8,%r11,8)", "9:", REGISTERS),
    _returns.changed(
        "exit-fast-frame",
        "    jne ftrace_exit_elsewhere\n    mov %fs:$TASK, %rdi\n    cmpl",
        "    mov %fs:$TASK, %rdi\n    cmpl",
        TAILS,
    ),
    _returns.changed("exit-fast-inside", "    jne ftrace_exit_from_list\n    movl", "    movl", NESTING, MULTI_PROBE),
    _returns.changed(
        "exit-fast-off",
        "    jne 4f\n    mov $STUB(%r11), %rsi",
        "    mov $STUB(%r11), %rsi",
        harmless="a probe with a flag set has slow trampolines in its list: only a return that read it just before is here",
    ),
    _returns.changed(
        "exit-fast-shared-pool",
        "    jne 6f\n    mov $ITEM_COUNTERS(%r10), %rsi",
        "    mov $ITEM_COUNTERS(%r10), %rsi",
        harmless="the check behind it finds the pool shared too, and donates the credit",
    ),
    _fast.changed(
        "lean-saved",
        '"rsi", "rdx", "rcx", "rax", "r8", "r9", "r10")',
        '"rsi", "rdx", "rax", "r8", "r9", "r10", "r10")',
        LEAN,
    ),
    _fast.changed("lean-cancelled-probe", '"cancelled": PROBE_OF_LEAN', '"cancelled": "" and PROBE_OF_LEAN', LEAN),
    _returns.without("lean-task", "    mov %fs:$TASK, %rcx\n", LEAN),
    _returns.changed("lean-result", "    mov %rax, %rdx\n    mov %fs", "    mov %fs", LEAN),
    _returns.without("exit-fast-credit", "    add %r8, $TALLY(%r11,%rsi)\n"),
    _returns.without("exit-fast-pool", "    lock incq $PROBE_POOL(%rdi)\n"),
    _returns.changed("exit-fast-switched", "    jne 7f\n5:", "5:", SWITCHED),
    _returns.changed(
        "exit-fast-jumped-past", "    jne 8f\n    sub $$$NODE, %r9", "    sub $$$NODE, %r9", JUMPS("both")
    ),
)

_multi = Part("ftrace/hit/x86_64/multi_probe_trampolines.py", (MULTI_PROBE, IMAGES))

MULTI_PROBE_SITES: tuple[Mutant, ...] = (
    _multi.changed("multi-dead-node", "    jbe 8f\n", "", LEFT),
    _multi.changed("multi-limit", "    ja 8f\n", "", LEFT),
    _multi.changed("multi-context", "    cmpl $$0, $CONTEXT(%r11)\n    jne 8f\n", "", NESTING, MULTI_PROBE),
    _multi.changed(
        "multi-interrupted", "    jne 8f\n    mov %r9, $TOP(%r11)", "    mov %r9, $TOP(%r11)", JUMPS("two probes")
    ),
    _multi.without("multi-armed-cleared", "    movq $$0, $ARMED(%r9)\n"),
    _multi.changed("multi-data-zeroed", "9:  movq $$0, $INLINE_DATA-8(%r9,%rcx,8)", "9:"),
    _multi.changed("multi-flags", "    jne 6f\n    mov $ITEM_TAKES(%r10), %r8", "    mov $ITEM_TAKES(%r10), %r8"),
    _multi.without("multi-credit", "    js 5f\n"),
    _multi.changed("multi-take-back", "5:  sub %r8, $TALLY(%r11,%rax)\n", "5:\n"),
    _multi.without("multi-arms", "    or %r8, $ARMED(%r9)\n"),
    _multi.changed("multi-cancel", "    jne 4f\n3:", "3:"),
    _multi.changed("multi-cancel-unarmed", "4:  cmpq $$0, $ITEM_BIT(%r10)\n    je 3b\n", "4:\n"),
    _multi.changed("multi-nobody-waits", "    je 7f\n", ""),
    _multi.changed("multi-exit-armed", "    je 2f\n", ""),
    _multi.changed(
        "multi-exit-off", "    testl $$$OFF_FLAGS, $PROBE_FLAGS(%rdi)\n    jne 2f\n", "", RETHOOK, MULTI_PROBE
    ),
    _multi.changed("multi-gives-unarmed", "    je 3b\n    testl", "    testl"),
    _multi.changed(
        "multi-shared-pool",
        "    jne 6f\n    mov $ITEM_COUNTERS(%r10), %rax\n    add",
        "    mov $ITEM_COUNTERS(%r10), %rax\n    add",
        harmless="the check behind it finds the pool shared too, and donates the credit",
    ),
    _multi.changed("multi-credit-back", "    add %r8, $TALLY(%r11,%rax)\n    testl", "    testl"),
)

_complete = Part("ftrace/hit/x86_64/trampolines.py", (ENTRY_EXIT,))

COMPLETE: tuple[Mutant, ...] = (
    _complete.without("complete-redirected", "    je entry_redirect\n"),
    _complete.changed("complete-hooked", "    cmpl $$$HOOKED, 8(%rsp)\n", "    cmpl $$$REDIRECTED, 8(%rsp)\n"),
    _complete.without("complete-exit-flags", "    jne exit_flags\n", RETHOOK),
    _complete.changed(
        "complete-exit-parent",
        "    mov %rax, 184(%rsp)\n$unimage",
        "$unimage",
        harmless="dispatch_exit has stored the parent there already, for unwinders",
    ),
    _complete.without("slow-to-return", "    subq $$$SLOW_TO_RETURN, (%rsp)\n", THREADS, NESTING),
)

_stubs = Part("ftrace/hit/x86_64/stubs.py", (THREADS, NESTING))

STUBS: tuple[Mutant, ...] = (
    _stubs.changed("stub-no-task", "_rel8(0x74, 22, 109)", "bytes.fromhex('6690')"),
    _stubs.changed("stub-inside", "_rel8(0x75, 29, 109)", "bytes.fromhex('6690')"),
    _stubs.changed("stub-not-on-top", "_rel8(0x75, 93, 103)", "bytes.fromhex('6690')", TAILS),
)

_registers = Part("ftrace/hit/x86_64/register_trampolines.py", ("tests/ftrace/hit/test_register_trampolines.py",))

ALL_REGISTERS: tuple[Mutant, ...] = (
    _registers.without("regs-no-credit", "    js both_regs_no_credit\n"),
    _registers.changed("regs-cancel", "    jne both_regs_cancel\n", ""),
    _registers.without("regs-redirect", "    jne both_regs_redirect\n"),
    _registers.without("regs-redirect-unhooked", "    jne entry_redirect\n"),
    _registers.without("regs-dead-node", "    jbe both_regs_full\n"),
    _registers.changed("regs-take-back", "    sub %r8, $TALLY(%r11,%rdx)\n", ""),
    _registers.changed("regs-exit-credit", "    add %rax, $TALLY(%r11,%rdx)\n    testl", "    testl"),
)

_single = Part("kprobes/x86_64/single_handlers.py", (SHORTCUTS,))

SINGLE: tuple[Mutant, ...] = (_single.without("single-event-probe", "    mov %r11, $RI_RP-$HEADER(%r8)\n"),)

_foreign = Part("ftrace/hit/x86_64/foreign_call.py", ("tests/ftrace/hit/test_foreign_call.py",))

# The first three need a CPU with AVX-512.
FOREIGN: tuple[Mutant, ...] = (
    _foreign.changed("foreign-masks", "{_masks(keep=False)}\n{_get_control(_HIGH)}", "{_get_control(_HIGH)}"),
    _foreign.changed(
        "foreign-high",
        '{_moved("vmovaps", "zmm", False, range(16, 32))}\n{_masks(keep=False)}',
        "{_masks(keep=False)}",
    ),
    _foreign.without("foreign-wide", "    test $$0x40, %al\n    jne 6f\n"),
    _foreign.changed("foreign-x87", "    je 8f\n    fninit\n", ""),
    _foreign.changed("foreign-mxcsr", "ldmxcsr {kept + 8}(%rsp)", "fwait"),
)
