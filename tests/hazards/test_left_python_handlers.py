"""HAZARDS 11: a longjmp out of a Python handler is told of, and the hits that follow in that thread are misses."""

from __future__ import annotations

import pytest
from built_library import built_library, needs_compilers
from isolation import isolated
from sampled import in_stress

import fprobe
import kprobes

pytestmark = needs_compilers

SOURCE = r"""
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
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
"""


def attached(kind, handler):
    if kind in ("entry", "exit"):
        return fprobe.attach("libleaving:leaf", **{kind: handler}).attach()
    if kind == "pre":
        return kprobes.attach("libleaving:leaf", pre=handler).attach()
    return kprobes.attach_return("libleaving:leaf", handler=handler).attach()


def missed(probe):
    return probe.counts.missed_interpreter if isinstance(probe, fprobe.Attachment) else probe.nmissed


@pytest.mark.parametrize("way", ["leave", "by_signal"])
# Of handlers at a return, some runs end in a fault: the chain of frames of the interpreter still leads to the dead one.
@pytest.mark.parametrize("kind", ["entry", in_stress("exit"), "pre", "return"])
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
