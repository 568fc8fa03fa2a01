"""HAZARDS 7: text."""

# ruff: noqa: ARG005  (the signature of a handler is given)

from __future__ import annotations

import pytest
from isolation import isolated
from programs import assert_untouched, basic, is_patched, site_bytes, site_of, text_of
from sampled import sampled

from sandbox.x86_64.encoding import NOP5


def write_like_a_debugger(address: int, data: bytes) -> None:
    """Through /proc/self/mem, as ptrace does: the page becomes this process's own copy."""
    with open("/proc/self/mem", "r+b", buffering=0) as memory:  # noqa: PTH123
        memory.seek(address)
        memory.write(data)


def writable_and_executable() -> set[tuple[int, int]]:
    from sandbox.memory.mappings import mappings

    return {(start, end) for start, end, permissions, _ in mappings() if "w" in permissions and "x" in permissions}


@isolated(shared=True)
def test_no_mapping_is_ever_writable_and_executable():
    import ctypes

    import fprobe
    from ftrace.core.sites.block import SiteBlock

    module = basic()
    ctypes.CFUNCTYPE(None)(lambda: None)
    before = writable_and_executable()  # ctypes' callbacks (libffi) live in such a page where the system allows it
    found = []
    call = SiteBlock._call

    def spying(self, function, *arguments):
        found.append(writable_and_executable())
        return call(self, function, *arguments)

    SiteBlock._call = spying
    with fprobe.attach("*", entry=lambda *hit: 0, exit=lambda *hit: None):
        module["leaf"](1)
        assert writable_and_executable() <= before
    assert len(found) > 5 and all(each <= before for each in found)


@isolated(shared=True)
def test_the_writable_view_is_closed_outside_a_batch():
    import fprobe
    from sandbox.memory.mappings import mappings

    module = basic()
    with fprobe.attach("*", entry=lambda *hit: 0):
        everything = mappings()
        names = {path for start, _, _, path in everything if start == module.texts[0].base}  # without memfd, any name
        views = [permissions for _, _, permissions, path in everything if path in names]
    assert sorted({permissions[:3] for permissions in views}) == ["---", "r-x"]


@pytest.mark.parametrize("forced", [0, 1])
@isolated(shared=True)
def test_a_debuggers_write_to_the_page_does_not_hide_ours(forced):
    """Such a page is a copy that the writable view no longer reaches."""
    import ctypes

    import fprobe
    from ftrace.core.runtime import runtime

    runtime().force_breakpoints = forced
    module = basic()
    site = site_of(module, "leaf")
    write_like_a_debugger(site + 5, ctypes.string_at(site + 5, 1))  # changes nothing, but the page is ours now
    before = text_of(module)
    for _ in range(3):
        with fprobe.attach("leaf", entry=lambda *hit: 0, exit=lambda *hit: None) as probe:
            assert is_patched(module, "leaf")
            assert module["loop"](10) == 10
        assert probe.hits == 10
        assert text_of(module) == before
    assert_untouched()


@isolated(shared=True)
def test_a_site_that_somebody_else_has_patched_is_refused_and_nothing_is_changed():
    """FT-58: pass 1 verifies every site."""
    import errno

    import fprobe

    module = basic()
    site = site_of(module, "other")
    write_like_a_debugger(site, b"\xcc")
    before = text_of(module)
    for handlers in ({"entry": lambda *hit: 0}, {"exit": lambda *hit: None}):
        probe = fprobe.attach("*", **handlers)
        try:
            probe.attach()
        except OSError as error:
            assert error.errno == errno.EINVAL and "other" in str(error) and "cc:1f:44:00:00" in str(error)
        else:
            raise AssertionError("patched over somebody else's breakpoint")
        assert not probe.fp.registered
        assert text_of(module) == before
    with fprobe.attach("leaf", entry=lambda *hit: 0) as probe:
        assert module["leaf"](1) == 2
    assert probe.hits == 1
    write_like_a_debugger(site, NOP5[:1])
    with fprobe.attach("*", entry=lambda *hit: 0) as probe:
        assert module["other"](1) == 3
    assert probe.hits == 1
    assert_untouched()


@isolated(shared=True)
def test_a_breakpoint_planted_while_probed_is_noticed_at_detach():
    import errno

    import fprobe

    module = basic()
    probe = fprobe.attach("leaf", entry=lambda *hit: 0).attach()
    jump = site_bytes(module, "leaf")
    write_like_a_debugger(site_of(module, "leaf"), b"\xcc")
    try:
        probe.detach()
    except OSError as error:
        assert error.errno == errno.EINVAL
    else:
        raise AssertionError("a debugger's breakpoint went unnoticed")
    write_like_a_debugger(site_of(module, "leaf"), jump)
    assert probe.fp.registered
    probe.detach()
    assert site_bytes(module, "leaf") == NOP5
    assert_untouched()


@pytest.mark.parametrize("times", [6, pytest.param(20, marks=pytest.mark.stress)])
@isolated(shared=True)
def test_text_is_identical_after_the_last_of_many_detaches_in_any_order(times):
    import random

    import fprobe

    module = basic()
    before = text_of(module)
    shuffle = random.Random(7)
    for _ in range(times):
        probes = [
            fprobe.attach(pattern, entry=lambda *hit: 0, exit=lambda *hit: None).attach()
            for pattern in shuffle.choices(["leaf", "l*", "*", "[fo]*", "twice"], k=6)
        ]
        assert module["twice"](1) == 3
        shuffle.shuffle(probes)
        for probe in probes:
            assert text_of(module) != before
            probe.detach()
        assert text_of(module) == before


@isolated(shared=True)
def test_detach_all_leaves_the_text_as_loaded():
    import fprobe

    module = basic()
    before = text_of(module)
    probes = [fprobe.attach("*", entry=lambda *hit: 0).attach() for _ in range(5)]
    fprobe.detach_all()
    assert text_of(module) == before and not any(probe.fp.registered for probe in probes)
    for probe in probes:
        probe.detach()  # nothing left to do


@isolated(FPROBE_OFF="1")
def test_the_environment_variable_switches_all_probing_off():
    import errno

    import fprobe

    module = basic()
    try:
        fprobe.attach("leaf", entry=lambda *hit: 0).attach()
    except OSError as error:
        assert error.errno == errno.ENODEV and "FPROBE_OFF" in str(error)
    else:
        raise AssertionError("attached")
    assert module["leaf"](1) == 2


@pytest.mark.parametrize("flavour", sampled(["fentry", "patchable", "mcount"], 2))
@pytest.mark.parametrize("forced", [0, 1])
@isolated(shared=True)
def test_flavours_of_stubs(flavour, forced):
    import fprobe
    from ftrace.core.runtime import runtime

    runtime().force_breakpoints = forced
    module = basic(flavour=flavour)
    before = text_of(module)
    back, arguments = [], []
    with fprobe.attach(
        ["leaf", "twice", "nine"],
        entry=lambda fp, ip, ret, regs, data: arguments.append(regs.di) and 0,
        exit=lambda fp, ip, ret, regs, data: back.append(regs.ax),
    ) as probe:
        assert module["twice"](5) == 7
        assert module["nine"](*range(1, 10)) == 1013
    assert probe.fp.errors.first is None
    assert arguments == [5, 5, 6, 1] and back == [6, 7, 7, 1013]
    with fprobe.attach("*", action=fprobe.Stat(), nr_maxactive=1000) as probe:
        assert module["factorial"](10) == 3628800
        assert module["loop"](100) == 100
    assert probe.hits == 10 + 101 and probe.counts.missed == 0
    assert text_of(module) == before


@isolated(shared=True)
def test_fork_the_childs_text_is_its_own():
    """A parent's later patch must not run in the child, nor the child's in the parent."""
    import os

    import fprobe

    module = basic()
    before = text_of(module)
    with fprobe.attach("leaf", entry=lambda *hit: 0, exit=lambda *hit: None) as probe:
        module["leaf"](1)
        child = os.fork()
        if not child:
            status = 1
            try:
                assert module["leaf"](1) == 2 and probe.hits == 2
                probe.detach()
                assert text_of(module) == before
                with fprobe.attach("twice", exit=lambda *hit: None) as other:
                    assert module["twice"](1) == 3
                assert other.hits == 1
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert is_patched(module, "leaf") and not is_patched(module, "twice")
        module["leaf"](1)
        assert probe.hits == 2
    assert_untouched()


@pytest.mark.stress
@isolated(shared=True)
def test_fork_in_the_midst_of_hooked_calls_and_batches():
    import ctypes
    import os
    import threading
    import time

    import fprobe

    module = basic()
    stop = threading.Event()

    def churn():
        while not stop.is_set():
            with fprobe.attach("[lt]*", action=fprobe.Stat(), nr_maxactive=50):
                pass
            time.sleep(0.001)  # or the lock goes back to this thread each time, and the fork waits for minutes

    def run():
        while not stop.is_set():
            assert module["loop"](1000) == 1000

    threads = [threading.Thread(target=target, daemon=True) for target in (churn, run)]
    for thread in threads:
        thread.start()
    pids = []

    def forks(x):
        pids.append(os.fork())
        return x

    body = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(forks)
    address = ctypes.cast(body, ctypes.c_void_p).value
    with fprobe.attach("apply", exit=lambda *hit: None) as probe:
        for i in range(20):
            assert module["apply"](address, i) == i  # in the child, too, the hooked call returns
            if pids[-1] == 0:
                ok = module["loop"](10) == 10 and probe.hits == i + 1
                os._exit(0 if ok else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(pids[-1], 0)[1]) == 0
    stop.set()
    for thread in threads:
        thread.join()
    assert_untouched()
