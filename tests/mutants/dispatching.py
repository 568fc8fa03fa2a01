"""Changes of the slow path: `dispatch`, `dispatch_exit`, recursion, quiescing, and forks."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, Part

ATTACHMENT = "tests/fprobe/test_attachment.py"
ENTRY_EXIT = "tests/fprobe/test_entry_exit.py"
MISSES = "tests/fprobe/test_misses.py"
RETHOOK = "tests/conformance/test_rethook_statements.py"
REGISTRATION = "tests/fprobe/test_registration.py"
STATEMENTS = "tests/conformance/test_fprobe_statements.py"
FTRACE = "tests/conformance/test_ftrace_statements.py"
CALLBACKS = "tests/ftrace/core/test_callbacks.py"
SIGNALS = "tests/hazards/test_signals.py"
NESTING = "tests/ftrace/hit/test_nesting.py"
TAILS = "tests/hazards/test_return_hook.py"
TASKS = "tests/hazards/test_tasks.py"
CHANGING = "tests/hazards/test_calls_change_threads.py"
ENDED = "tests/hazards/test_calls_ended_elsewhere.py"
GREENLETS = "tests/hazards/test_greenlets.py::test_fprobed_calls_of_greenlets_in_one_place_are_told_apart"
_REPEATED_CANCEL = f"{ENTRY_EXIT}::test_fp29_fp34_a_cancelled_call_has_no_exit_and_is_no_miss"

_entry = Part("ftrace/hit/dispatch.py", (ENTRY_EXIT, MISSES))

ENTRY: tuple[Mutant, ...] = (
    _entry.changed("max-hits-late", "    if left == 1:", "    if left == 0:", ATTACHMENT),
    _entry.changed(
        "max-hits-one-more",
        "    return left > 0",
        "    return left >= 0",
        harmless="the hit before has marked the probe: only one that another thread makes in the same instructions comes here",
    ),
    _entry.changed(
        "thread-filter",
        "        return False\n    if probe.max_hits == 0:",
        "        pass\n    if probe.max_hits == 0:",
        ATTACHMENT,
    ),
    _entry.changed("no-limit", "    if probe.max_hits == 0:", "    if probe.max_hits == 1:", ATTACHMENT),
    _entry.changed("stopped-pool", "    if item.probe.flags & STOPPED != 0:", "    if False:", RETHOOK, STATEMENTS),
    _entry.changed("depth-uncounted", "        line.missed_depth += 1", "        pass"),
    _entry.changed(
        "shortage-uncounted",
        "        line.missed_nodes += 1\n        return False\n    arm",
        "        return False\n    arm",
    ),
    _entry.changed(
        "stopped-at-entry",
        "        if probe.flags & STOPPED != 0:\n            return\n        if taken",
        "        if taken",
        RETHOOK,
    ),
    _entry.changed("no-data-no-node", "        if taken and item.data_size != 0:", "        if item.data_size != 0:"),
    _entry.changed(
        "cancel-arms",
        "        disarm(hit.node, index)\n        pool_give(hit.task, probe)",
        "        pool_give(hit.task, probe)",
    ),
    _entry.changed(
        "cancel-keeps-node",
        "        disarm(hit.node, index)\n        pool_give(hit.task, probe)",
        "        disarm(hit.node, index)",
        _REPEATED_CANCEL,
        ENTRY_EXIT,
        MISSES,
    ),
    _entry.changed("busy-ignored", "    if task.kprobe != 0:", "    if False:"),
    _entry.changed("busy-uncounted", "        counters(task, item.counters).missed_busy += 1", "        pass"),
    _entry.changed("busy-unmarked", "    task.kprobe = SHARED_BUSY\n", ""),
    _entry.changed("busy-for-ever", "    task.kprobe = 0\n", ""),
    _entry.changed(
        "disabled-runs",
        "probe.flags & (DISABLED | EXHAUSTED) != 0",
        "probe.flags & EXHAUSTED != 0",
        REGISTRATION,
        FTRACE,
    ),
    _entry.changed(
        "stopped-runs",
        "    if probe.flags & STOPPED != 0 and",
        "    if False and",
        "tests/fprobe/test_inside_handlers.py",
        ENTRY_EXIT,
    ),
    _entry.changed(
        "python-in-signals",
        "    if probe.kind & PYTHON != 0 and in_signal_handler(hit.regs):",
        "    if False:",
        SIGNALS + "::test_a_python_handler_in_an_asynchronous_signal_is_a_miss_and_no_crash",
    ),
    _entry.changed("recursion-uncounted", "        line.missed_recursion += 1", "        pass"),
    _entry.changed(
        "recursion-runs", "        line.missed_recursion += 1\n        return", "        line.missed_recursion += 1"
    ),
    _entry.changed("recursion-unlock", "    unlock(task, bit)\n\n\n@native\ndef run_list", "\n\n@native\ndef run_list"),
    _entry.changed(
        "filter-ignored",
        "    if probe.flags & FILTERED == 0 or passes_filter(task, probe):",
        "    if True:",
        ATTACHMENT,
    ),
    _entry.changed(
        "list-lock",
        "    bit = trylock(task, LIST)\n    if bit == 0:\n        return\n",
        "    bit = trylock(task, LIST)\n",
    ),
    _entry.changed(
        "assist-alone",
        "probes.count == 1 and probes.items[0].probe.kind & ASSIST == 0",
        "probes.count == 1",
        FTRACE,
        STATEMENTS,
    ),
    _entry.changed("cs-without-regs", "USER_CS if hit.probes.wants_regs != 0 else 0", "USER_CS", CALLBACKS, FTRACE),
    _entry.changed(
        "declined-keeps-node",
        "            node_release(task, hit.node)",
        "            pass",
        "tests/hazards/test_shadow_stack.py",
    ),
    _entry.changed(
        "redirected-unhooked",
        "        return REDIRECTED if moved else DECLINED\n    node = hit.node",
        "        return DECLINED\n    node = hit.node",
    ),
    _entry.changed(
        "redirected-hooked", "    if moved or hit.stub.after_prologue != 0 or", "    if hit.stub.after_prologue != 0 or"
    ),
    _entry.changed(
        "mcount-slot",
        "    if moved or hit.stub.after_prologue != 0 or",
        "    if moved or",
        "tests/ftrace/hit/test_register_trampolines.py",
    ),
    _entry.changed(
        "mcount-frame", "        regs.sp = regs.bp + 8", "        pass", "tests/ftrace/hit/test_register_trampolines.py"
    ),
    _entry.changed("dead-calls-kept", "        drop_dead(task, hit.frame)", "        pass", TAILS),
    _entry.changed(
        "no-task-uncounted",
        '            atomic_add(addressof(probe.missed_task), 1, "relaxed")',
        "            pass",
        TASKS,
    ),
)

_exit = Part("ftrace/hit/dispatch_exit.py", (ENTRY_EXIT, MISSES, RETHOOK))

EXIT: tuple[Mutant, ...] = (
    _exit.changed(
        "exit-disabled", "    if probe.flags & (DISABLED | STOPPED) != 0:", "    if probe.flags & STOPPED != 0:"
    ),
    _exit.changed(
        "exit-stopped", "    if probe.flags & (DISABLED | STOPPED) != 0:", "    if probe.flags & DISABLED != 0:"
    ),
    _exit.changed("exit-recursion-uncounted", "        line.missed_recursion += 1\n", ""),
    _exit.changed("exit-unlock", "    unlock(task, bit)\n", ""),
    _exit.changed("exit-data", "    if item.data_size != 0:", "    if False:"),
    _exit.changed("exit-unarmed", "        if is_armed(node, index):", "        if True:"),
    _exit.changed(
        "exit-order",
        "        if is_armed(node, index):\n            run_exit(task, node, addressof(probes.items[index])",
        "        other = probes.count - 1 - index\n"
        "        if is_armed(node, other):\n            run_exit(task, node, addressof(probes.items[other])",
    ),
    _exit.changed("exit-real-caller", "    regs.ip = real_caller(node)", "    regs.ip = node.parent", TAILS),
    _exit.changed("exit-find", "node.stub != stub or is_deferred(node):", "False:", GREENLETS),
    _exit.changed("exit-rec", "    task.rec = outer\n    return parent", "    return parent"),
    _exit.changed("exit-node", "    node_return(task, node)\n", ""),
)

_adopted = Part("ftrace/hit/adopted_calls.py", ("tests/kprobes/test_kretprobes.py", CHANGING))

ADOPTED: tuple[Mutant, ...] = (
    _adopted.changed("exit-lost", "        lost_return(stub, frame)\n        trap()", "        return 0"),
    _adopted.changed("exit-unhooked", " or (node == null and load(addressof(unhooked)) == 0)", ""),
    _adopted.changed(
        "adopt-unclaimed", "    if not claim(node):\n        node_release(me, mine)\n        return False\n", ""
    ),
    _adopted.changed("adopt-first", " or node.made > made)", ")", ENDED),
    _adopted.changed("last-to-all", " or last_maker(slot, node.stub) == task", " or True", ENDED),
)

_made = Part("ftrace/hit/made.py", (ENDED,))

MADE: tuple[Mutant, ...] = (
    _made.changed("made-last", "    return node.made == of_slot(node.frame + OFF_STACK)[0]", "    return True"),
)

_recursion = Part("ftrace/hit/recursion.py", (NESTING, MISSES))

RECURSION: tuple[Mutant, ...] = (
    _recursion.changed("no-transition", "    if task.rec & transition == 0:", "    if False:"),
    _recursion.changed(
        "endless-transition",
        "        return transition\n    return 0",
        "        return transition\n    return transition",
    ),
    _recursion.changed("one-context", "family + NORMAL_BIT - task.context", "family + NORMAL_BIT", CALLBACKS),
    _recursion.changed("unlocks-nothing", "    task.rec &= ~bit\n", "    task.rec &= ~cast(u32, 0)\n"),
)

_quiesce = Part("ftrace/hit/quiesce.py", (ENTRY_EXIT, "tests/hazards/test_quiesce.py", TASKS))

QUIESCE: tuple[Mutant, ...] = (
    _quiesce.changed(
        "quiesce-waits-for-none",
        "        if task != me and not wait_for_task(task, lists, count):",
        "        if False:",
    ),
    _quiesce.changed("quiesce-one-serial", "- serial) < 2:", "- serial) < 1:", "tests/hazards/test_quiesce.py"),
    _quiesce.changed("quiesce-other-lists", "        if cast(u32, lists[index]) == inside:", "        if False:"),
    _quiesce.changed(
        "quiesce-each-other",
        "        if volatile_load(addressof(task.waiting)) != 0:",
        "        if False:",
        "tests/hazards/test_handlers.py",
        "tests/fprobe/test_inside_handlers.py",
    ),
    _quiesce.changed("pinned", "            if node.probes == probes:", "            if False:"),
)

_at_fork = Part("sandbox/threads/atfork.py", ("tests/hazards/test_forking_in_c.py",))
_fork = Part("sandbox/process/fork.py", ("tests/sandbox/test_fork_phases.py", "tests/hazards/test_forking.py"))

FORK: tuple[Mutant, ...] = (
    _at_fork.changed("fork-gil", "        state = save_thread()", "        pass"),
    _at_fork.changed("fork-writer", "    wait_for_writer(own, me)\n", ""),
    _at_fork.changed("fork-under-way", "    own.in_progress = 0\n", ""),
    _at_fork.changed("fork-child-writer", "        own.writer = 0\n", "        pass\n"),
    _fork.changed(
        "fork-order", "    insort(_in_child, (phase, call), key=itemgetter(0))", "    _in_child.append((phase, call))"
    ),
    _fork.changed("fork-failure", "        except BaseException:", "        except ZeroDivisionError:"),
    _fork.changed("fork-renew", "            lock._at_fork_reinit()", "            pass"),
    _fork.changed("fork-give", "        lock.release()\n", "        pass\n"),
    _fork.changed("fork-kernel-phase", "if phase is Phase.KERNEL]\n    last", "if phase is Phase.TASKS]\n    last"),
)
