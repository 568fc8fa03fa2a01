"""HAZARDS 1: the shadow stack is empty again, nodes and entry data, whatever way its calls went. Each test names its hazard."""

# ruff: noqa: ARG005  (the signature of a handler is given)

from __future__ import annotations

import shutil
import threading

import pytest
from isolation import isolated
from programs import load_c, stacks_not_empty

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")

LONGJMP = r"""
#include <setjmp.h>
static jmp_buf back;
__attribute__((noipa)) long leaf(long x) { return x + 1; }
__attribute__((noipa)) long deep(long x) { longjmp(back, 1); return leaf(x); }
__attribute__((noipa)) long guarded(long x) { return setjmp(back) ? x : deep(x); }
long many(long n) { long sum = 0; for (volatile long i = 0; i < n; i++) sum += guarded(i); return sum; }
"""
CALLS = r"""
__attribute__((noipa)) long leaf(long x) { return x + 1; }
__attribute__((noipa)) long deepest(long n) { return n ? deepest(n - 1) + 1 : 0; }
__attribute__((noipa)) long outer(long n) { long sum = 0; for (volatile long i = 0; i < n; i++) sum += leaf(i); return sum; }
"""
COROUTINES = r"""
#include <ucontext.h>
static ucontext_t main_context, contexts[3];
static char stacks[3][65536] __attribute__((aligned(4096)));
__attribute__((noipa)) void yields(int i) { swapcontext(&contexts[i], &main_context); }
static void body(int i) { yields(i); }
static void once(void) {
    for (int i = 0; i < 3; i++) {
        getcontext(&contexts[i]);
        contexts[i].uc_stack.ss_sp = stacks[i]; contexts[i].uc_stack.ss_size = sizeof stacks[i];
        contexts[i].uc_link = &main_context;
        makecontext(&contexts[i], (void (*)(void))body, 1, i);
        swapcontext(&main_context, &contexts[i]);
    }
    for (int i = 0; i < 3; i++) swapcontext(&main_context, &contexts[i]);
}
void in_the_order_of_their_calls(long rounds) { while (rounds--) once(); }
"""


def counting_twice(names, nr_maxactive):
    """Two probes on the functions: they share a node for each call."""
    import fprobe

    return [fprobe.attach(names, action=fprobe.Stat(), nr_maxactive=nr_maxactive) for _ in range(2)]


@pytest.mark.parametrize("names", [["deep"], ["guarded", "deep"]], ids="+".join)
@isolated
def test_calls_left_by_longjmp_with_several_probes_leave_no_nodes(names):
    """Also where no hooked call returns that would find them."""
    module = load_c(LONGJMP)
    first, second = counting_twice(names, nr_maxactive=8)
    with first, second:
        assert module["many"](1000) == 499_500
        assert first.counts.missed == second.counts.missed == 0
        module["leaf"](1)
    assert first.counts.hits == second.counts.hits == 1000 * len(names)


@isolated(shared=True)
def test_entry_data_that_nobody_owns_is_free_again_once_the_shadow_stack_is_empty():
    """A signal's handler that jumps past its call leaves it between the two instructions that release a node and its data."""
    import fprobe
    from ftrace.core.runtime import runtime

    module = load_c(LONGJMP)
    probes = [fprobe.attach(["deep", "leaf"], exit=lambda *hit: None, entry_data_size=200) for _ in range(2)]
    with probes[0], probes[1]:
        module["leaf"](1)
        (task,) = [task for task in runtime().tasks() if task.tid == threading.get_native_id()]
        task.data_top += 400
        module["guarded"](1)
        module["leaf"](1)
        assert stacks_not_empty() == []
    assert probes[0].counts.hits == probes[1].counts.hits == 3


@isolated(shared=True)
def test_a_return_drops_the_calls_that_longjmp_has_left_above_it_before_its_handlers_run():
    """The exit handler calls `leaf`, for which there is one node: that which `deep` had."""
    import fprobe

    module = load_c(LONGJMP)
    inner = fprobe.attach(["deep", "leaf"], exit=lambda *hit: None, nr_maxactive=1)
    with inner, fprobe.attach(["guarded"], exit=lambda *hit: module["leaf"](1)) as outer:
        for _ in range(3):
            module["guarded"](1)
            assert stacks_not_empty() == []
    assert (outer.counts.hits, inner.counts.hits, inner.counts.missed) == (3, 6, 0)


@isolated(shared=True)
def test_calls_deeper_than_the_shadow_stack_with_several_probes_are_misses():
    """RB-7: with the cause `depth`, and no node beyond the last."""

    module = load_c(CALLS)
    first, second = counting_twice(["deepest"], nr_maxactive=1 << 20)
    threading.stack_size(64 << 20)
    with first, second:
        thread = threading.Thread(target=lambda: module["deepest"](100_000))
        thread.start()
        thread.join()
    assert first.counts.hits == 100_001
    assert 0 < first.counts.missed_depth == second.counts.missed_depth
    assert stacks_not_empty() == []


@isolated(shared=True)
def test_a_declined_call_on_the_slow_path_gives_its_node_back():
    import fprobe

    module = load_c(CALLS)
    answers = [False, True, True]
    with fprobe.attach(["leaf"], entry=lambda *hit: answers.pop(0), exit=lambda *hit: None) as probe:
        for _ in range(3):
            module["leaf"](1)
            assert stacks_not_empty() == []
    assert probe.counts.hits == 3 and probe.counts.missed == 0


@isolated(shared=True)
def test_entry_data_outside_of_nodes_is_free_again_before_the_outermost_call_returns():
    """4,000 bytes for each call within one call: more than a thread's whole room, if they were kept."""
    import fprobe

    module = load_c(CALLS)
    leaf = fprobe.attach(["leaf"], exit=lambda *hit: None, entry_data_size=4000, nr_maxactive=4)
    with fprobe.attach(["outer"], action=fprobe.Stat()), leaf:
        module["outer"](10_000)
    assert leaf.counts.hits == 10_000 and leaf.counts.missed == 0
    assert stacks_not_empty() == []


@isolated(shared=True)
def test_calls_on_other_stacks_that_return_in_the_order_of_their_calls_leave_no_nodes():
    """The first two leave empty nodes below the third, which are dropped with it."""
    import fprobe

    module = load_c(COROUTINES)
    with fprobe.attach(["yields"], exit=lambda *hit: None) as probe:
        module["in_the_order_of_their_calls"](1)
        assert stacks_not_empty() == []
    assert probe.counts.hits == 3 and probe.counts.missed == 0


@isolated  # the empty nodes stay until the thread's next hooked call
def test_empty_nodes_below_calls_that_return_by_the_fast_path_do_not_use_up_the_shadow_stack():
    import fprobe

    module = load_c(COROUTINES)
    with fprobe.attach(["yields"], action=fprobe.Stat()) as probe:
        module["in_the_order_of_their_calls"](20_000)
    assert probe.counts.hits == 60_000 and probe.counts.missed == 0


@isolated  # as above
def test_empty_nodes_give_back_nothing_a_second_time():
    """What a call took has gone back when it returned: three calls at once are still the most."""
    import fprobe

    module = load_c(COROUTINES)
    with fprobe.attach(["yields"], action=fprobe.Stat(), nr_maxactive=2) as probe:
        for rounds in range(1, 4):
            module["in_the_order_of_their_calls"](1)
            assert (probe.counts.hits, probe.counts.missed_nodes) == (3 * rounds, rounds)


TAIL_CALL = """
define i64 @second(i64 %x) noinline { %r = add i64 %x, 2  ret i64 %r }
define i64 @first(i64 %x) noinline { %a = add i64 %x, 1  %r = musttail call i64 @second(i64 %a)  ret i64 %r }
"""


@isolated(shared=True)
def test_rh11_a_tail_call_keeps_its_node_until_the_handlers_of_its_frame_have_run():
    """The exit handler of `first` calls `second`, whose one node is still taken; after it, nothing is."""
    import fprobe
    import sandbox

    module = sandbox.load(TAIL_CALL, name="tails")
    first = fprobe.attach(["first"], exit=lambda *hit: module["second"](1) and None)
    second = fprobe.attach(["second"], exit=lambda *hit: None, nr_maxactive=1)
    with first, second:
        for missed in range(1, 4):
            module["first"](1)
            assert second.counts.missed_nodes == missed
            assert stacks_not_empty() == []
