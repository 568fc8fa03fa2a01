"""fprobe.calls.stacks: a table without place for more. Calls are counted or lost, never both, and what was counted stays."""

from __future__ import annotations

import pytest
from isolation import isolated

ROUNDS, FEW = 3, 40
APP = "app.py"


class Filled:
    """A table of stacks of its own, and a probe that counts the calls of a native function in it."""

    def __init__(self):
        import ctypes
        import mmap
        from tempfile import TemporaryFile

        from programs import basic

        import fprobe
        from fprobe.calls.stacks import StackCalls, Stacks, piece_offsets
        from ftrace.hit.stacks.stack_table import StackHead

        with TemporaryFile() as file:
            file.truncate(piece_offsets()[1])
            self.memory = mmap.mmap(file.fileno(), 0)
        self.table = Stacks(ctypes.addressof(ctypes.c_char.from_buffer(self.memory)))
        assert not self.table.why_no_python
        self.program = basic()
        self.function = self.program["leaf"]
        self.probe = fprobe.attach("leaf", action=StackCalls(self.table)).attach()
        self.head = StackHead.ctypes.from_address(self.table.native.head)

    def end(self):
        self.probe.detach()
        self.table.end()

    def calls(self, source):
        """Execute the source, and return what has been counted so far, by function and line of the source."""
        exec(compile(source, APP, "exec"), {"function": self.function})
        found = {}
        for stack in self.table.memory().stacks():
            place = [each for each in stack.frames if not isinstance(each, int) and each.filename in (APP, "?")][-1]
            key = place.name, place.line
            found[key] = found.get(key, 0) + stack.calls
        return found, self.table.memory().lost


def lines(count):
    """Source that calls the function from so many lines."""
    return "def work():\n" + "    function(1)\n" * count + f"for _ in range({ROUNDS}): work()\n"


def functions(count):
    """Source that calls the function from so many functions."""
    made = "".join(f"def work_{number}(): function(1)\n" for number in range(count))
    return made + f"for _ in range({ROUNDS}):\n" + "".join(f"    work_{number}()\n" for number in range(count))


@isolated
@pytest.mark.parametrize("piece", ["nodes", "codes"])
def test_what_finds_no_place_is_lost_and_said(piece):
    from ftrace.hit.stacks.stack_table import CODES, NODES

    filled = Filled()
    before, _ = filled.calls(lines(1))
    setattr(filled.head, piece, {"nodes": NODES, "codes": CODES}[piece] - FEW)
    found, lost = filled.calls((lines if piece == "nodes" else functions)(2 * FEW))
    assert lost and lost % ROUNDS == 0
    assert sum(found.values()) - sum(before.values()) + lost == ROUNDS * 2 * FEW
    new = found.keys() - before.keys()
    assert new and all(found[place] == ROUNDS for place in new)
    again, still = filled.calls(lines(1))
    filled.end()
    assert sum(again.values()) + still == sum(found.values()) + lost + ROUNDS


@isolated
def test_texts_that_find_no_place_leave_a_place_without_a_name():
    from ftrace.hit.stacks.stack_table import TEXTS

    filled = Filled()
    filled.head.texts = TEXTS - 64
    found, lost = filled.calls(lines(2))
    filled.end()
    assert not lost
    assert sum(found.values()) == 2 * ROUNDS
    assert {name for name, _ in found} == {"?"}


@pytest.mark.stress
@isolated
def test_threads_that_fill_the_table_together():
    """Each takes numbers of nodes past the end, none of which is read as a node."""
    from threading import Thread

    from ftrace.hit.stacks.stack_table import NODES

    filled = Filled()
    filled.head.nodes = NODES - FEW
    threads = [Thread(target=filled.calls, args=(lines(2 * FEW),)) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    found, lost = filled.calls("")
    filled.end()
    assert sum(found.values()) + lost == 4 * ROUNDS * 2 * FEW
