"""What a Python handler is given: the right numbers, without a leak, and an exception only where there was one."""

from __future__ import annotations

import ctypes
import shutil
import sys

import pytest
from isolation import isolated
from programs import load_c

needs_cc = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
NAMES = ("SetString", "Occurred", "Clear")
MANY = 150
"""Functions: more than there are places for numbers that are remembered."""


def functions():
    return "".join(f"define i64 @f{n}(i64 %x) noinline {{ %r = add i64 %x, {n}  ret i64 %r }}\n" for n in range(MANY))


@isolated
def test_each_of_many_functions_is_told_its_own_addresses():
    """FP-9: entry_ip and ret_ip, whatever was hit before."""
    import fprobe
    import sandbox

    callers = "".join(
        f"define i64 @call{n}(i64 %x) noinline {{ %r = call i64 @f{n}(i64 %x)  %s = add i64 %r, 1  ret i64 %s }}\n"
        for n in range(MANY)
    )
    module = sandbox.load(functions() + callers, name="many")
    seen = []

    def note(fp, ip, ret_ip, regs, data):
        seen.append((ip, ret_ip))

    with fprobe.attach("f*", entry=note):
        for _ in range(3):
            for n in range(MANY):
                assert module[f"call{n}"](1) == n + 2
    addresses = [module[f"f{n}"].address for n in range(MANY)]
    assert [ip for ip, _ in seen] == addresses * 3
    callers_of = [module[f"call{n}"].address for n in range(MANY)]
    assert all(0 < ret - caller < 64 for (_, ret), caller in zip(seen, callers_of * 3, strict=True))


@isolated
def test_the_numbers_are_not_leaked():
    import fprobe
    import sandbox

    module = sandbox.load(functions(), name="many")
    calls = [module[f"f{n}"] for n in range(MANY)]
    found = []

    def nothing(*hit):
        pass

    with fprobe.attach("f*", entry=nothing, exit=nothing) as probe:
        for _ in range(10):
            for call in calls:
                call(1)
            found.append(sys.getallocatedblocks())
    assert probe.hits == 10 * MANY and found[-1] - found[2] < MANY, found


PENDING = r"""
__attribute__((noipa)) long leaf(long x) { return x + 1; }
/* Whether an exception that is set when a function is called is set when it has returned. */
long pending(void (*set)(void *, const char *), void *type, void *(*occurred)(void), void (*clear)(void)) {
    long before = occurred() == 0 && leaf(1) == 2 && occurred() == 0;
    set(type, "pending");
    leaf(1);
    long kept = occurred() == type;
    clear();
    return before && kept;
}
"""


@needs_cc
@isolated
def test_an_exception_that_is_set_is_set_again_after_the_handlers():
    """HAZARDS 6: C code that holds the GIL may call a probed function meanwhile."""
    import fprobe

    module = load_c(PENDING)
    api = [ctypes.cast(getattr(ctypes.pythonapi, f"PyErr_{name}"), ctypes.c_void_p) for name in NAMES]
    pending = ctypes.PYFUNCTYPE(ctypes.c_long, *[ctypes.c_void_p] * 4)(module["pending"].address)
    seen = []

    def note(*hit):
        seen.append(len(str(hit[1])))  # would fail with an exception set

    with fprobe.attach("leaf", entry=note, exit=note) as probe:
        assert pending(api[0], id(KeyError), api[1], api[2])
    assert len(seen) == 4 and probe.fp.errors.first is None


@isolated
def test_references_are_counted_as_the_interpreter_counts_them():
    """Also those that other threads have made, which builds without a GIL count apart."""
    import threading

    from ftrace.core.handlers.python_handler import _image

    class Thing:
        pass

    thing, kept = Thing(), []

    def count():
        return _image().call("python_references", id(thing))

    before = count()
    kept.append(thing)
    assert count() == before + 1
    thread = threading.Thread(target=lambda: kept.extend([thing] * 5))
    thread.start()
    thread.join()
    assert count() == before + 6
    kept.clear()
    assert count() == before
    assert _image().call("python_references", id(None)) > 1 << 20 or sys.version_info < (3, 12)
