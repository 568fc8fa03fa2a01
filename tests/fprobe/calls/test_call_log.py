"""fprobe.calls.log: calls in order, with depth, arguments and results as far as they are known."""

# ruff: noqa: ARG005  (the signature of a handler is given)

from __future__ import annotations

import pytest
from programs import basic

import fprobe
import sandbox
from fprobe.calls.log import log_calls

SHAPES = """
define i8 @negative(i8 signext %x, i1 zeroext %flag) noinline { %r = sub i8 0, %x  ret i8 %r }
define ptr @pointer(ptr %p, i64 %n) noinline { ret ptr %p }
define double @floating(i32 %n, double %d) noinline { ret double %d }
define void @nothing() noinline { ret void }
define i64 @seven(i64 %a, i64 %b, i64 %c, i64 %d, i64 %e, i64 %f, i64 %g) noinline { ret i64 %g }
define i64 @tail(i64 %x) noinline { %r = musttail call i64 @after(i64 %x)  ret i64 %r }
define i64 @after(i64 %x) noinline { ret i64 %x }
"""


@pytest.fixture(scope="module")
def shapes():
    module = sandbox.load(SHAPES, name="shapes")
    yield module
    module.unload()


@pytest.mark.parametrize(
    ("name", "arguments", "tree"),
    [
        ("negative", (5, True), "> negative(x=5, flag=true)\n< negative = -5\n"),
        ("pointer", (None, 3), "> pointer(p=NULL, n=3)\n< pointer = NULL\n"),
        ("pointer", (0x1000, -1), "> pointer(p=0x1000, n=-1)\n< pointer = 0x1000\n"),
        ("floating", (1, 2.5), "> floating(n=1, d=2.5)\n< floating = 2.5\n"),
        ("nothing", (), "> nothing()\n< nothing\n"),
        ("seven", (1, 2, 3, 4, 5, 6, 7), "> seven(a=1, b=2, c=3, d=4, e=5, f=6, g=7)\n< seven = 7\n"),
    ],
)
def test_values(shapes, name, arguments, tree):
    log = log_calls(name)
    shapes[name](*arguments)
    log.probe.detach()
    assert log.tree() == tree


def test_a_tail_call_is_within_its_caller(shapes):
    log = log_calls(["tail", "after"])
    assert shapes["tail"](5) == 5
    log.probe.detach()
    assert log.order == ["> tail", "> after", "< after", "< tail"]
    assert [event.depth for event in log.events] == [0, 1, 1, 0]


def test_calls_whose_return_is_not_seen_end_with_the_next(shapes):
    """Disabled while a call runs: its exit does not come."""
    program = basic()
    log = log_calls("twice")
    with fprobe.attach("leaf", entry=lambda *hit: log.probe.disable()):
        program["twice"](1)
    log.probe.enable()
    program["twice"](1)
    log.probe.detach()
    program.unload()
    assert log.order == ["> twice", "> twice", "< twice"] and [event.depth for event in log.events] == [0, 0, 0]


def test_the_copy_of_the_registers_stays(shapes):
    log = log_calls("seven")
    shapes["seven"](*range(7))
    shapes["seven"](*range(10, 17))
    log.probe.detach()
    assert [event.argument(5) for event in log.of("seven")] == [5, 15] and log.results("seven") == [6, 16]
