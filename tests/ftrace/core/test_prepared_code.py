"""llvmlite modules that were prepared: their functions are probed by stubs, whichever engine compiles them."""

from __future__ import annotations

import ctypes
import gc

import pytest
from isolation import isolated
from sampled import sampled

TIME = 60
IR = """
define i64 @f(i64 %a) {
  %r = mul i64 %a, 3
  %s = add i64 %r, 7
  ret i64 %s
}
define i64 @g(i64 %a) {
  %r = call i64 @f(i64 %a)
  ret i64 %r
}
"""


def _machine():
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding.Target.from_default_triple().create_target_machine(codemodel="small", reloc="pic")


def _mcjit(**options):
    """An engine with the module, the addresses of f and g, and what closes it."""
    from llvmlite import binding

    import sandbox

    engine = binding.create_mcjit_compiler(sandbox.prepare(binding.parse_assembly(IR), **options), _machine())
    return [engine.get_function_address(name) for name in "fg"], engine.close


def _lljit(**options):
    from llvmlite import binding

    import sandbox

    jit = binding.create_lljit_compiler(_machine())
    builder = binding.JITLibraryBuilder().add_ir(sandbox.prepare(IR, **options))
    library = [builder.export_symbol("f").export_symbol("g").link(jit, "x")]

    def close():
        library.clear()
        gc.collect()
        jit.close()

    return [library[0]["f"], library[0]["g"]], close


ENGINES = {"mcjit": _mcjit, "lljit": _lljit}


def _call(address, value):
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)(value)


def _blocks():
    from ftrace.core.tracer import tracer

    return {type(block).__name__ for block in tracer().table.of_images}


@pytest.mark.stress
@pytest.mark.parametrize("engine", sampled(ENGINES, 1))
@isolated(timeout=TIME)
def test_compiled_before_attaching_and_closed_under_the_probes(engine):
    import fprobe
    import kprobes

    for _ in range(2):
        (_, g), close = ENGINES[engine]()
        met = kprobes.attach("jit:f", action=kprobes.Count()).attach()
        called = fprobe.attach("jit:*", action=fprobe.Stat()).attach()
        returned = kprobes.attach_return("jit:g", action=kprobes.Count()).attach()
        assert _call(g, 5) == 22
        assert (called.hits, called.counts.missed, met.hits, returned.hits) == (2, 0, 1, 1)
        assert (sorted(called.functions), called.skipped, _blocks()) == (["f", "g"], [], {"PreparedBlock"})
        close()
        assert met.p.flags & kprobes.KPROBE_FLAG_GONE
        assert returned.rp.kp.flags & kprobes.KPROBE_FLAG_GONE
        for attachment in (met, called, returned):
            attachment.detach()


@pytest.mark.parametrize("engine", sampled(ENGINES, 1))
@isolated(timeout=TIME)
def test_compiled_after_attaching(engine):
    import fprobe

    with fprobe.attach("jit:f", entry=lambda *_: 0, exit=lambda *_: None) as called:
        for value in range(3):
            (_, g), close = ENGINES[engine]()
            assert _call(g, value) == value * 3 + 7
            assert _blocks() == {"PreparedBlock"}
            close()
    assert (called.counts.hits, called.counts.missed) == (3, 0)


@isolated(timeout=TIME)
def test_a_function_without_a_stub_beside_one_that_has_one():
    import fprobe

    (f, g), close = _mcjit(notrace=["f"])
    with fprobe.attach("jit:*", action=fprobe.Count()) as called:
        assert _call(g, 5) == 22
        assert _blocks() == {"PreparedBlock", "DetouredBlock"}
    assert called.hits == 2
    assert ctypes.string_at(g, 5) == bytes.fromhex("0f1f440008")
    assert _call(f, 5) == 22
    close()


@isolated(timeout=TIME)
def test_kprobes_on_a_stub_join_the_location_and_switching_off_leaves_them_alone():
    import fprobe
    import kprobes
    from ftrace.tracing.files.sysctl import set_ftrace_enabled

    (f, g), close = _mcjit()
    with kprobes.attach(g, action=kprobes.Count()) as met:
        with fprobe.attach("jit:*", action=fprobe.Count()) as called:
            _call(g, 1)
        set_ftrace_enabled(0)
        set_ftrace_enabled(1)
        with fprobe.attach("jit:f", action=fprobe.Count()):
            _call(g, 1)
    assert (met.hits, called.hits) == (2, 2)
    assert ctypes.string_at(f, 5) == ctypes.string_at(g, 5) == bytes.fromhex("0f1f440008")
    close()
