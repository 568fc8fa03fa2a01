"""Changes of what calls take and give back: `rethook`, `nodes`, `pools`."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, Part

ENTRY_EXIT = "tests/fprobe/test_entry_exit.py"
MISSES = "tests/fprobe/test_misses.py"
HOOK = "tests/hazards/test_return_hook.py"
POOLS = "tests/ftrace/hit/test_pools.py"
TASKS = "tests/hazards/test_tasks.py"
MULTI_PROBE = "tests/fprobe/test_multi_probe.py"
RETHOOK = "tests/conformance/test_rethook_statements.py"
GREENLETS = "tests/hazards/test_greenlets.py"
KRETPROBES = "tests/kprobes/test_kretprobes.py"
LEFT = "tests/hazards/test_shadow_stack.py"
COUNTER_FILE = "tests/hazards/test_counter_file.py"
SWITCHED = (
    "tests/hazards/test_every_instruction.py::test_a_pool_that_another_thread_switches_during_a_signal_keeps_its_nodes"
)
GRAPH = "tests/ftrace/tracing/tracers/test_graph.py"

_rethook = Part("ftrace/hit/rethook.py", (HOOK, RETHOOK, ENTRY_EXIT))

SHADOW_STACK: tuple[Mutant, ...] = (
    _rethook.changed("pop-data", "        if is_elsewhere:", "        if False:", LEFT),
    _rethook.changed(
        "pop-one-empty",
        "        node = task.top\n\n\n@native\ndef node_release",
        "        return\n\n\n@native\ndef node_release",
        LEFT,
    ),
    _rethook.changed("empty-live", "    node.frame = 0\n", "    node.frame = 0xFFFF_FFFF_FFFF_FFFF\n", LEFT),
    _rethook.changed(
        "empty-dead",
        "    pop_empty(task)\n    while task.top != task.bottom and is",
        "    while task.top != task.bottom and is",
        LEFT,
    ),
    _rethook.changed("release-empty", "    pop_empty(task)\n    if task.limit", "    if task.limit"),
    _rethook.changed("parked-unlooked", "        look_for_parked(task)", "        pass", GREENLETS),
    _rethook.changed(
        "gives-no-node-back", "        pool_give(task, probe)\n", "        pass\n", HOOK, MISSES, TASKS, ENTRY_EXIT
    ),
    _rethook.changed(
        "recycles-unarmed", "        if is_armed(node, index):", "        if True:", HOOK, ENTRY_EXIT, MULTI_PROBE
    ),
    _rethook.changed("abandoned-uncounted", "        task.abandoned += 1", "        pass", GRAPH),
    _rethook.changed("own-frame-live", "    if own > frame:", "    if own >= frame:"),
    _rethook.changed("older-frame-dead", "    if own > frame:\n        return False\n", ""),
    _rethook.changed("other-stack-dead", "    return on_one_stack(own, frame) or not", "    return True or not"),
    _rethook.changed("one-stack-live", "    return on_one_stack(own, frame) or not", "    return not"),
    _rethook.changed(
        "data-not-reset",
        "    if task.top == task.bottom:\n        task.data_top",
        "    if False:\n        task.data_top",
        LEFT,
    ),
    _rethook.changed(
        "greenlets-not-parked", "        park_dead(task, frame)\n        return", "        pass", GREENLETS
    ),
    _rethook.changed("given-back-one-by-one", "    if outer_of_frame(node) != null:", "    if False:", LEFT),
    _rethook.changed(
        "deferred-kept",
        "        if is_deferred(newer) and frame_of(newer) == frame_of(node):",
        "        if False:",
        LEFT,
    ),
    _rethook.changed(
        "data-limit",
        "task.data_top if task.data_top + cast(u64, size) <= task.data_limit else 0",
        "task.data_top",
        MISSES,
    ),
    _rethook.changed("nodes-end", "        if cast(u64, node) > task.nodes_end or data == 0:", "        if data == 0:"),
    _rethook.changed("data-not-zeroed", "        words[index] = 0", "        pass"),
    _rethook.changed("armed-not-cleared", "    node.armed = 0\n", "", MULTI_PROBE, ENTRY_EXIT, MISSES),
    _rethook.changed("tail-call-unmarked", "TAIL_CALL if frame_of(below(node)) == frame else 0", "0"),
    _rethook.changed(
        "context-unmarked", "        marks += OFF_STACK", "        pass", "tests/ftrace/hit/test_nesting.py"
    ),
    _rethook.changed(
        "near-frames",
        "            return node\n        node = below(node)\n    return null",
        "            return null\n        node = below(node)\n    return null",
    ),
    _rethook.changed(
        "far-frames",
        "frame - slot_of(node) < FAR",
        "frame - slot_of(node) < 8",
        f"{HOOK}::test_ret_imm16_finds_its_node_below_the_slot",
    ),
    _rethook.changed(
        "find-abandons-none",
        "        if is_call and not is_waiting and is_dead(node, frame):",
        "        if False:",
        LEFT,
    ),
    _rethook.changed(
        "find-ret-addr",
        "            and (node.frame & TAIL_CALL == 0 or real_caller(node) == node.parent)",
        "            and True",
    ),
)

_nodes = Part("ftrace/hit/nodes.py", (HOOK, MULTI_PROBE, RETHOOK))

NODES: tuple[Mutant, ...] = (
    _nodes.changed(
        "disarm",
        "    armed_word(node, index)[0] &= ~(cast(u64, 1) << (index & 63))",
        "    pass",
        MULTI_PROBE,
        ENTRY_EXIT,
    ),
    _nodes.changed("real-caller", "            caller = older.parent", "            pass"),
    _nodes.changed(
        "outer-of-frame", "        if older.stub + EXIT_FROM_STUB == node.parent:", "        if False:", LEFT
    ),
    _nodes.changed("data-in-node", "    if probes.data_size > INLINE_DATA:", "    if False:", MISSES, ENTRY_EXIT),
)

_pools = Part("ftrace/hit/pools.py", (POOLS, MISSES))

CREDITS: tuple[Mutant, ...] = (
    _pools.changed("pool-one-more", "    while free > 0:", "    while free >= 0:"),
    _pools.changed("credit-one-more", "    elif credits_of(line) > 0:", "    elif credits_of(line) >= 0:"),
    _pools.changed("credit-not-taken", "        single_sub(addressof(line.tally), CREDIT_UNIT)", "        pass"),
    _pools.changed(
        "credit-when-shared",
        "    if volatile_load(addressof(probe.flags)) & (SWITCHING | POOL_SHARED) != 0:\n        result = 2\n    elif",
        "    if",
        harmless="a pool that is shared has left no credits here; what a switch has yet to gather is taken with CREDIT set",
    ),
    _pools.changed(
        "credits-not-gathered",
        '    atomic_add(addressof(probe.pool_shared), gather_credits(probe), "acq_rel")',
        "    pass",
    ),
    _pools.changed(
        "pages-unnoted",
        '    atomic_or(addressof(task.credit_pages[page >> 6]), cast(u64, 1) << (page & 63), "relaxed")',
        "    pass",
    ),
    _pools.changed(
        "hits-with-credits",
        "        totals.tally += line.tally & HITS_MASK",
        "        totals.tally += line.tally",
        COUNTER_FILE,
    ),
    _pools.changed("credit-gone", "        if credits_of(line) < 0:", "        if False:", SWITCHED),
    _pools.changed(
        "second-switch",
        "    if old & SWITCHING != 0:",
        "    if False:",
        harmless="each credit is gathered once all the same; a call may be missed while two threads switch a pool at once",
    ),
    _pools.changed("counters-kept", "                words[word] = 0", "                pass", COUNTER_FILE),
)
