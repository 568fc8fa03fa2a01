"""Hits in sub-interpreters: Python handlers, which are objects of the main interpreter, are not called there."""

from __future__ import annotations

import ctypes
import shutil

import pytest
from isolation import isolated
from programs import load_c
from sampled import sampled

import fprobe
import kprobes
import sandbox

try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

PROGRAM = "define i64 @leaf(i64 %x) { %r = add i64 %x, 1  ret i64 %r }"
CALLS = """
import ctypes, threading
call = ctypes.{prototype}(ctypes.c_long, ctypes.c_long)({address})
def calls():
    for i in range(50):
        assert call(i) == i + 1
        [object() for _ in range(10)]
{how}
"""
HOW = {
    "directly": "calls()",
    "in a thread": "thread = threading.Thread(target=calls); thread.start(); thread.join()",
}
PROTOTYPES = {"with the GIL": "PYFUNCTYPE", "without": "CFUNCTYPE"}


def create():
    """An interpreter in which threads can be started."""
    try:
        return interpreters.create(isolated=False)
    except TypeError:  # from Python 3.13 on
        return interpreters.create("legacy")


def run_elsewhere(source):
    other = create()
    failed = interpreters.run_string(other, source)
    assert not failed, failed
    interpreters.destroy(other)


def source_for(address, gil, how):
    return CALLS.format(prototype=PROTOTYPES[gil], address=address, how=HOW[how])


@isolated
@pytest.mark.parametrize("how", sampled(HOW, 1))
@pytest.mark.parametrize("gil", PROTOTYPES)
def test_a_python_handler_misses_the_hits_of_sub_interpreters(gil, how):
    module = sandbox.load(PROGRAM)
    seen = {}

    def entry(_fp, _ip, _ret, regs, _data):
        seen[len(seen)] = regs.di, [object() for _ in range(10)]
        return 1

    source = source_for(module["leaf"].address, gil, how)
    here = getattr(ctypes, PROTOTYPES[gil])(ctypes.c_long, ctypes.c_long)(module["leaf"].address)
    with fprobe.attach("leaf", entry=entry) as probe:
        for _ in range(3):
            run_elsewhere(source)
            for number in range(5):
                assert here(number) == number + 1
    assert (probe.hits, len(seen), probe.counts.missed_interpreter, probe.counts.missed) == (15, 15, 150, 150)
    assert [seen[index][0] for index in range(5)] == [*range(5)]


@isolated
def test_a_suspended_sub_interpreter_does_not_matter():
    """This thread has a state there, too, without a frame."""
    module = sandbox.load(PROGRAM)
    others = [interpreters.create() for _ in range(2)]
    with fprobe.attach("leaf", exit=lambda *_: None) as probe:
        assert ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_long)(module["leaf"].address)(1) == 2
    assert (probe.hits, probe.counts.missed) == (1, 0)
    for each in others:
        interpreters.destroy(each)


@isolated
@pytest.mark.parametrize("gil", PROTOTYPES)
def test_native_handlers_count_in_every_interpreter(gil):
    module = sandbox.load(PROGRAM)
    with fprobe.attach("leaf", action=fprobe.Count()) as probe:
        run_elsewhere(source_for(module["leaf"].address, gil, "directly"))
    assert (probe.hits, probe.counts.missed) == (50, 0)


@isolated
@pytest.mark.parametrize("gil", PROTOTYPES)
@pytest.mark.parametrize("optimized", [0, 1])
def test_python_handlers_of_kprobes_miss_the_hits_of_sub_interpreters(gil, optimized):
    module = sandbox.load(PROGRAM)
    seen = []
    kprobes.set_kprobes_optimization(optimized)
    with (
        kprobes.attach("leaf", pre=lambda _p, regs: seen.append(regs.di) or 0) as first,
        kprobes.attach_return("leaf", handler=lambda _ri, regs: seen.append(regs.ax) or 0) as second,
    ):
        kprobes.wait_for_kprobe_optimizer()
        run_elsewhere(source_for(module["leaf"].address, gil, "directly"))
        missed = seen, first.nmissed, second.probes[0].kp.nmissed
        assert missed == ([], 50, 50), missed
        assert ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_long)(module["leaf"].address)(7) == 8
    assert seen == [7, 8]


def _ctypes_callback(result, *parameters):
    return ctypes.CFUNCTYPE(result, *[ctypes.c_void_p] * len(parameters))


def _cffi_callback(result, *parameters):
    ffi = pytest.importorskip("cffi").FFI()
    return ffi.callback(f"{'int' if result else 'void'}({', '.join(['uintptr_t'] * len(parameters))})")


CALLBACKS = {"ctypes": _ctypes_callback, "cffi": _cffi_callback}


@isolated
@pytest.mark.parametrize("library", CALLBACKS)
def test_callbacks_of_python_functions_miss_the_hits_of_sub_interpreters(library):
    """As handlers they are C functions, which enter the interpreter by themselves."""
    module = sandbox.load(PROGRAM)
    kept = {}

    def keep(name, address):
        regs = fprobe.pt_regs.ctypes.from_address(address)
        kept[name] = (regs.di, regs.ax), [object() for _ in range(10)]
        return 0

    def entry(_fp, _ip, _ret, regs, _data):
        return keep("first", regs)

    def pre(_p, regs):
        return keep("second", regs)

    def handler(_ri, regs):
        return keep("third", regs)

    five = CALLBACKS[library](ctypes.c_int, "fp", "ip", "ret", "regs", "data")(entry)
    two, returns = (CALLBACKS[library](ctypes.c_int, "p", "regs")(each) for each in (pre, handler))
    with (
        fprobe.attach("leaf", entry=five) as first,
        kprobes.attach("leaf", pre=two) as second,
        kprobes.attach_return("leaf", handler=returns) as third,
    ):
        run_elsewhere(source_for(module["leaf"].address, "without", "directly"))
        assert kept == {}
        assert (first.counts.missed_interpreter, second.missed, third.probes[0].kp.nmissed) == (50, 50, 50)
        assert ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_long)(module["leaf"].address)(7) == 8
    assert (kept["first"][0][0], kept["second"][0][0], kept["third"][0][1]) == (7, 7, 8)


EMBEDS = r"""
extern void *PyThreadState_Get(void), *Py_NewInterpreter(void), *PyThreadState_Swap(void *);
extern void Py_EndInterpreter(void *);
extern int PyRun_SimpleString(const char *);
__attribute__((noipa)) long leaf(long x) { return x + 1; }
__attribute__((noipa)) long enters(long x) { Py_NewInterpreter(); return x; }
__attribute__((noipa)) long embeds(const char *source) {
    void *before = PyThreadState_Get();
    void *other = Py_NewInterpreter();
    long result = leaf(1) + PyRun_SimpleString(source);
    Py_EndInterpreter(other);
    PyThreadState_Swap(before);
    return result + leaf(2);
}
__attribute__((noipa)) long changes(long x) {
    void *before = PyThreadState_Get();
    enters(x);
    Py_EndInterpreter(PyThreadState_Get());
    PyThreadState_Swap(before);
    return x;
}
"""


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
@isolated
def test_an_interpreter_that_c_makes():
    module = load_c(EMBEDS)
    seen = []
    call = ctypes.PYFUNCTYPE(ctypes.c_long, ctypes.c_char_p)(module["embeds"].address)
    with fprobe.attach("leaf", entry=lambda *given: seen.append(given[3].di)) as probe:
        for _ in range(3):
            assert call(source_for(module["leaf"].address, "with the GIL", "directly").encode()) == 5
    assert (seen, probe.hits, probe.counts.missed_interpreter) == ([2] * 3, 3, 153)


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
@isolated
def test_a_call_that_returns_in_another_interpreter():
    module = load_c(EMBEDS)
    entered, left = [], []
    call = ctypes.PYFUNCTYPE(ctypes.c_long, ctypes.c_long)(module["changes"].address)
    handlers = {"entry": lambda *given: entered.append(given[3].di), "exit": lambda *_: left.append(1)}
    with fprobe.attach("enters", **handlers) as probe:
        assert call(4) == 4
    assert (entered, left, probe.hits, probe.counts.missed_interpreter) == ([4], [], 1, 1)
