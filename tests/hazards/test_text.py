"""HAZARDS 7: text pages, what denies them, and who else writes to them."""

from __future__ import annotations

from isolation import isolated

STRADDLING = """target triple = "x86_64-unknown-linux-gnu"
define i64 @plain(i64 %a) noinline {
  %r = mul i64 %a, 3
  ret i64 %r
}
!llvm.module.flags = !{!0}
!0 = !{i32 8, !"cf-protection-branch", i32 1}
"""


@isolated(FPROBE_DENY="memfd")
def test_without_memfd_text_is_kept_on_a_file():
    from sandbox import memory

    assert memory.backing_kind() == "file"
    _attach_everywhere()


@isolated(FPROBE_DENY="membarrier")
def test_without_membarrier_cores_are_synced_by_changing_a_pages_protection():
    from sandbox import memory

    assert memory.barrier_page()
    _attach_everywhere()


@isolated(FPROBE_DENY="membarrier,memfd")
def test_without_either():
    _attach_everywhere()


def _attach_everywhere():
    import fprobe
    import sandbox
    import sandbox.demo

    module = sandbox.load(sandbox.demo.source(), name="demo")
    text = module.texts[0].read(module.texts[0].base, module.texts[0].size)
    expected = module["demo_main"](5)
    with fprobe.attach("*", exit=lambda *_: None, nr_maxactive=10_000) as probe:
        assert module["demo_main"](5) == expected
    assert probe.hits > 100 and probe.counts.missed == 0
    assert module.texts[0].read(module.texts[0].base, module.texts[0].size) == text


@isolated
def test_no_mapping_is_ever_writable_and_executable():
    import llvmlite.binding  # which makes a ctypes callback, and so libffi a page of closures

    import fprobe
    import sandbox
    import sandbox.demo
    from sandbox import memory

    assert llvmlite.binding
    of_others = {entry for entry in memory.mappings() if "w" in entry[2] and "x" in entry[2]}
    module = sandbox.load(sandbox.demo.source(), name="demo")
    seen = []

    def look(*_hit):
        found = {entry for entry in memory.mappings() if "w" in entry[2] and "x" in entry[2]}
        seen.append(found - of_others)

    with fprobe.attach("vfs_open", entry=look, max_hits=3):
        module["demo_main"](5)
        with module.texts[0].writable():
            look()
    assert len(seen) == 4, len(seen)
    assert not any(seen), seen


@isolated
def test_a_page_that_a_debugger_has_written_to_is_patched_all_the_same():
    """The write copies the page, after which the writable alias no longer reaches it."""
    import fprobe
    import sandbox
    import sandbox.demo
    from sandbox import memory

    module = sandbox.load(sandbox.demo.source(), name="demo")
    function = module.symbol("vfs_open")
    last = function.end - 1
    memory.write_through_kernel(last, module.texts[0].read(last, 1))  # as planting a breakpoint there and taking it out
    expected = module["demo_main"](5)
    for _ in range(2):
        with fprobe.attach("vfs_*", action=fprobe.Count()) as probe:
            assert module.texts[0].read(function.address, 1) == b"\xe9"
            assert module["demo_main"](5) == expected
        assert probe.hits > 0
        assert module.texts[0].read(function.address, 5) == bytes.fromhex("0f1f440000")


@isolated
def test_a_site_that_somebody_else_has_patched_is_refused_and_nothing_is_changed():
    """FT-58: every site is verified before any is written."""
    import errno

    import fprobe
    import sandbox
    import sandbox.demo
    from sandbox import memory

    module = sandbox.load(sandbox.demo.source(), name="demo")
    function = module.symbol("vfs_open")
    memory.write_through_kernel(function.address, b"\xcc")
    before = module.texts[0].read(module.texts[0].base, module.texts[0].size)
    try:
        fprobe.attach("vfs_*", action=fprobe.Count()).attach()
    except OSError as error:
        assert error.errno == errno.EINVAL and "vfs_open" in str(error) and "cc:1f:44:00:00" in str(error)
    else:
        raise AssertionError("attached over somebody else's breakpoint")
    assert module.texts[0].read(module.texts[0].base, module.texts[0].size) == before
    with fprobe.attach("vfs_read", action=fprobe.Count()):
        pass


@isolated
def test_a_thread_that_blocks_sigtrap_is_named_when_breakpoints_are_needed():
    """HAZARDS 2: a breakpoint in it would kill the process."""
    import errno
    import signal
    import threading

    import fprobe
    import sandbox

    module = sandbox.load(STRADDLING, name="straddling")
    assert module.sites[0] & 7 == 4
    ready, done = threading.Event(), threading.Event()

    def block():
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTRAP})
        ready.set()
        done.wait()

    thread = threading.Thread(target=block)
    thread.start()
    ready.wait()
    try:
        fprobe.attach("plain", action=fprobe.Count()).attach()
    except OSError as error:
        assert error.errno == errno.EBUSY and str(thread.native_id) in str(error)
    else:
        raise AssertionError("patched with a breakpoint")
    finally:
        done.set()
        thread.join()
    with fprobe.attach("plain", action=fprobe.Count()) as probe:
        assert module["plain"](4) == 12
    assert probe.hits == 1


@isolated
def test_somebody_replaces_our_handler_later_and_is_warned_about():
    """HAZARDS 2: checked at each registration."""
    import signal
    import warnings

    import fprobe
    import sandbox

    module = sandbox.load(STRADDLING, name="straddling")
    with fprobe.attach("plain", action=fprobe.Count()):
        module["plain"](1)
    signal.signal(signal.SIGTRAP, lambda *_: None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with fprobe.attach("plain", action=fprobe.Count()):
            pass
    assert any("signal 5" in str(warning.message) for warning in caught)
