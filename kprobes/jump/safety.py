"""Whether a probe may become a jump, and which rule forbids it.

Our jumps replace a single instruction: either it is as long as the jump, or the jump is punned (sandbox.x86_64.puns). So no
thread can be between the bytes of a jump, and no branch, landing pad or jump table can lead there unless it leads into the
middle of an instruction. The kernel's rules about the rest of the function are not needed; `kernel_refusal` evaluates them.
"""

from __future__ import annotations

import functools
import re
from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from kprobes.x86_64.classify import can_boost, refusal
from sandbox.x86_64.decoding import decoded
from sandbox.x86_64.encoding import JMP32_SIZE
from sandbox.x86_64.instruction import MAX_INSN_SIZE, Flow, decode
from sandbox.x86_64.relocate import refuse_to_move

if TYPE_CHECKING:
    from sandbox.x86_64.instruction import Instruction


class Refusal(NamedTuple):
    """Why a probe is not optimised: the rule, and how it applies to this place."""

    rule: str
    reason: str


class Function(NamedTuple):
    """The facts about a function's code [start, end) that the rules use."""

    start: int
    end: int
    code: bytes
    starts: tuple[int, ...]
    stopped: int
    """The address at which decoding stopped: `end`, or the address of the first bytes that are not an instruction."""
    targets: tuple[int, ...]
    """Targets of the function's jumps (not calls), ascending."""
    calls: tuple[int, ...]
    """Targets of direct calls, ascending."""
    indirect: int | None
    """The address of an indirect jump, if there is one."""
    sets_direction: bool
    """Whether it changes the direction flag."""
    pads: tuple[int, ...] = ()
    """Landing pads of exceptions, ascending."""

    def instruction_at(self, address: int) -> bytes:
        """The bytes of the instruction that begins at `address`; b"" if none does."""
        index = bisect_left(self.starts, address)
        if index == len(self.starts) or self.starts[index] != address:
            return b""
        end = self.starts[index + 1] if index + 1 < len(self.starts) else self.stopped
        return self.code[address - self.start : end - self.start]

    def code_at(self, address: int) -> bytes:
        """The bytes from `address` on, up to the maximum length of an instruction."""
        return self.code[address - self.start : address - self.start + MAX_INSN_SIZE]


_IMMEDIATE = re.compile(r"0x[0-9a-f]+|\d+")
_DIRECTION = frozenset({"std", "popf", "popfq", "popfd"})


_JUMP, _CALL, _SETS_DIRECTION, _OTHER = range(4)


@functools.cache
def _kind(mnemonic: str) -> int:
    name = mnemonic.rpartition(" ")[2]
    if name[0] == "j" or name.startswith("loop"):
        return _JUMP
    return _CALL if name == "call" else _SETS_DIRECTION if name in _DIRECTION else _OTHER


def examine(code: bytes, start: int, pads: tuple[int, ...] = ()) -> Function:
    """The facts about a function with the original bytes `code` at `start`."""
    starts: list[int] = []
    targets: list[int] = []
    calls: list[int] = []
    indirect, direction, end = None, False, start
    for at, size, mnemonic, operands in decoded(code, start):
        starts.append(at)
        end = at + size
        kind = _kind(mnemonic)
        if kind == _OTHER:
            continue
        known = kind != _SETS_DIRECTION and _IMMEDIATE.fullmatch(operands)
        if known:
            (targets if kind == _JUMP else calls).append(int(operands, 16))
        elif kind == _JUMP:
            indirect = at
        direction = direction or kind == _SETS_DIRECTION
    return Function(
        start, start + len(code), code, tuple(starts), end, tuple(sorted(targets)), tuple(sorted(calls)), indirect,
        direction, tuple(sorted(pads)),
    )  # fmt: skip


def _within(addresses: tuple[int, ...], low: int, high: int) -> int | None:
    """The first of ascending `addresses` in [low, high), if any."""
    index = bisect_left(addresses, low)
    return addresses[index] if index < len(addresses) and addresses[index] < high else None


def own_refusal(function: Function, insn: Instruction) -> Refusal | None:
    """Why `insn` cannot become a jump by our rules; None if it can, provided that a target is found."""
    error, reason = refusal(insn)
    if error:
        return Refusal("unsupported", reason)
    try:
        refuse_to_move(insn)
    except ValueError as why:
        return Refusal("not movable", str(why))
    if function.stopped != function.end:
        return Refusal(
            "undecodable", f"the bytes at {function.stopped:#x} are not an instruction, so not all jumps are known"
        )
    target = _within(function.targets, insn.address + 1, insn.end)
    if target is None:
        target = _within(function.calls, insn.address + 1, insn.end)
    if target is not None:
        return Refusal("jump target", f"a jump leads to {target:#x}, into the middle of the instruction")
    return None


def absorbable(function: Function, address: int, at: int) -> Instruction | None:
    """The instruction at `at`, if a jump at `address` may absorb it; None if not.

    A breakpoint leads threads that arrive there to the copy, so this is a question of cost, not of safety: no known jump goes
    there, and no call returns there.
    """
    if any(_within(where, at, at + 1) for where in (function.targets, function.calls, function.pads)):
        return None
    insn = movable(function, at)
    if insn and insn.flow in (Flow.CALL, Flow.INDIRECT_CALL) and insn.end < address + JMP32_SIZE:
        return None
    return insn


def movable(function: Function, at: int) -> Instruction | None:
    """The instruction at `at`, if it is the function's and a detour may have a copy of it; None if not."""
    if at >= function.end:
        return None
    try:
        insn = decode(function.code[at - function.start :], at)
        refuse_to_move(insn)
    except ValueError:
        return None
    return insn


Reserved = Callable[[int, int], "str | None"]
"""(low, high) -> a description of what else patches [low, high); None if nothing does."""


def _nothing(_low: int, _high: int) -> None:
    return None


def kernel_refusal(function: Function, address: int, reserved: Reserved = _nothing) -> Refusal | None:
    """Why the kernel would not optimise a probe at `address` (can_optimize() of 6.1, in its order); None if it would."""
    if function.end - address < JMP32_SIZE:
        return Refusal("too short", f"only {function.end - address} bytes of the function are left")
    if function.stopped != function.end:
        return Refusal("undecodable", f"the bytes at {function.stopped:#x} are not an instruction")
    if function.indirect is not None:
        return Refusal("indirect jump", f"there is an indirect jump at {function.indirect:#x}")
    target = _within(function.targets, address + 1, address + JMP32_SIZE + 1)
    if target is not None:
        return Refusal("jump target", f"a jump leads to {target:#x}")
    pad = _within(function.pads, address + 1, address + JMP32_SIZE + 1)
    if pad is not None:
        return Refusal("jump target", f"exceptions land at {pad:#x}")
    return _region_refusal(function, address, reserved)


def _region_refusal(function: Function, address: int, reserved: Reserved) -> Refusal | None:
    at = address
    while at < address + JMP32_SIZE:
        insn = decode(function.code[at - function.start :], at)
        error, reason = refusal(insn)
        if error:
            return Refusal("unsupported", reason)
        if not can_boost(insn):
            return Refusal("not boostable", f"`{insn.text}` at {at:#x} cannot be executed elsewhere")
        at = insn.end
        if at > function.end:
            return Refusal("too short", "the region goes beyond the function")
    what = reserved(address, at)
    return Refusal("reserved", f"the region contains {what}") if what else None
