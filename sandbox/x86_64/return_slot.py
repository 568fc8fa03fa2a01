"""Functions whose return cannot be hooked, told by their code: they move their return address, or their stack.

The paths of a function are followed from its entry, up to indirect jumps, with what is known of the stack: how far the stack
pointer is below the return slot, which registers point into the stack, and which hold the return address.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sandbox.x86_64.decoding import Decoded, decoded

_WORD = 8
_RT_SIGRETURN = 15
_NUMBER = re.compile(r"-?(?:0x[0-9a-f]+|\d+)$")
_MEMORY = re.compile(r"\[(?P<base>\w+)(?: (?P<sign>[+-]) (?P<offset>0x[0-9a-f]+|\d+))?\]$")
_READERS = frozenset(
    {"cmp", "test", "push", "call", "jmp", "bt", "prefetcht0", "nop", "ucomisd", "ucomiss", "comisd", "comiss"}
)
_ARITHMETIC = frozenset({"xor", "rol", "ror", "add", "sub", "neg", "not"})
_LOW_HALVES = {f"e{name}": f"r{name}" for name in ("ax", "bx", "cx", "dx", "si", "di", "bp", "sp")}
_LOW_HALVES |= {f"r{number}d": f"r{number}" for number in range(8, 16)}

_HARMLESS = frozenset(
    {
        *(
            "mov",
            "movabs",
            "movzx",
            "movsx",
            "movsxd",
            "movups",
            "movaps",
            "movdqa",
            "movdqu",
            "movq",
            "movd",
            "lea",
            "nop",
        ),
        *(
            "cmp",
            "test",
            "add",
            "sub",
            "and",
            "or",
            "xor",
            "shl",
            "shr",
            "sar",
            "imul",
            "neg",
            "not",
            "inc",
            "dec",
            "bswap",
        ),
        *(
            "cmove",
            "cmovne",
            "cmova",
            "cmovae",
            "cmovb",
            "cmovbe",
            "cmovg",
            "cmovge",
            "cmovl",
            "cmovle",
            "cmovs",
            "cmovns",
        ),
        *(
            "sete",
            "setne",
            "seta",
            "setae",
            "setb",
            "setbe",
            "setg",
            "setge",
            "setl",
            "setle",
            "rol",
            "ror",
            "adc",
            "sbb",
        ),
        *("pxor", "paddd", "pand", "por", "punpcklqdq", "pshufd", "cdqe", "cdq", "cqo", "endbr64"),
    }
)
"""Instructions that concern the stack by their operands only."""
_SYSCALL = b"\x0f\x05"

STACK, RETURN, ABOVE = "the stack", "the return address", "the stack pointer behind the return"
"""What a register may hold."""


class _State(NamedTuple):
    """What is known in front of an instruction.

    `depth`: bytes from the stack pointer up to the return slot; None: not known. `held`: what registers hold, and how far below
    the return slot that is if it is on the stack. `pushed`: the same of what was pushed, by depth. `number`: the constant in eax.
    """

    depth: int | None
    held: Mapping[str, tuple[str, int | None]]
    pushed: Mapping[int, tuple[str, int | None] | None]
    number: int | None = None

    def to(self, base: str, offset: int) -> int | None:
        """How far the memory at `base` + `offset` is below the return slot."""
        if base == "rsp":
            return None if self.depth is None else self.depth - offset
        kind, depth = self.held.get(base, ("", None))
        return depth - offset if kind in (STACK, ABOVE) and depth is not None else None

    def is_stack(self, base: str) -> bool:
        return base == "rsp" or self.held.get(base, ("",))[0] in (STACK, ABOVE)

    def holding(self, register: str, what: tuple[str, int | None] | None) -> _State:
        held = {name: value for name, value in self.held.items() if name != register}
        if what is not None:
            held[register] = what
        return self._replace(held=held)


class _Moved(Exception):
    """Why the return cannot be hooked."""


def moves_its_return(code: bytes, start: int) -> str:
    """Why the return of the function with these bytes at `start` cannot be hooked; '' if it can, as far as can be seen."""
    try:
        _Walk(code, start).follow()
    except _Moved as reason:
        return str(reason)
    return ""


class _Walk:
    """The paths of one function. `saved`: which of RETURN and ABOVE it has stored outside its stack."""

    def __init__(self, code: bytes, start: int) -> None:
        self._start = start
        self._code = {each.address: each for each in decoded(code, start)}
        self._has_syscall = _SYSCALL in code
        self._saved: set[str] = set()
        self._seen: set[int] = set()

    def follow(self) -> None:
        waiting = [(self._start, _State(0, {}, {}))]
        while waiting:
            at, state = waiting.pop()
            insn = self._code.get(at)
            while insn is not None and insn.address not in self._seen and not self._matters(insn, state):
                self._seen.add(insn.address)
                at = insn.address + insn.size
                insn = self._code.get(at)
            if insn is not None and at not in self._seen:
                self._seen.add(at)
                waiting += [(to, behind) for to, behind in self._behind(insn, state)]

    def _matters(self, insn: Decoded, state: _State) -> bool:
        """Whether an instruction may change what is known: most do not, while no register holds anything of interest."""
        if insn.mnemonic not in _HARMLESS or state.number is not None or "sp" in insn.operands:
            return True
        if state.held and (
            insn.mnemonic not in _READERS and any(register in insn.operands for register in _parts(state.held))
        ):
            return True
        return self._has_syscall and insn.mnemonic == "mov"

    def _behind(self, insn: Decoded, state: _State) -> Iterable[tuple[int, _State]]:
        name, following = insn.mnemonic.rpartition(" ")[2], insn.address + insn.size
        if name.startswith("ret"):
            return ()
        if name[0] == "j" or name.startswith("loop"):
            ways = [int(insn.operands, 16)] if _NUMBER.match(insn.operands) else []
            if not ways and state.depth is not None and state.depth < 0:
                raise self._moved(insn, "takes more off the stack than it has put there")
            return [(to, state) for to in ways + ([] if name == "jmp" else [following])]
        if name in ("ud2", "hlt"):
            return ()
        if name == "syscall" and state.number == _RT_SIGRETURN:
            raise self._moved(insn, "returns from a signal's handler (rt_sigreturn)")
        return [(following, self._after(insn, name, _operands(insn.operands), state))]

    def _after(self, insn: Decoded, name: str, operands: list[str], state: _State) -> _State:
        if name in ("push", "pushfq"):
            return _pushed(operands, state)
        if name in ("pop", "popfq"):
            return self._popped(insn, operands, state)
        if name == "leave":
            return self._set_stack(insn, state.to("rbp", _WORD), state.is_stack("rbp"), state).holding("rbp", None)
        if name == "call":
            return state._replace(held={r: held for r, held in state.held.items() if r in _KEPT}, number=None)
        if not operands:
            return state._replace(number=None)
        target = operands[0]
        if name == "xchg" and "rsp" in operands:
            raise self._moved(insn, "switches stacks")
        if target == "rsp" and name not in _READERS:
            return self._new_stack(insn, name, operands, state)
        if memory := _MEMORY.search(target):
            self._store(insn, name, memory, operands, state)
            return state
        return self._load(name, operands, state)

    # -- the stack pointer --------------------------------------------------------------------------------------

    def _popped(self, insn: Decoded, operands: list[str], state: _State) -> _State:
        if operands == ["rsp"]:
            raise self._moved(insn, "takes its stack pointer off the stack")
        if state.depth is not None and state.depth <= 0:
            raise self._moved(insn, "takes its return address off the stack")
        known = (STACK, None) if state.depth is None else state.pushed.get(state.depth)
        behind = _lifted(state, _WORD)
        return behind.holding(operands[0], known) if operands else behind

    def _new_stack(self, insn: Decoded, name: str, operands: list[str], state: _State) -> _State:
        source = operands[-1]
        if name in ("add", "sub") and _NUMBER.match(source):
            amount = int(source, 0)
            return _lifted(state, amount if name == "add" else -amount)
        if name in ("and", "sub", "or"):
            return state._replace(depth=None)
        if memory := _MEMORY.search(source):
            base, offset = _place(memory)
            if name == "lea":
                return self._set_stack(insn, state.to(base, offset), state.is_stack(base), state)
            return self._set_stack(insn, None, state.is_stack(base), state)
        if name == "mov":
            return self._set_stack(insn, state.to(source, 0), state.is_stack(source), state)
        return self._set_stack(insn, None, False, state)

    def _set_stack(self, insn: Decoded, depth: int | None, in_stack: bool, state: _State) -> _State:
        if not in_stack:
            raise self._moved(insn, "switches stacks")
        return state._replace(depth=depth)

    # -- everything else ----------------------------------------------------------------------------------------

    def _store(self, insn: Decoded, name: str, memory: re.Match[str], operands: list[str], state: _State) -> None:
        base, offset = _place(memory)
        changes = name not in _READERS and not (name == "or" and operands[-1] == "0")
        if changes and state.to(base, offset) == 0:
            raise self._moved(insn, "writes to its return slot")
        kind = state.held.get(operands[-1], ("",))[0]
        if name == "mov" and not state.is_stack(base) and kind in (RETURN, ABOVE):
            self._saved.add(kind)
            if len(self._saved) == 2:
                raise self._moved(insn, "saves where it returns to, and returns there again")

    @staticmethod
    def _load(name: str, operands: list[str], state: _State) -> _State:
        target, source = _LOW_HALVES.get(operands[0], operands[0]), operands[-1]
        number = state.number if target != "rax" else None
        if name == "mov" and target == "rax" and _NUMBER.match(source):
            number = int(source, 0)
        state = state._replace(number=number)
        if name in _ARITHMETIC and (len(operands) < 2 or operands[0] != source):
            kind, _depth = state.held.get(target, ("", None))
            return state.holding(target, (kind, None)) if kind else state
        return state.holding(target, _held(name, source, state))

    def _moved(self, insn: Decoded, what: str) -> _Moved:
        text = f"{insn.mnemonic} {insn.operands}".strip()
        return _Moved(f"it {what} (`{text}` at +{insn.address - self._start:#x})")


_KEPT = frozenset({"rbx", "rbp", "r12", "r13", "r14", "r15"})


def _held(name: str, source: str, state: _State) -> tuple[str, int | None] | None:
    """What a register holds behind `mov` or `lea` from `source`."""
    if memory := _MEMORY.search(source):
        base, offset = _place(memory)
        depth = state.to(base, offset)
        if name == "lea" and state.is_stack(base):
            return (ABOVE if depth == -_WORD and base == "rsp" else STACK, depth)
        if name == "mov" and depth == 0:
            return (RETURN, None)
        return (STACK, None) if name == "mov" and state.is_stack(base) else None
    if name == "mov" and source == "rsp":
        return (STACK, state.depth)
    return state.held.get(source) if name == "mov" else None


def _pushed(operands: list[str], state: _State) -> _State:
    if state.depth is None:
        return state
    depth = state.depth + _WORD
    what = state.held.get(operands[0]) if operands else None
    return state._replace(depth=depth, pushed={**state.pushed, depth: what})


@functools.lru_cache(maxsize=1 << 10)
def _spellings(register: str) -> tuple[str, ...]:
    """How a register and its parts are written."""
    if register[1:].isdigit():
        return (register,)
    return (register, f"e{register[1:]}", register[1:], f"{register[1:-1]}l", f"{register[1:]}l")


def _parts(held: Mapping[str, object]) -> list[str]:
    return [spelling for register in held for spelling in _spellings(register)]


def _operands(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")] if text else []


def _place(memory: re.Match[str]) -> tuple[str, int]:
    offset = int(memory["offset"] or "0", 0)
    return memory["base"], -offset if memory["sign"] == "-" else offset


def _lifted(state: _State, amount: int) -> _State:
    return state._replace(depth=None if state.depth is None else state.depth - amount)
