"""The ways to have no probes at all: detach_all() and FPROBE_OFF."""

from __future__ import annotations

from isolation import isolated


@isolated
def test_detach_all_leaves_the_text_as_it_was_loaded():
    import fprobe
    import sandbox
    import sandbox.demo
    from ftrace.core.ops import ftrace_ops, ftrace_set_filter, register_ftrace_function

    module = sandbox.load(sandbox.demo.source(), name="demo")
    text = module.texts[0]
    before = text.read(text.base, text.size)
    probes = [fprobe.attach(pattern, action=fprobe.Count()).attach() for pattern in ("*", "vfs_*", "vfs_read")]
    probes.append(fprobe.attach("d*", entry=lambda *_: 0, exit=lambda *_: None).attach())
    ops = ftrace_ops(lambda *_: None)
    ftrace_set_filter(ops, "k*")
    register_ftrace_function(ops)
    assert text.read(text.base, text.size) != before
    fprobe.detach_all()
    assert text.read(text.base, text.size) == before
    assert not any(probe.fp.registered for probe in probes) and not ops.enabled
    fprobe.detach_all()


@isolated(FPROBE_OFF="1")
def test_with_fprobe_off_nothing_can_be_registered():
    import errno

    import fprobe
    import sandbox
    import sandbox.demo

    module = sandbox.load(sandbox.demo.source(), name="demo")
    try:
        fprobe.attach("*", action=fprobe.Count()).attach()
    except OSError as error:
        assert error.errno == errno.ENODEV and "FPROBE_OFF" in str(error)
    else:
        raise AssertionError("registered")
    assert module["demo_main"](1)


EVENTS = ("p:k/first vfs_read", "p:k/second vfs_read", "r:k/returned vfs_read", "f:k/entered vfs_read")


@isolated
def test_detach_all_disables_events_which_can_be_enabled_again():
    import fprobe
    import sandbox
    import sandbox.demo
    from fprobe.tracefs import tracefs

    def recorded() -> set[str]:
        tracefs.write("trace", "")
        module["demo_main"](1)
        text = tracefs.read("trace")
        return {name for line in EVENTS if f" {(name := line.split()[0].partition('/')[2])}: " in text}

    module = sandbox.load(sandbox.demo.source(), name="demo")
    before = module.texts[0].read(module.texts[0].base, module.texts[0].size)
    tracefs.write("dynamic_events", "\n".join(EVENTS))
    for _ in range(2):
        tracefs.write("events/k/enable", "1")
        assert recorded() == {"first", "second", "returned", "entered"}
        fprobe.detach_all()
        assert module.texts[0].read(module.texts[0].base, module.texts[0].size) == before
        assert tracefs.read("events/k/enable") == "0\n" and recorded() == set()
        tracefs.write("events/k/enable", "0")
    tracefs.write("dynamic_events", "")
    assert tracefs.read("dynamic_events") == ""


@isolated
def test_detach_all_disables_kprobes_on_function_entries():
    import fprobe
    import kprobes
    import sandbox
    import sandbox.demo

    module = sandbox.load(sandbox.demo.source(), name="demo")
    seen: list[str] = []
    probes = [kprobes.kprobe(symbol_name="vfs_read", pre_handler=lambda *_: seen.append("hit")) for _ in range(2)]
    for probe in probes:
        kprobes.register_kprobe(probe)
    fprobe.detach_all()
    module["demo_main"](1)
    assert not seen and all(probe.flags & kprobes.KPROBE_FLAG_DISABLED for probe in probes)
    for probe in probes:
        kprobes.disable_kprobe(probe)
        kprobes.enable_kprobe(probe)
    module["demo_main"](1)
    assert seen
    for probe in probes:
        kprobes.unregister_kprobe(probe)
