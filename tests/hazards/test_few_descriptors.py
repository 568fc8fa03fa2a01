"""HAZARDS 10: no free descriptor, at fork and at the first use of something; an error is no answer that is kept."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import resource
import tempfile
import threading
import time
from pathlib import Path

import pytest
from isolation import TESTS, isolated, run_source
from programs import basic, writable_and_executable
from sampled import in_stress, sampled

import fprobe
import kprobes
from sandbox.elf.unwinder import landing_pads
from sandbox.images import process_text
from sandbox.memory import mappings as memory
from sandbox.memory.mappings import PAGE
from sandbox.memory.scattered import ScatteredText
from sandbox.symbols.libraries import libraries

ROUNDS = 8


class Descriptors:
    """All but `free` descriptors that the process may have are taken, until `give_back()`."""

    def __init__(self, free):
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        self._taken = []
        while True:
            try:
                self._taken.append(os.dup(0))
            except OSError:
                break
        for _ in range(free):
            os.close(self._taken.pop())

    def give_back(self):
        while self._taken:
            os.close(self._taken.pop())


def nothing(*_hit):
    return 0


def change_probes():
    """Arm and disarm a site, a breakpoint and a jump."""
    with fprobe.attach("leaf", entry=nothing, exit=nothing):
        pass
    kp = kprobes.kprobe(symbol_name="other", offset=1, pre_handler=nothing)
    try:
        kprobes.register_kprobe(kp)
        kprobes.wait_for_kprobe_optimizer()
        kprobes.unregister_kprobe(kp)
    except OSError as error:
        if error.errno != errno.EILSEQ:
            raise


def threads_that_call(module, number=2):
    stop, wrong = threading.Event(), []

    def call():
        while not stop.is_set():
            if module["loop"](100) != 100 or module["other"](1) != 3:
                wrong.append(1)

    threads = [threading.Thread(target=call) for _ in range(number)]
    for thread in threads:
        thread.start()

    def end():
        stop.set()
        for thread in threads:
            thread.join()
        return not wrong

    return end


def lives_on(module, probe, flags):
    """In the child: what was probed is, and stays so while the parent changes its own; threads and probes can be had."""
    flags[0] = 1
    hits = probe.hits
    end = threads_that_call(module)
    while not flags[1]:
        time.sleep(0.001)
    assert module["leaf"](1) == 2 and probe.hits > hits
    change_probes()
    assert end()
    probe.detach()
    hits = probe.hits
    assert module["leaf"](1) == 2 and probe.hits == hits
    return True


def forked_with_few(module, probe):
    flags = mmap.mmap(-1, PAGE)
    child = os.fork()
    if not child:
        status = 1
        try:
            status = not lives_on(module, probe, flags)
        finally:
            os._exit(status)
    while not flags[0] and os.waitpid(child, os.WNOHANG) == (0, 0):
        time.sleep(0.001)
    thread = threading.Thread(target=change_probes, daemon=True)  # no lock is still this thread's own
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    flags[1] = 1
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@isolated(timeout=60)
@pytest.mark.parametrize("free", [0, pytest.param(1, marks=pytest.mark.stress), in_stress(2)])
def test_fork_with_few_descriptors_leaves_both_sides_probed_with_text_of_their_own(free):
    module = basic()
    with fprobe.attach("leaf", entry=nothing) as probe:
        change_probes()
        end = threads_that_call(module)
        few = Descriptors(free)
        for _ in range(ROUNDS):
            forked_with_few(module, probe)
        few.give_back()
        assert end()


@isolated(timeout=60)
@pytest.mark.parametrize("free", sampled([0, 1, 2], 1))
def test_few_descriptors_before_the_first_probe_refuse_it_or_not_and_nothing_is_lost(free):
    module = basic()
    assert module["leaf"](1) == 2  # what a call imports is loaded
    few = Descriptors(free)
    try:
        fprobe.attach("leaf", entry=nothing).detach()
    except OSError as error:
        assert error.errno == errno.EMFILE
    child = os.fork()
    if not child:
        os._exit(module["leaf"](1) != 2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    few.give_back()
    with fprobe.attach("leaf", entry=nothing) as probe:
        forked_with_few(module, probe)


_FIRST_KPROBE_FAILS = """
import sys
sys.path[:0] = {paths!r}
from programs import basic
from test_few_descriptors import Descriptors
import kprobes
probe = kprobes.attach(basic().symbol("leaf").address, action=kprobes.Count())
few = Descriptors(1)
try:
    probe.attach()
except OSError as error:
    print(error.strerror)
"""


@pytest.mark.stress
def test_a_first_kprobe_that_fails_leaves_nothing_to_do_at_exit():
    """What restores text at exit was there, and what it needs was not: a traceback."""
    paths = [str(Path(__file__).parent), str(TESTS)]
    done = run_source(_FIRST_KPROBE_FAILS.format(paths=paths))
    assert (done.stdout, done.stderr, done.returncode) == ("Too many open files\n", "", 0)


@isolated
def test_text_is_mapped_without_a_descriptor_and_never_writable_and_executable():
    before = writable_and_executable()  # of libffi, for the callbacks of others
    near = ctypes.cast(ctypes.CDLL(None).strtol, ctypes.c_void_p).value
    text = memory.allocate_text((near, near), 2 * PAGE, "few")
    text.write(text.base, b"kept")
    few = Descriptors(0)
    child = os.fork()
    text.write(text.base + PAGE, bytes.fromhex("b807000000c3" if child else "b808000000c3"))
    value = ctypes.CFUNCTYPE(ctypes.c_int)(text.base + PAGE)()
    if not child:
        os._exit(value)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 8
    few.give_back()
    assert ctypes.CFUNCTYPE(ctypes.c_int)(text.base + PAGE)() == value == 7 and text.read(text.base, 4) == b"kept"
    assert writable_and_executable() == before
    text.unmap()
    assert not any(start <= text.base < end for start, end, _, _ in memory.mappings())


@isolated
def test_pages_at_chosen_addresses_are_unshared_without_a_free_descriptor():
    text = ScatteredText("scattered")
    text.place(0x1234_5678_0000, text.new_page())
    few = Descriptors(0)
    child = os.fork()
    if not child:
        text.write(0x1234_5678_0000, b"child")
        os._exit(ctypes.string_at(0x1234_5678_0000, 5) != b"child")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert ctypes.string_at(0x1234_5678_0000, 5) == bytes(5)
    few.give_back()


@isolated
def test_symbols_that_could_not_be_read_are_read_the_next_time():
    library = process_text.library_called("libz")
    few = Descriptors(0)
    with pytest.raises(OSError, match="open files") as caught:
        _ = library.symbols
    assert caught.value.errno == errno.EMFILE
    few.give_back()
    assert any(symbol.name == "crc32" for symbol in library.symbols)


@isolated
def test_the_unwinder_that_could_not_be_loaded_is_loaded_the_next_time():
    """Without it a jump would be put over the place where an exception lands."""
    from sandbox.elf import unwinder

    few = Descriptors(0)
    if not any("libgcc_s" in library.name for library in libraries()):
        with pytest.raises(OSError, match="Too many open files"):
            landing_pads(process_text.symbol_named("libz:crc32").address)
    few.give_back()
    assert unwinder.unwinder() is not None


@isolated
def test_a_key_of_compiled_code_is_not_made_of_a_source_that_could_not_be_read():
    import importlib.util
    import linecache

    from sandbox.native import Unit
    from sandbox.native.back.fingerprint import fingerprint

    file = Path(tempfile.mkdtemp()) / "natively.py"
    file.write_text("from sandbox.native import i64, native\n@native(eager=False)\ndef one() -> i64:\n    return 1\n")
    spec = importlib.util.spec_from_file_location("natively", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    unit = Unit("natively", [module.one])
    fingerprint(Unit("others"))  # which reads the compiler's own sources
    linecache.clearcache()
    few = Descriptors(0)
    with pytest.raises(OSError) as caught:
        fingerprint(unit)
    assert caught.value.errno == errno.EMFILE
    few.give_back()
    assert module.one.text.lines == tuple(file.read_text().splitlines(keepends=True))
    assert fingerprint(unit)
