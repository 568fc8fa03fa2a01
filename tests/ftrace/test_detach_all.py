"""The ways to have no probes at all: detach_all() and FPROBE_OFF."""

from __future__ import annotations

from isolation import isolated


@isolated
def test_detach_all_leaves_the_text_as_it_was_loaded():
    import fprobe
    import sandbox
    import sandbox.demo
    from ftrace.ops import ftrace_ops, ftrace_set_filter, register_ftrace_function

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
