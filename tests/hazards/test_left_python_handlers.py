"""HAZARDS 11: a longjmp out of a Python handler is told of; the interpreter goes on, and the thread's next hits are misses."""

from __future__ import annotations

import sys

import pytest
from built_library import built_library, needs_compilers
from isolation import isolated
from sampled import in_stress, sampled

import fprobe
import kprobes

pytestmark = needs_compilers

SOURCE = r"""
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>
static sigjmp_buf back;
static int jumps;
__attribute__((noipa)) long leaf(long x) { return x + 1; }
void leave(void) { if (jumps) { jumps = 0; siglongjmp(back, 1); } }
static void handler(int number) { (void)number; leave(); }
void by_signal(void) { signal(SIGUSR1, handler); raise(SIGUSR1); }
long around(long jumping) {
    long sum = 0;
    jumps = jumping;
    if (!sigsetjmp(back, 1)) sum += 100 * leaf(1);
    for (long i = 0; i < 3; i++) sum += leaf(i);
    return sum;
}
static void *body(void *result) { *(long *)result = around(0); return 0; }
long elsewhere(void) {
    pthread_t thread; long result = 0;
    pthread_create(&thread, 0, body, &result); pthread_join(thread, 0);
    return result;
}
static void *left_body(void *result) { *(long *)result = around(1); return 0; }
long left_elsewhere(void) {
    pthread_t thread; long result = 0;
    pthread_create(&thread, 0, left_body, &result); pthread_join(thread, 0);
    return result;
}
__attribute__((noipa)) void overwrite(void) {
    volatile char below[100000];
    for (unsigned i = 0; i < sizeof below; i++) below[i] = 0xa5;
}
"""


def attached(kind, handler):
    if kind in ("entry", "exit"):
        return fprobe.attach("libleaving:leaf", **{kind: handler}).attach()
    if kind == "pre":
        return kprobes.attach("libleaving:leaf", pre=handler).attach()
    return kprobes.attach_return("libleaving:leaf", handler=handler).attach()


def missed(probe):
    return probe.counts.missed_interpreter if isinstance(probe, fprobe.Attachment) else probe.nmissed


has_layout = pytest.mark.skipif(
    sys.version_info >= (3, 13),
    reason="what a longjmp leaves wrong is put back on Python 3.10 to 3.12 only (docs/kprobes.md)",
)


@pytest.mark.parametrize("way", ["leave", in_stress("by_signal")])
@pytest.mark.parametrize("kind", ["entry", in_stress("exit"), in_stress("pre"), "return"])
@isolated
def test_a_longjmp_out_of_a_python_handler(kind, way):
    import os

    library = built_library("libleaving", SOURCE)
    seen = []

    def handler(*_given):
        seen.append(1)
        getattr(library, way)()

    probe = attached(kind, handler)
    kprobes.wait_for_kprobe_optimizer()
    assert (library.around(0), len(seen), missed(probe)) == (206, 4, 0)
    ours, other = os.pipe()
    kept = os.dup(2)
    os.dup2(other, 2)
    found = library.around(1)
    os.dup2(kept, 2)
    text = os.read(ours, 4096).decode()
    assert (found, len(seen), missed(probe)) == (6, 5, 3)
    assert text.count("\n") == 1
    assert text.startswith("fprobe: a Python handler has been left by longjmp: ")
    assert library.elsewhere() == 206  # another thread
    assert (len(seen), missed(probe)) == (9, 3)


def frames():
    import sys

    frame, names = sys._getframe(1), []
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names


def depth():
    try:
        return 1 + depth()
    except RecursionError:
        return 1


def check_python(before, deepest):
    """Whether the caller, which has had these frames, has them still, as many calls to go, and no exception."""
    import sys

    assert frames()[1:] == before
    assert max([0], key=lambda _: frames()[2:] == before or pytest.fail(str(frames()))) == 0  # evaluated by C code
    assert depth() == deepest - 1
    assert sys.exc_info() == (None, None, None)
    try:
        raise ValueError
    except ValueError as error:
        assert error.__context__ is None


def leaving(library, leave, how):
    """A Python handler that is left: from where its name says."""

    def plainly(*_given):
        leave()

    def while_an_exception_is_handled(*_given):
        try:
            raise KeyError
        except KeyError:
            leave()

    def in_a_generator(*_given):
        def generate():
            yield leave()

        return next(generate())

    def far_down(*given):
        return leave() if len(given) > 300 else far_down(*given, 0)

    return locals()[how]


HOWS = ["plainly", "while_an_exception_is_handled", "in_a_generator", "far_down"]


@has_layout
@pytest.mark.parametrize(
    ("kind", "how"),
    sampled([*(("exit", how) for how in HOWS), *((kind, "plainly") for kind in ("entry", "pre", "return"))], 3),
)
@isolated
def test_the_interpreter_goes_on_after_a_longjmp(kind, how):
    library = built_library("libleaving", SOURCE)
    before, deepest = frames(), depth()
    probe = attached(kind, leaving(library, library.leave, how))
    kprobes.wait_for_kprobe_optimizer()
    assert library.around(1) == 6
    library.overwrite()
    check_python(before, deepest)
    assert missed(probe) == 3


@has_layout
@pytest.mark.parametrize(
    ("calling", "leave"), [("CDLL", "PyDLL"), in_stress(("PyDLL", "CDLL")), in_stress(("PyDLL", "PyDLL"))]
)
@isolated
def test_the_lock_is_held_after_a_longjmp_if_it_was_before(calling, leave):
    import ctypes
    import threading

    library = built_library("libleaving", SOURCE)
    around = getattr(ctypes, calling)(library._name).around
    probe = attached("exit", leaving(library, getattr(ctypes, leave)(library._name).leave, "plainly"))
    assert around(1) == 6
    library.overwrite()
    assert missed(probe) == 3
    other = threading.Thread(target=library.elsewhere)
    other.start()
    other.join(10)
    assert not other.is_alive()
    assert around(0) == 206


@has_layout
@isolated
def test_threads_of_c_code_leave_python_handlers():
    import sys

    library = built_library("libleaving", SOURCE)
    before, deepest = frames(), depth()
    probe = attached("exit", leaving(library, library.leave, "plainly"))
    for number in range(1, 21):
        assert library.left_elsewhere() == 6
        assert missed(probe) == 3 * number
    check_python(before, deepest)
    assert library.elsewhere() == 206
    assert list(sys._current_frames().values()) == [sys._getframe()]


@has_layout
@isolated
def test_a_python_handler_goes_on_if_a_handler_that_is_called_in_it_is_left():
    import ctypes

    library = built_library("libleaving", SOURCE)
    seen = []

    def handler(*_given):
        seen.append(library.around(1))

    in_c = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(("leave", library))
    with fprobe.attach("libleaving:elsewhere", entry=handler) as outer, kprobes.attach("libleaving:leaf", pre=in_c):
        for _ in range(2):
            assert library.elsewhere() == 206
    assert seen == [6, 6]
    assert outer.counts.missed == 0
