"""Bare ftrace_ops: callbacks, their registers, locks and contexts, the sysctl (FT-15, 17, 36, 45, 50..54, 80)."""

from __future__ import annotations

from isolation import isolated


def _demo():
    import sandbox
    import sandbox.demo

    return sandbox.load(sandbox.demo.source(), name="demo")


@isolated
def test_ft15_a_callback_gets_ip_and_the_return_address_of_the_traced_function():
    from ftrace.core.ops import ftrace_ops, ftrace_set_filter, register_ftrace_function, unregister_ftrace_function
    from sandbox import symbol_table

    module = _demo()
    seen = []
    ops = ftrace_ops(lambda ip, parent, got, fregs: seen.append((ip, symbol_table.describe(parent), got, fregs.ip)))
    ftrace_set_filter(ops, "vfs_open")
    register_ftrace_function(ops)
    module["demo_main"](1)
    unregister_ftrace_function(ops)
    site = module.symbol("vfs_open").address
    assert seen and all(ip == site and got is ops and regs_ip == site + 5 for ip, _, got, regs_ip in seen)
    assert all("[demo]" in caller for _, caller, _, _ in seen)
    count = len(seen)
    module["demo_main"](1)
    assert len(seen) == count


@isolated
def test_ft17_full_registers_if_anybody_on_the_function_asked_for_them():
    from ftrace.core.ops import (
        ftrace_get_regs,
        ftrace_ops,
        ftrace_set_filter,
        register_ftrace_function,
        unregister_ftrace_function,
    )
    from ftrace.core.ops_flags import FTRACE_OPS_FL_SAVE_REGS

    module = _demo()
    seen = []
    plain = ftrace_ops(lambda *hit: seen.append(ftrace_get_regs(hit[3]) is not None))
    asking = ftrace_ops(lambda *_: None, FTRACE_OPS_FL_SAVE_REGS)
    for ops in (plain, asking):
        ftrace_set_filter(ops, "vfs_open")
    register_ftrace_function(plain)
    module["demo_main"](1)
    register_ftrace_function(asking)
    module["demo_main"](1)
    unregister_ftrace_function(asking)
    module["demo_main"](1)
    half = len(seen) // 3
    assert seen == [False] * half + [True] * half + [False] * half


@isolated
def test_ft45_one_ops_may_modify_ip_on_a_function():
    import errno

    from ftrace.core.ops import ftrace_ops, ftrace_set_filter, register_ftrace_function
    from ftrace.core.ops_flags import FTRACE_OPS_FL_IPMODIFY

    _demo()

    def refused(ops, expected):
        try:
            register_ftrace_function(ops)
        except OSError as error:
            return error.errno == expected
        return False

    first, second, third = (ftrace_ops(lambda *_: None, FTRACE_OPS_FL_IPMODIFY) for _ in range(3))
    ftrace_set_filter(first, "vfs_read")
    ftrace_set_filter(second, "vfs_*")
    register_ftrace_function(first)
    assert refused(second, errno.EBUSY)
    assert refused(third, errno.EINVAL)
    ftrace_set_filter(second, "vfs_write", reset=True)
    register_ftrace_function(second)
    try:
        ftrace_set_filter(second, "vfs_read")
    except OSError as error:
        assert error.errno == errno.EBUSY
    else:
        raise AssertionError("two ops modify ip of vfs_read")
    assert [location.name for location in second.selection().each()] == ["vfs_write"]


@isolated
def test_ft51_ft54_contexts_are_told_apart_and_do_not_block_each_other():
    from ftrace.core.ops import ftrace_ops, ftrace_set_filter, register_ftrace_function
    from ftrace.core.trace_recursion import ftrace_test_recursion_trylock, ftrace_test_recursion_unlock
    from sandbox.threads import contexts

    module = _demo()
    seen = []

    def callback(*_hit):
        context = contexts.current_context()
        bit = ftrace_test_recursion_trylock()
        seen.append((context, bit))
        if context == "normal":
            contexts.call_in("irq", target, [1, 0])
        ftrace_test_recursion_unlock(bit)

    target = module.symbol("kmalloc").address
    ops = ftrace_ops(callback)
    ftrace_set_filter(ops, "kmalloc")
    register_ftrace_function(ops)
    module["kmalloc"](1, 0)
    contexts.call_in("softirq", target, [1, 0])
    assert [context for context, _ in seen] == ["normal", "irq", "softirq"]
    assert len({bit for _, bit in seen}) == 3 and -1 not in {bit for _, bit in seen}
    assert contexts.current_context() == "normal" and contexts.preemptible()


@isolated
def test_ft80_ftrace_enabled_0_makes_every_site_a_nop_and_1_patches_again():
    import errno

    import fprobe
    from ftrace.core.ops import ftrace_ops, ftrace_set_filter, register_ftrace_function, unregister_ftrace_function
    from ftrace.core.ops_flags import FTRACE_OPS_FL_PERMANENT
    from ftrace.tracing.files.sysctl import ftrace_enabled, set_ftrace_enabled

    module = _demo()
    site = module.symbol("vfs_open").address
    with fprobe.attach("vfs_*", action=fprobe.Count()) as probe:
        module["demo_main"](1)
        before = probe.hits
        set_ftrace_enabled(0)
        assert module.texts[0].read(site, 5) == bytes.fromhex("0f1f440000") and not ftrace_enabled()
        with fprobe.attach("vfs_open", action=fprobe.Count()) as late:
            module["demo_main"](1)
            assert probe.hits == before and late.hits == 0
            set_ftrace_enabled(1)
            module["demo_main"](1)
            assert probe.hits == 2 * before and late.hits > 0
    permanent = ftrace_ops(lambda *_: None, FTRACE_OPS_FL_PERMANENT)
    ftrace_set_filter(permanent, "vfs_open")
    register_ftrace_function(permanent)
    for attempt in (lambda: set_ftrace_enabled(0),):
        try:
            attempt()
        except OSError as error:
            assert error.errno == errno.EBUSY and ftrace_enabled()
        else:
            raise AssertionError("switched off")
    unregister_ftrace_function(permanent)
    set_ftrace_enabled(0)
    try:
        register_ftrace_function(permanent)
    except OSError as error:
        assert error.errno == errno.EBUSY
    else:
        raise AssertionError("registered")
