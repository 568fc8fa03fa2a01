"""Fprobes on the code of Numba: every program gives its result, and hits are as many as calls."""

from __future__ import annotations

import pytest
from isolation import NUMBA, isolated, run_forked
from later import later
from sampled import sampled

later("numba", "numba is not installed: `pip install fprobe[targets]`; it has no wheels for some Pythons")

TIME = 120


def _names(test):
    """What stands before the names of functions that are defined in `test`."""
    return f"numba:{__name__}.{test.__name__}.<locals>"


@pytest.mark.stress
@isolated(modules=NUMBA, timeout=TIME)
def test_entry_and_exit_of_every_call_are_seen_and_results_are_as_they_were():
    import numpy as np
    from numba import njit

    import fprobe

    @njit
    def total(a):
        s = 0.0
        for i in range(a.shape[0]):
            s += a[i]
        return s

    @njit
    def fact(n):
        return 1 if n < 2 else n * fact(n - 1)

    doubles, floats = np.ones(5), np.ones(7, np.float32)
    assert (total(doubles), total(floats), fact(5)) == (5, 7, 120)
    prefix = _names(test_entry_and_exit_of_every_call_are_seen_and_results_are_as_they_were)
    returned = []
    with (
        fprobe.attach(f"{prefix}.total", entry=lambda *_: 0, exit=lambda *_: returned.append(1)) as calls,
        fprobe.attach(f"{prefix}.*", action=fprobe.Stat()) as stat,
    ):
        assert (total(doubles), total(floats), fact(5)) == (5, 7, 120)
    assert (calls.counts.hits, calls.counts.missed, len(returned)) == (2, 0, 2)
    assert sorted(one.hits for one in stat.action.functions().values()) == [1, 1, 5]


@pytest.mark.stress
@isolated(modules=NUMBA, timeout=TIME)
def test_what_is_compiled_after_attaching_is_probed_from_its_first_call():
    from numba import float64, njit
    from numba.experimental import jitclass

    import fprobe
    import kprobes

    @njit
    def later(x):
        return x * 2 + 1

    @jitclass([("value", float64)])
    class Cell:
        def __init__(self, value):
            self.value = value

        def add(self, x):
            self.value += x
            return self.value

    prefix = _names(test_what_is_compiled_after_attaching_is_probed_from_its_first_call)
    with (
        fprobe.attach(f"{prefix}.later", action=fprobe.Count()) as entered,
        kprobes.attach(f"{prefix}.later", action=kprobes.Count()) as met,
        fprobe.attach(f"{prefix}.Cell.add", action=fprobe.Count()) as added,
    ):
        assert (entered.hits, met.hits, added.hits) == (0, 0, 0)
        assert (later(1), later(2)) == (3, 5)
        for attached in (entered, met):  # which is refused, and ends nothing
            with pytest.raises(OSError, match="already registered"):
                attached.attach()
        assert later(0.5) == 2.0
        cell = Cell(1.0)
        assert (cell.add(2.0), cell.add(3.0)) == (3.0, 6.0)
    assert (entered.hits, met.hits, added.hits) == (3, 3, 2)
    later(1j)
    assert (entered.hits, met.hits) == (3, 3)


@isolated(modules=NUMBA, timeout=TIME)
def test_a_name_that_numba_does_not_know_is_refused():
    from numba import njit

    import fprobe

    @njit
    def compiled(x):
        return x + 1

    compiled(1)
    prefix = _names(test_a_name_that_numba_does_not_know_is_refused)
    with pytest.raises(OSError, match=r"no function of \[numba\] matches .*; did you mean numba:.*\.compiled"):
        fprobe.attach(f"{prefix}.complied", action=fprobe.Count()).attach()


@pytest.mark.stress
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kinds", ["numba_kinds", pytest.param("numba_more_kinds", marks=pytest.mark.stress)])
@isolated(modules=NUMBA, timeout=280)
def test_a_program_of_each_kind_gives_its_result_with_all_functions_probed(kinds):
    import importlib

    import fprobe
    import fprobe.numba
    import kprobes

    program = importlib.import_module(kinds)
    plain = program.run()
    with (
        fprobe.attach("numba:*", action=fprobe.Stat()) as probe,
        kprobes.attach(f"numba:{kinds}.*", action=kprobes.Count()),
    ):
        assert program.run() == plain
        names = set(probe.targets)
    assert (probe.counts.missed, probe.skipped) == (0, [])
    assert {f"{kinds}.{name}" for name in program.NAMES} <= names
    probes = {name: fprobe.attach(f"numba:{kinds}.{name}", action=fprobe.Count()).attach() for name in program.CALLS}
    assert program.run() == plain
    inlined = fprobe.numba.inlined()
    loops = {name: 1 for name in program.LOOPS if f"{kinds}.{name}" in inlined}
    assert {name: probe.hits for name, probe in probes.items()} == program.CALLS | loops


@pytest.mark.stress
@isolated(modules=NUMBA, timeout=TIME)
def test_functions_are_probed_while_four_threads_compile():
    import threading

    from numba import njit

    import fprobe

    def make(k):
        @njit
        def compiled(x):
            return x + k

        return compiled

    functions = [make(k) for k in range(12)]
    results = []

    def compile_and_call(mine):
        for k in mine:
            results.extend(functions[k](i) - k for i in range(3))

    prefix = _names(test_functions_are_probed_while_four_threads_compile)
    with fprobe.attach(f"{prefix}.*", action=fprobe.Count()) as probe:
        threads = [threading.Thread(target=compile_and_call, args=(range(n, 12, 4),)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(results) == sorted([0, 1, 2] * 12)
    assert (probe.counts.hits, probe.counts.missed) == (36, 0)


_CACHED = """
from numba import njit

@njit(cache=True)
def callee(x):
    return x * 2

@njit(cache=True)
def caller(x):
    return callee(x) + 1
"""
_PROBED = """
import sys
sys.path.insert(0, {path!r})
import numba
numba.config.CACHE_DIR = {cache!r}
import numba_cached, fprobe
with fprobe.attach("numba:numba_cached.*", action=fprobe.Count()) as probe:
    assert (numba_cached.caller(3), numba_cached.caller(4), numba_cached.callee(1)) == (7, 9, 2)
print(probe.hits, sum(numba_cached.caller.stats.cache_hits.values()), probe.counts.missed)
"""


@pytest.mark.stress
def test_code_from_numbas_cache_is_probed_in_a_second_process(tmp_path):
    (tmp_path / "numba_cached.py").write_text(_CACHED)
    source = _PROBED.format(path=str(tmp_path), cache=str(tmp_path / "cache"))
    compiled, loaded = (run_forked(source, 120, NUMBA) for _ in range(2))
    assert (compiled.stdout, loaded.stdout) == ("3 0 0\n", "3 1 0\n"), compiled.stderr + loaded.stderr


_WITH_STUBS = """
import sys
sys.path.insert(0, {path!r})
import numba
numba.config.CACHE_DIR = {cache!r}
import numba_cached, fprobe, fprobe.numba
from ftrace.core.tracer import tracer
if {stubs}: fprobe.numba.install()
with fprobe.attach("numba:numba_cached.*", action=fprobe.Stat()) as probe:
    assert (numba_cached.caller(3), numba_cached.caller(0.5), numba_cached.callee(1)) == (7, 2, 2)
    blocks = sorted({{type(block).__name__ for block in tracer().table.of_images}})
print(probe.hits, probe.counts.missed, sum(numba_cached.caller.stats.cache_hits.values()), *blocks)
"""


@pytest.mark.stress
def test_installed_stubs_are_used_and_are_apart_in_numbas_cache(tmp_path):
    (tmp_path / "numba_cached.py").write_text(_CACHED)
    paths = {"path": str(tmp_path), "cache": str(tmp_path / "cache")}
    plain, stubs = (_WITH_STUBS.format(stubs=stubs, **paths) for stubs in (False, True))
    compiled, without, loaded = (run_forked(source, 120, NUMBA) for source in (stubs, plain, stubs))
    assert compiled.stdout == "3 0 0 PreparedBlock\n", compiled.stderr
    assert without.stdout == "3 0 0 DetouredBlock\n", without.stderr
    assert loaded.stdout == "3 0 2 PreparedBlock\n", loaded.stderr


@pytest.mark.stress
@isolated(modules=NUMBA, timeout=TIME)
def test_a_call_that_was_inlined_is_told_of_and_kept_if_that_is_asked_for():
    import logging

    from numba import njit

    import fprobe
    import fprobe.numba

    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("fprobe").addHandler(handler)
    prefix = _names(test_a_call_that_was_inlined_is_told_of_and_kept_if_that_is_asked_for)

    def make():
        @njit
        def small(x):
            return x + 1

        @njit
        def caller(x):
            return small(x) * 2

        return caller

    import kprobes

    caller = make()
    with fprobe.attach(f"{prefix}.make.<locals>.small", action=fprobe.Count()) as probe:
        caller(3)
    assert probe.hits == 0
    assert len(said) == 1 and "is inlined into" in said.pop(), "by a caller that was compiled later"
    with fprobe.attach(f"{prefix}.make.<locals>.small", action=fprobe.Count()) as probe:
        assert len(said) == 1 and "is inlined into" in said[0]
        caller(3)
    with kprobes.attach(f"{prefix}.make.<locals>.small", pre=lambda *_: None):
        caller(3)
    assert len(said) == 2 and said[0] == said[1]
    fprobe.numba.install(noinline=True)
    kept = make()
    with fprobe.attach(f"{prefix}.make.<locals>.small", action=fprobe.Count()) as probe:
        kept(3), kept(4)
    assert probe.hits == 2


@isolated(modules=NUMBA, timeout=TIME)
def test_calls_from_python_and_c_are_seen_where_llvm_leaves_the_body_out():
    """A body without effects whose result is always the same is not called by Numba's wrappers."""
    import ctypes

    from numba import cfunc, njit

    import fprobe
    import kprobes

    @njit
    def same(x):
        return 5

    @cfunc("void(int64)")
    def nothing(x):
        pass

    through_c = ctypes.CFUNCTYPE(None, ctypes.c_int64)(nothing.address)
    prefix = _names(test_calls_from_python_and_c_are_seen_where_llvm_leaves_the_body_out)
    assert same(1) == 5
    with (
        fprobe.attach(f"{prefix}.same", action=fprobe.Count()) as called,
        kprobes.attach(f"{prefix}.same", action=kprobes.Count()) as met,
        fprobe.attach(f"{prefix}.nothing", action=fprobe.Count()) as from_c,
    ):
        assert (same(1), same(2), same(2.0), through_c(1)) == (5, 5, 5, None)
    assert (called.hits, met.hits, from_c.hits) == (3, 3, 1)


@pytest.mark.stress
@isolated(modules=NUMBA, timeout=TIME)
def test_each_count_that_is_too_small_is_told_of_and_no_other():
    """Places in a caller, a loop for NumPy, a generator's steps, a parallel loop; not a method as Python calls it."""
    import numba_inlined_kinds as program

    import fprobe
    import fprobe.numba

    program.run()
    prefix = program.__name__
    probes = {name: fprobe.attach(f"numba:{prefix}.{name}", action=fprobe.Count()).attach() for name in program.CALLS}
    program.run()
    too_few = {name for name, probe in probes.items() if probe.hits < program.CALLS[name]}
    told = {name.removeprefix(f"{prefix}.") for name in fprobe.numba.inlined() if name.startswith(prefix)}
    assert told & program.CALLS.keys() == too_few and len(too_few) > 1
    assert all(probe.hits == program.CALLS[name] for name, probe in probes.items() if name not in too_few)


def _with_parts():
    """A function with objmode blocks, and one in object mode whose loops Numba lifts; how to call each."""
    import numba
    import numpy as np

    @numba.njit
    def blocks(x):
        with numba.objmode(y="int64"):
            y = int(str(x))
        with numba.objmode(z="int64"):
            z = len(str(y))
        return y + z

    @numba.jit(forceobj=True, looplift=True)
    def loops(a):
        given = {"a": a}
        total = 0.0
        for i in range(a.shape[0]):
            total += a[i]
        for i in range(a.shape[0]):
            total -= 2 * a[i]
        return given, total

    def check(blocks=blocks, loops=loops):
        assert blocks(50) == 52
        assert loops(np.ones(9))[1] == -9

    return check


@pytest.mark.stress
@isolated(modules=NUMBA, timeout=TIME)
@pytest.mark.parametrize("is_compiled", sampled([False, True], 1))
def test_parts_that_numba_compiles_apart_are_no_calls_of_the_function(is_compiled):
    """Lifted loops and objmode blocks have names of their own, whether they are compiled before the probe or after."""
    import fprobe

    check = _with_parts()
    if is_compiled:
        check()
    prefix = f"numba:{__name__}._with_parts.<locals>"
    expected = {"blocks": 10, "loops": 10, "blocks.objmode": 20, "loops.loop": 20}
    if not is_compiled:  # Numba does not know the parts yet
        expected = {"blocks": 10, "loops": 10}
    probes = {name: fprobe.attach(f"{prefix}.{name}", action=fprobe.Stat()).attach() for name in expected}
    for _ in range(10):
        check()
    assert {name: probe.hits for name, probe in probes.items()} == expected
    for probe in probes.values():
        probe.detach()


@pytest.mark.stress
@isolated(modules=NUMBA, timeout=TIME)
def test_exceptions_of_numba_and_python_pass_through_probed_c_functions():
    """C's qsort calls back: a comparison that raises, also from an objmode block, ends, and so do all calls around it."""
    import ctypes
    import sys

    import numpy as np
    from numba import carray, cfunc, njit, objmode, types

    import fprobe

    qsort = ctypes.CDLL(None).qsort
    qsort.argtypes, qsort.restype = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p], None

    @njit
    def checked(x):
        if x > 2:
            with objmode(x="float64"):
                x = float(str(x) + "?")
        return x

    @cfunc(types.int32(types.CPointer(types.float64), types.CPointer(types.float64)))
    def compare(a, b):
        return np.int32(checked(carray(a, 1)[0]) - checked(carray(b, 1)[0]))

    @njit
    def sort(data, count, by):
        qsort(data, count, 8, by)
        if count > 4:
            raise ValueError("many")

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    def in_python(_a, _b):
        raise KeyError

    def run():
        ignored, ends = [], []
        kept, sys.unraisablehook = sys.unraisablehook, lambda it: ignored.append(it.exc_type)
        for by in (compare.address, ctypes.cast(in_python, ctypes.c_void_p).value):
            for values in (np.array([2.0, 1, 0]), np.array([5.0, 4, 3, 2, 1])):
                try:
                    sort(values.ctypes.data, len(values), by)
                except ValueError as error:
                    ends.append((str(error), values.tolist()))
                else:
                    ends.append(values.tolist())
        sys.unraisablehook = kept
        return ends, ignored

    plain = run()
    prefix, seen = _names(test_exceptions_of_numba_and_python_pass_through_probed_c_functions), []
    note = {"entry": lambda *_: 0, "exit": lambda *_: seen.append(1)}
    with (
        fprobe.attach("libc:qsort", **note, python_unsafe=True) as sorts,
        fprobe.attach(f"{prefix}.sort", **note) as callers,
        fprobe.attach(f"{prefix}.compare", **note) as comparisons,
    ):
        assert run() == plain
        assert run() == plain
    assert (sorts.hits, callers.hits) == (8, 8)
    assert comparisons.hits > 8 and len(seen) == sorts.hits + callers.hits + comparisons.hits
    assert [probe.counts.missed for probe in (sorts, callers, comparisons)] == [0, 0, 0]
    assert len(set(plain[1])) == 2, plain
