"""Code of llvmlite's engines comes and goes under probes of all kinds; addresses are used again."""

from __future__ import annotations

import ctypes
import gc
import tempfile
import threading
import time
from pathlib import Path

import pytest
from isolation import isolated

TIME = 120
IR = "define i64 @f(i64 %a) { %r = mul i64 %a, 3\n %s = add i64 %r, 7\n ret i64 %s }"


def _machine():
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding.Target.from_default_triple().create_target_machine(codemodel="small", reloc="pic")


def _call(address, value):
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)(value)


def _mcjit():
    from llvmlite import binding

    engine = binding.create_mcjit_compiler(binding.parse_assembly(IR), _machine())
    return engine, engine.get_function_address("f")


def _in_mcjit(value):
    engine, address = _mcjit()
    result = _call(address, value)
    engine.close()
    return result


def _in_lljit(value):
    from llvmlite import binding

    jit = binding.create_lljit_compiler(_machine())
    library = binding.JITLibraryBuilder().add_ir(IR).export_symbol("f").link(jit, "x")
    result = _call(library["f"], value)
    del library
    gc.collect()
    jit.close()
    return result


@pytest.mark.stress
@isolated(timeout=TIME)
def test_probes_of_an_engine_that_is_closed_are_gone_and_its_address_can_be_probed_again():
    import fprobe
    import kprobes

    for _ in range(3):
        engine, address = _mcjit()
        met = kprobes.attach("jit:f", action=kprobes.Count()).attach()
        returned = kprobes.attach_return("jit:f", action=kprobes.Count()).attach()
        called = fprobe.attach("jit:f", entry=lambda *_: 0, exit=lambda *_: None).attach()
        assert _call(address, 5) == 22
        assert (met.hits, returned.hits, called.hits) == (1, 1, 1)
        engine.close()
        assert met.p.flags & kprobes.KPROBE_FLAG_GONE
        assert returned.rp.kp.flags & kprobes.KPROBE_FLAG_GONE
        for attachment in (met, returned, called):
            attachment.detach()
    assert _in_mcjit(5) == 22


@isolated(timeout=TIME)
def test_probes_follow_engines_that_come_and_go():
    import fprobe
    import kprobes

    with (
        fprobe.attach("jit:f", action=fprobe.Count()) as called,
        kprobes.attach("jit:f", action=kprobes.Count()) as met,
        kprobes.attach_return("jit:f", action=kprobes.Count()) as returned,
    ):
        results = [run(value) for value in range(4) for run in (_in_mcjit, _in_lljit)]
    assert results == [value * 3 + 7 for value in range(4) for _ in "12"]
    assert (called.counts.hits, called.counts.missed) == (8, 0)
    assert (met.hits, returned.hits) == (8, 8)


@isolated(timeout=TIME)
def test_this_packages_own_code_is_not_taken_for_somebody_elses():
    import fprobe
    import kprobes
    import sandbox
    from sandbox.images import compiled

    module = sandbox.load("define i64 @own(i64 %a) { ret i64 %a }", name="own")
    with fprobe.attach("own", entry=lambda *_: 0), kprobes.attach_return("own", lambda *_: None):
        assert module["own"](3) == 3
        assert compiled.source.images() == []


@isolated(timeout=TIME)
def test_code_of_others_where_a_module_of_ours_was_is_theirs():
    """Also where the module's variables were: what remains claimed there hides the function from probes."""
    import fprobe
    import sandbox
    from sandbox.symbols import gdbjit

    source = "@kept = global i64 5\n@table = constant [2 x i64] [i64 1, i64 2]\ndefine i64 @own(i64 %a) { ret i64 %a }"
    for _ in range(4):
        before = set(gdbjit.own_code)
        module = sandbox.load(source, name="own")
        assert len(gdbjit.own_code - before) > 1
        module.unload()
        assert gdbjit.own_code == before
        engine, address = _mcjit()
        with fprobe.attach("jit:f", action=fprobe.Count()) as called:
            assert _call(address, 5) == 22
        assert called.hits == 1
        engine.close()


def _compiled_handler(number):
    """A native handler that no other registration has compiled: its source is its own."""
    import kprobes

    namespace = {"kprobes": kprobes}
    source = f"def handler(p, regs):\n    return {number} & 0\n"
    path = Path(tempfile.mkdtemp()) / f"handler{number}.py"
    path.write_text(source)
    exec(compile(source, path, "exec"), namespace)
    return kprobes.native(namespace["handler"])


@pytest.mark.stress
@isolated(timeout=TIME)
def test_engines_close_while_another_thread_registers_probes_that_have_to_be_compiled():
    import kprobes
    import sandbox

    module = sandbox.load("define i64 @own(i64 %a) { ret i64 %a }", name="own")
    stop, done = threading.Event(), []

    def register():
        while not stop.is_set():
            with kprobes.attach("own:own", pre=_compiled_handler(len(done))):
                module["own"](1)
            done.append(1)

    with kprobes.attach("jit:f", action=kprobes.Count()) as met:
        thread = threading.Thread(target=register)
        thread.start()
        for value in range(12):
            assert _in_mcjit(value) == value * 3 + 7
        stop.set()
        thread.join(60)
    assert not thread.is_alive()
    assert done
    assert met.hits == 12


def _ours():
    """How many descriptors are open, and how many mappings of code of engines, and of what probes have made for it, there are."""
    named = sum("memfd:jit" in line for line in Path("/proc/self/maps").read_text().splitlines())
    return len(list(Path("/proc/self/fd").iterdir())), named


@pytest.mark.stress
@isolated(timeout=TIME)
def test_probed_engines_take_no_descriptor_each_and_leave_no_mapping():
    """Many live at once, as the functions of Numba do; then they are closed, while the probes remain."""
    import fprobe
    import kprobes

    engines, seen = [], []
    with (
        fprobe.attach("jit:f", action=fprobe.Stat()) as calls,
        kprobes.attach_return("jit:f", action=kprobes.Count()),
    ):
        engine, address = _mcjit()  # the first jump brings the file of the landings
        kprobes.wait_for_kprobe_optimizer()
        assert _call(address, 5) == 22
        engine.close()
        while _ours()[1]:
            time.sleep(0.01)
        before = _ours()
        for _ in range(3):
            for _ in range(12):
                engine, address = _mcjit()
                assert _call(address, 5) == 22
                engines.append(engine)
            seen.append(_ours())
            while engines:
                engines.pop().close()
            while _ours() != before:  # until the test's time is over
                time.sleep(0.01)
    assert calls.hits == 37
    assert seen[1:] == seen[:1] * 2 and seen[0][0] - before[0] <= 2, seen
