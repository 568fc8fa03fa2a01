"""Cases that the multi-probe trampolines (ftrace.x86_64.multi_probe_trampolines) pass to the slow path.

Those do for each probe what the single-probe trampolines do, under the locks of the list and of callbacks. The slow path takes
and releases these locks for each probe, which is most of its cost.
"""

from __future__ import annotations

from ftrace.hit.dispatch import Hit, run_probe
from ftrace.hit.nodes import probes_of
from ftrace.hit.pools import give_credit
from ftrace.hit.records import Item, StubRecord
from ftrace.hit.recursion import FAST, INSIDE, LIST_NORMAL
from ftrace.x86_64.pt_regs import pt_regs
from ftrace.x86_64.stubs import RETURN_POINT
from sandbox.native import addressof, cast, native, ptr, signal_fence, sizeof, u64, void, zeroed
from sandbox.threads.tasks import Node, Task

MULTI_PROBE = FAST | LIST_NORMAL
"""What `rec` holds while the entry handlers of several probes run."""


@native
def multi_probe_one(task: ptr[Task], node: ptr[Node], item: ptr[Item], regs: ptr[pt_regs]) -> void:
    """The slow path for one probe that is not plain: disabled, being unregistered, or without a credit."""
    hit: Hit = zeroed
    hit.task = task
    hit.probes = probes_of(node)
    hit.regs = regs
    hit.stub = cast(ptr[StubRecord], node.stub - RETURN_POINT)
    hit.frame = node.frame
    hit.parent = node.parent
    hit.node = node
    task.rec = INSIDE | LIST_NORMAL
    signal_fence()
    first = cast(u64, addressof(hit.probes.items[0]))
    run_probe(addressof(hit), item, (cast(u64, item) - first) // sizeof(Item))
    signal_fence()
    task.rec = MULTI_PROBE


@native
def multi_probe_cancel(task: ptr[Task], node: ptr[Node], item: ptr[Item]) -> void:
    """The entry handler of a probe with an exit handler returned non-zero."""
    node.armed &= ~item.bit
    give_credit(task, item.probe)
