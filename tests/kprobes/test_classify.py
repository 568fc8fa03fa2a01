"""What is done with a probed instruction (KP-19, KP-20, KP-27..34)."""

from __future__ import annotations

import errno

import pytest

from kprobes.x86_64.classify import Kind, classify
from kprobes.x86_64.emulation import LOOP_ALWAYS, LOOP_EQUAL, LOOP_NOT_EQUAL, Emulation, Operation
from sandbox.x86_64.instruction import decode
from sandbox.x86_64.operand import MemoryOperand

AT = 0x40_0000


def classified(code: str, **options: bool):
    insn = decode(bytes.fromhex(code), AT)
    assert insn.length == len(bytes.fromhex(code))
    return classify(insn, **{"preemptible": False, **options})


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("9c", Emulation(Operation.PUSHF, 1)),
        ("9d", Emulation(Operation.POPF, 1)),
        ("c3", Emulation(Operation.RETURN, 1)),
        ("f3 c3", Emulation(Operation.RETURN, 2)),
        ("c2 10 80", Emulation(Operation.RETURN, 3, immediate=0x8010)),
        ("cb", Emulation(Operation.RETURN_FAR, 1, width=4)),
        ("48 ca 08 00", Emulation(Operation.RETURN_FAR, 4, immediate=8)),
        ("e8 00 01 00 00", Emulation(Operation.CALL, 5, AT + 0x105)),
        ("66 66 48 e8 00 01 00 00", Emulation(Operation.CALL, 8, AT + 0x108)),
        ("e9 00 01 00 00", Emulation(Operation.JUMP, 5, AT + 0x105)),
        ("f2 e9 00 01 00 00", Emulation(Operation.JUMP, 6, AT + 0x106)),
        ("eb 80", Emulation(Operation.JUMP, 2, AT - 126)),
        ("70 05", Emulation(Operation.JUMP_IF, 2, AT + 7, 0)),
        ("7f 05", Emulation(Operation.JUMP_IF, 2, AT + 7, 15)),
        ("0f 8c 00 00 01 00", Emulation(Operation.JUMP_IF, 6, AT + 0x10006, 12)),
        ("e0 fe", Emulation(Operation.LOOP, 2, AT, LOOP_NOT_EQUAL)),
        ("e1 fe", Emulation(Operation.LOOP, 2, AT, LOOP_EQUAL)),
        ("67 e2 fd", Emulation(Operation.LOOP, 3, AT, LOOP_ALWAYS, width=4)),
        ("e3 00", Emulation(Operation.JUMP_IF_COUNT_ZERO, 2, AT + 2)),
        ("67 e3 00", Emulation(Operation.JUMP_IF_COUNT_ZERO, 3, AT + 3, width=4)),
        ("ff d1", Emulation(Operation.CALL_REGISTER, 2, register=1)),
        ("ff d4", Emulation(Operation.CALL_REGISTER, 2, register=4)),
        ("41 ff e7", Emulation(Operation.JUMP_REGISTER, 3, register=15)),
        ("3e ff e0", Emulation(Operation.JUMP_REGISTER, 3, register=0)),
        ("ff 10", Emulation(Operation.CALL_MEMORY, 2, operand=MemoryOperand(0, None, 1, 0))),
        ("ff 25 00 01 00 00", Emulation(Operation.JUMP_MEMORY, 6, operand=MemoryOperand(None, None, 1, AT + 0x106))),
    ],
)
def test_emulated(code, expected):
    """KP-27, KP-34; section P: branches through memory, which the kernel refuses (KP-28)"""
    for options in ({}, {"preemptible": True}):
        found = classified(code, **options)
        assert (found.kind, found.emulation) == (Kind.EMULATE, expected)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("cc", errno.EILSEQ), ("cd 80", errno.EILSEQ), ("f1", errno.EILSEQ), ("0f 0b", errno.EILSEQ),
        ("0f b9", errno.EILSEQ), ("0f ff", errno.EILSEQ),
        ("8e d0", errno.EINVAL), ("0f b2 00", errno.EINVAL),
        ("66 66 66 66 66 66 2e 0f 1f 84 00 00 00 00 00", errno.ENOSPC),
        ("cf", errno.EOPNOTSUPP), ("48 cf", errno.EOPNOTSUPP), ("ff 18", errno.EOPNOTSUPP), ("ff 28", errno.EOPNOTSUPP),
        ("66 ff 10", errno.EOPNOTSUPP), ("66 ff 25 00 00 00 00", errno.EOPNOTSUPP), ("67 ff d0", errno.EOPNOTSUPP),
        ("67 ff e0", errno.EOPNOTSUPP), ("0f 01 c1", errno.EOPNOTSUPP),
        ("fa", errno.EOPNOTSUPP), ("fb", errno.EOPNOTSUPP), ("f4", errno.EOPNOTSUPP), ("e4 60", errno.EOPNOTSUPP),
        ("ef", errno.EOPNOTSUPP), ("6c", errno.EOPNOTSUPP), ("f3 6f", errno.EOPNOTSUPP), ("0f 30", errno.EOPNOTSUPP),
        ("0f 22 d8", errno.EOPNOTSUPP), ("0f 01 10", errno.EOPNOTSUPP), ("0f 07", errno.EOPNOTSUPP),
        ("0f 34", errno.EOPNOTSUPP), ("c7 f8 00 00 00 00", errno.EOPNOTSUPP), ("66 c3", errno.EOPNOTSUPP),
        ("66 e9 00 00 00 00", errno.EOPNOTSUPP), ("0f a1", errno.EOPNOTSUPP), ("f3 48 0f ae d0", errno.EOPNOTSUPP),
    ],
)  # fmt: skip
def test_refused(code, error):
    """KP-18 (6.12), KP-19, KP-20, KP-28; section P: privileged instructions"""
    found = classified(code)
    assert found.error == error
    assert (found.kind is Kind.REFUSED) == bool(error) == bool(found.reason)


BOOSTED = """90 50 58 55 41|57 48|89|e5 8b|07 c9 c1|e0|04 d3|f8 f7|d8 f6|c1|01 f6|c9|01:no fe|c0 fe|c8 ff|c0 ff|08
ff|37:no 0f|31 0f|af|c1 0f|b6|c0 0f|44|c1 f0|0f|c1|07 f0|0f|b1|0f 66|0f|6f|c1 66|0f|7f|07 0f|77
66|0f|ef|c0 66|0f|d6|07:no f3|0f|7e|c0 0f|10|07:no 0f|28|c1:no f2|0f|58|c1:no 0f|54|c1:no 66|0f|fe|c1
0f|a2:no d9|e8:no d8|c1:no 66|0f|38|00|c1:no 66|0f|3a|0f|c1|08:no 2e|90:no 67|8b|00:no
65|48|8b|04|25|00|00|00|00 f3|0f|1e|fa:no 0f|1f|00 48|0f|ba|e0|05:no 0f|c7|0f:no 0f|c8 0f|ae|f0:no f3|a4
6a|01 68|00|00|00|00 9b 98 d7 0f|0d|08:no 0f|18|08:no c5|f9|70|c1|1b c5|f8|77 c5|f1|72|d1|01
62|f1|7c|48|10|07 c4|e2|79|18|07 8f|e9|78|12|c0 66|9c 48|b8|01|02|03|04|05|06|07|08
48|c7|84|24|00|01|00|00|01|00|00|00:no"""


@pytest.mark.parametrize("sample", BOOSTED.split())
def test_boosted(sample):
    """KP-29..33: by the kernel's tables, VEX, EVEX and XOP always, at most 10 bytes."""
    code, _, refused = sample.partition(":")
    code = code.replace("|", " ")
    assert classified(code).kind is (Kind.STEP if refused else Kind.BOOST)
    assert classified(code, preemptible=True).kind is Kind.STEP


def test_a_system_call_is_left_alone_in_its_slot():
    """Section P: nothing may be left to be done after an exit, a fork or a change of the signal mask."""
    assert classified("0f 05").kind is Kind.BOOST
    assert classified("0f 05", preemptible=True).kind is Kind.BOOST
