"""Functions whose return cannot be hooked, found by their code: they move or read their return address, or move their stack.

The paths of a function are followed from its entry, up to indirect jumps, with the known state of the stack: how far the stack
pointer is below the return slot, which registers point into the stack, and which hold the return address.

A function reads its return address to know its caller, as dlopen and dlsym do; a hooked call would find a stub there.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from sandbox.x86_64.decoding import Decoded, decoded
from sandbox.x86_64.jump_sources import loads_of
from sandbox.x86_64.syscalls import SYS_RT_SIGRETURN

_WORD = 8
_PAGE = 4096
_NUMBER = re.compile(r"-?(?:0x[0-9a-f]+|\d+)$")
_NAME = re.compile(r"[a-z]\w+")
_MEMORY = re.compile(r"\[(?P<base>\w+)(?: (?P<sign>[+-]) (?P<offset>0x[0-9a-f]+|\d+))?\]$")
_READERS = frozenset(
    {"cmp", "test", "push", "call", "jmp", "bt", "prefetcht0", "nop", "ucomisd", "ucomiss", "comisd", "comiss"}
)
_NOT_READING = frozenset({"lea", "nop", "prefetcht0", "prefetcht1", "prefetcht2", "prefetchnta", "prefetchw"})
"""Instructions with an operand in memory that they do not read."""
_ARGUMENTS = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")
_TRACERS = frozenset({"__tsan_func_entry", "__cyg_profile_func_enter", "__cyg_profile_func_exit"})
"""Functions that compilers let every function call with its return address, only to note it."""
_LEAVING = frozenset({"call", "ret", "jmp", "bnd jmp"})
Callee = Callable[[Decoded], str]
"""Tells the name of the function that a call or jump leads to; '' if it is not known."""
Keeping = Callable[[Decoded, str], bool]
"""Tells whether what is called certainly leaves a register as it is."""
_INDEXED = re.compile(r"\[(?P<base>\w+) \+ (?P<index>\w+)(?P<scale>\*\d)?(?: [+-] \w+)?\]$")
_ARITHMETIC = frozenset({"xor", "rol", "ror", "add", "sub", "neg", "not"})
_NAMED = ("ax", "bx", "cx", "dx", "si", "di", "bp", "sp")
_NUMBERED = range(8, 16)
_LOW_HALVES = {f"e{name}": f"r{name}" for name in _NAMED} | {f"r{number}d": f"r{number}" for number in _NUMBERED}
_WHOLE = _LOW_HALVES | {
    **{name: f"r{name}" for name in _NAMED},
    **{f"{name.removesuffix('x')}{part}": f"r{name}" for name in _NAMED for part in "lh"},
    **{f"r{number}{part}": f"r{number}" for number in _NUMBERED for part in "wb"},
}
"""Parts of registers, and the register that each belongs to."""

_HARMLESS = frozenset({
    "mov", "movabs", "movzx", "movsx", "movsxd", "movups", "movaps", "movdqa", "movdqu", "movq", "movd", "lea", "nop",
    "cmp", "test", "add", "sub", "and", "or", "xor", "shl", "shr", "sar", "imul", "neg", "not", "inc", "dec", "bswap",
    "cmove", "cmovne", "cmova", "cmovae", "cmovb", "cmovbe", "cmovg", "cmovge", "cmovl", "cmovle", "cmovs", "cmovns",
    "sete", "setne", "seta", "setae", "setb", "setbe", "setg", "setge", "setl", "setle", "rol", "ror", "adc", "sbb",
    "pxor", "paddd", "pand", "por", "punpcklqdq", "pshufd", "cdqe", "cdq", "cqo", "endbr64",
})  # fmt: skip
"""Instructions that concern the stack by their operands only."""
_SYSCALL = b"\x0f\x05"

_CMP_SIZE = 3
"""Bytes of a comparison of two registers of 64 bits."""

STACK, RETURN, ABOVE = "the stack", "the return address", "the stack pointer after the return"
"""The kinds of values in a register."""


class _State(NamedTuple):
    """The state before an instruction.

    `depth`: bytes from the stack pointer up to the return slot; None: not known. `held`: what registers hold, and how far below
    the return slot that is if it is on the stack, or where it was read if it is the return address. `pushed`: the same of what
    was pushed, by depth. `number`: the constant in eax.
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

    def is_sum(self, parts: Sequence[str]) -> bool:
        """Whether a sum of registers is an address on the stack: exactly one of them is."""
        return sum(map(self.is_stack, parts)) == 1

    def is_stack(self, base: str) -> bool:
        return base == "rsp" or self.held.get(base, ("",))[0] in (STACK, ABOVE)

    def readings(self, registers: Sequence[str]) -> set[int]:
        """Where the return address was read that is in these registers."""
        held = (self.held.get(register, ("", None)) for register in registers)
        return {at for kind, at in held if kind == RETURN and at is not None}

    def holding(self, register: str, what: tuple[str, int | None] | None) -> _State:
        if what is None and register not in self.held:
            return self
        held = {name: value for name, value in self.held.items() if name != register}
        if what is not None:
            held[register] = what
        return self._replace(held=held)

    def with_number(self, number: int | None) -> _State:
        return self if number == self.number else self._replace(number=number)


class _Operands(NamedTuple):
    """The operands of an instruction, as they are written.

    `memory`: base register and offset, for each operand in memory that is so simple. `summed`: the registers that the address of
    the last operand adds up, if it has an index. `registers`: those whose names, or those of whose parts, are in them, and the
    operands themselves.
    """

    words: tuple[str, ...]
    memory: tuple[tuple[str, int] | None, ...]
    summed: tuple[str, ...]
    registers: frozenset[str]


@functools.lru_cache(maxsize=1 << 10)
def _operands(text: str) -> _Operands:
    words = tuple(part.strip() for part in text.split(",")) if text else ()
    registers = frozenset((*words, *(_WHOLE.get(name, name) for name in _NAME.findall(text))))
    return _Operands(words, tuple(map(_place, words)), _summed(text), registers)


def registers_in(text: str) -> frozenset[str]:
    """The registers, whole, that are named in an instruction's operands, or parts of which are."""
    return _operands(text).registers


def _summed(text: str) -> tuple[str, ...]:
    memory = _INDEXED.search(text)
    if memory is None:
        return ()
    return (memory["base"],) if memory["scale"] else (memory["base"], memory["index"])


def _place(word: str) -> tuple[str, int] | None:
    memory = _MEMORY.search(word)
    if memory is None:
        return None
    offset = int(memory["offset"] or "0", 0)
    return memory["base"], -offset if memory["sign"] == "-" else offset


class _Moved(Exception):
    """Why the return cannot be hooked."""


_Merging = Callable[[_State, _State], _State]


def _first(known: _State, other: _State) -> _State:
    """What is known where paths meet, for finding what a function may do: what the first path knows.

    The depth is not known if the paths have different ones: in a loop that allocates stack space, or after a call that does not
    return.
    """
    return known if known.depth is None or known.depth == other.depth else other._replace(depth=None)


def _common(known: _State, other: _State) -> _State:
    """The same for finding what a function certainly does: what both paths know."""
    return _State(
        known.depth if known.depth == other.depth else None,
        dict(known.held.items() & other.held.items()),
        dict(known.pushed.items() & other.pushed.items()),
        known.number if known.number == other.number else None,
    )


def _unknown(_call: Decoded) -> str:
    return ""


def _changes(_call: Decoded, _register: str) -> bool:
    return False


def uses_its_return(
    code: bytes, start: int, callee: Callee = _unknown, reader: Callee = _unknown, keeps: Keeping = _changes
) -> str:
    """Why the return of the function with these bytes at `start` cannot be hooked; '' if it can, as far as can be seen.

    `reader`: the name of the function that a jump leads to, if that reads its return address, which is the jump's function's.
    """
    walk = _Walk(code, start, _first, callee, reader, keeps)
    walk.follow()
    if walk.reads and not walk.moves:
        walk = _Walk(code, start, _common, callee, reader, keeps)
        walk.follow()
        reads = walk.reads.keys() - (walk.noted - walk.used)
        return walk.reads[min(reads)] if reads else ""
    return walk.moves[min(walk.moves)] if walk.moves else ""


def shifts_stack(code: bytes, start: int) -> bool:
    """Whether the function with these bytes moves a stack pointer that is where it has put it by a distance in a register."""
    walk = _Walk(code, start, _first, _unknown, _unknown, _changes)
    walk.follow()
    return walk.shifts


class _Walk:
    """The paths of one function. `saved`: which of RETURN and ABOVE it has stored outside its stack.

    `states`: those that the instructions followed so far are reached with. `merged`: the state where paths meet. `moves`: the
    reasons against hooking the return, by the address of the instruction; `reads`: the same of instructions that only read it;
    `noted`: those of them whose result a tracer notes; `used`: those whose result is used otherwise.
    """

    def __init__(
        self, code: bytes, start: int, merged: _Merging, callee: Callee, reader: Callee, keeps: Keeping
    ) -> None:
        self.shifts = False
        self._start = start
        self._callee = callee
        self._reader = reader
        self._keeps = keeps
        self._merged = merged
        self._code = {each.address: each for each in decoded(code, start)}
        self._has_syscall = _SYSCALL in code
        self._saved: set[str] = set()
        self._states: dict[int, _State] = {}
        self.moves: dict[int, str] = {}
        self.reads: dict[int, str] = {}
        self.noted: set[int] = set()
        self.used: set[int] = set()

    def follow(self) -> None:
        code, states = self._code, self._states
        waiting = [(self._start, _State(0, {}, {}))]
        while waiting:
            at, state = waiting.pop()
            while (insn := code.get(at)) is not None:
                if at in states:
                    state = self._merged(states[at], state)
                    if state == states[at]:
                        break
                    self.moves.pop(at, None)
                    self.reads.pop(at, None)
                states[at] = state
                _at, size, mnemonic, operands = insn
                if "[" in operands and ("sp" in operands or state.held) and _is_read(mnemonic, operands, state):
                    self.reads[at] = self._reason(insn, "reads its own return address")
                if mnemonic in _LEAVING or mnemonic[0] == "j":
                    self._note_leaving(insn, state)
                # Most do not matter, while no register holds anything of interest. [1:3]: into xmm0, ymm0 or zmm0.
                if operands[1:3] != "mm" and (
                    mnemonic not in _HARMLESS or "sp" in operands or self._matters(mnemonic, operands, state)
                ):
                    waiting += self._next(insn, state)
                    break
                at += size
        self._note_unseen()

    def _note_unseen(self) -> None:
        """Jumps to other functions, but for cold parts, in code that only a table of jumps leads to."""
        for at, insn in self._code.items():
            if at in self._states or insn.mnemonic[0] != "j" or self._stays(insn):
                continue
            name = self._reader(insn)
            if name and "." not in name:
                self.reads[at] = self._reason(insn, f"jumps to {name}, which reads the return address")

    def _note_leaving(self, insn: Decoded, state: _State) -> None:
        """A call, a return, or a jump, which may lead to another function."""
        if insn.mnemonic == "ret":
            self.used |= state.readings(("rax",))
            return
        if insn.mnemonic != "call":
            ways = (insn, *loads_of(self._code.values(), insn)) if state.depth == 0 and not self._stays(insn) else ()
            if name := next(filter(None, map(self._reader, ways)), ""):
                self.reads[insn.address] = self._reason(insn, f"jumps to {name}, which reads the return address")
            return
        if any(state.held.get(argument) == (STACK, 0) for argument in _ARGUMENTS):
            self.reads[insn.address] = self._reason(insn, "passes on where its return address is")
        if passed := state.readings(_ARGUMENTS):
            if self._callee(insn) in _TRACERS:
                self.noted |= passed
            else:
                self.used |= passed

    def _stays(self, jump: Decoded) -> bool:
        return bool(_NUMBER.match(jump.operands)) and int(jump.operands, 16) in self._code

    def _next(self, insn: Decoded, state: _State) -> Sequence[tuple[int, _State]]:
        try:
            return self._successors(insn, state)
        except _Moved as moved:
            self.moves[insn.address] = str(moved)
            return ()

    def _matters(self, mnemonic: str, operands: str, state: _State) -> bool:
        """Whether a harmless instruction, which does not change the stack pointer, may change the known state."""
        _depth, held, _pushed, number = state
        if number is not None:
            return True
        if held and mnemonic not in _READERS and not _operands(operands).registers.isdisjoint(held):
            return True
        return self._has_syscall and mnemonic == "mov"

    def _successors(self, insn: Decoded, state: _State) -> Sequence[tuple[int, _State]]:
        name, following = insn.mnemonic.rpartition(" ")[2], insn.address + insn.size
        if name in _HARMLESS:
            return ((following, self._after(insn, name, _operands(insn.operands), state)),)
        if name.startswith("ret"):
            return ()
        if name[0] == "j" or name.startswith("loop"):
            ways = [int(insn.operands, 16)] if _NUMBER.match(insn.operands) else []
            if not ways and state.depth is not None and state.depth < 0:
                raise self._moved(insn, "takes more off the stack than it has put there")
            if name in ("je", "jne"):
                return (
                    (ways[0], self._on_branch(insn, name == "je", state)),
                    (following, self._on_branch(insn, name == "jne", state)),
                )
            return [(to, state) for to in ways + ([] if name == "jmp" else [following])]
        if name in ("ud2", "hlt"):
            return ()
        if name == "syscall" and state.number == SYS_RT_SIGRETURN:
            raise self._moved(insn, "returns from a signal's handler (rt_sigreturn)")
        return ((following, self._after(insn, name, _operands(insn.operands), state)),)

    def _after(self, insn: Decoded, name: str, operands: _Operands, state: _State) -> _State:
        words = operands.words
        if name in ("push", "pushfq"):
            return _pushed(words, state)
        if name in ("pop", "popfq"):
            return self._popped(insn, words, state)
        if name == "leave":
            return self._set_stack(insn, state.to("rbp", _WORD), state.is_stack("rbp"), state).holding("rbp", None)
        if name == "call":
            stays = {
                name: name in _KEPT or (kind != RETURN and self._keeps(insn, name))
                for name, (kind, _) in state.held.items()
            }
            return state._replace(held={name: what for name, what in state.held.items() if stays[name]}, number=None)
        if not words:
            return state.with_number(None)
        if name == "xchg" and "rsp" in words:
            return self._exchanged(insn, words[0] if words[1] == "rsp" else words[1], state)
        if words[0] == "rsp" and name not in _READERS:
            return self._new_stack(insn, name, operands, state)
        if operands.memory[0] is not None:
            self._store(insn, name, operands.memory[0], words, state)
            return state
        return _loaded(insn.address, name, operands, state)

    def _on_branch(self, insn: Decoded, equal: bool, state: _State) -> _State:
        """The state after a branch. Compilers allocate large frames page by page, until rsp is equal to another register."""
        before = self._code.get(insn.address - _CMP_SIZE)
        if not equal or before is None or before.mnemonic != "cmp":
            return state
        words = _operands(before.operands).words
        other = words[1] if words[0] == "rsp" else words[0] if words[1] == "rsp" else ""
        return state._replace(depth=state.to(other, 0)) if state.is_stack(other) else state

    # -- the stack pointer --------------------------------------------------------------------------------------

    def _popped(self, insn: Decoded, operands: Sequence[str], state: _State) -> _State:
        if operands == ("rsp",):
            raise self._moved(insn, "takes its stack pointer off the stack")
        if state.depth is not None and state.depth <= 0:
            raise self._moved(insn, "takes its return address off the stack")
        known = (STACK, None) if state.depth is None else state.pushed.get(state.depth)
        after = _lifted(state, _WORD)
        return after.holding(operands[0], known) if operands else after

    def _new_stack(self, insn: Decoded, name: str, operands: _Operands, state: _State) -> _State:
        source, memory = operands.words[-1], operands.memory[-1]
        if name in ("add", "sub") and _NUMBER.match(source):
            amount = int(source, 0)
            return _lifted(state, amount if name == "add" else -amount)
        if name in ("and", "sub", "or") or (name == "add" and not state.is_stack(source)):
            self.shifts |= name == "add" and state.depth is not None
            return state._replace(depth=None)
        if memory is not None:
            base, offset = memory
            if name == "lea":
                return self._set_stack(insn, state.to(base, offset), state.is_stack(base), state)
            return self._set_stack(insn, None, state.is_stack(base), state)
        if name == "mov":
            return self._set_stack(insn, state.to(source, 0), state.is_stack(source), state)
        return self._set_stack(insn, None, state.is_sum(operands.summed), state)

    def _exchanged(self, insn: Decoded, register: str, state: _State) -> _State:
        old = (STACK, state.depth)
        return self._set_stack(insn, state.to(register, 0), state.is_stack(register), state).holding(register, old)

    def _set_stack(self, insn: Decoded, depth: int | None, in_stack: bool, state: _State) -> _State:
        if not in_stack:
            raise self._moved(insn, "may switch stacks")
        return state._replace(depth=depth)

    # -- everything else ----------------------------------------------------------------------------------------

    def _store(self, insn: Decoded, name: str, memory: tuple[str, int], operands: Sequence[str], state: _State) -> None:
        base, offset = memory
        if state.to(base, offset) == 0 and name not in _READERS and not (name == "or" and operands[-1] == "0"):
            raise self._moved(insn, "writes to its return slot")
        kind = state.held.get(operands[-1], ("",))[0]
        self.used |= state.readings(operands[-1:])
        if name == "mov" and kind in (RETURN, ABOVE) and not state.is_stack(base):
            self._saved.add(kind)
            if len(self._saved) == 2:
                raise self._moved(insn, "saves where it returns to, and returns there again")

    def _moved(self, insn: Decoded, what: str) -> _Moved:
        return _Moved(self._reason(insn, what))

    def _reason(self, insn: Decoded, what: str) -> str:
        text = f"{insn.mnemonic} {insn.operands}".strip()
        return f"it {what} (`{text}` at +{insn.address - self._start:#x})"


_KEPT = frozenset({"rbx", "rbp", "r12", "r13", "r14", "r15"})


def _is_read(mnemonic: str, operands: str, state: _State) -> bool:
    """Whether the instruction, which has an operand in memory, reads the return slot.

    Two that do so do not need what is there: compilers' copy of the slot below a realigned stack, and `or $0`, a barrier or
    a probe of the stack.
    """
    words, memory, _summed, _registers = _operands(operands)
    place = next((each for each in memory if each is not None and state.to(*each) == 0), None)
    if place is None or mnemonic in _NOT_READING:
        return False
    if mnemonic == "push":
        return state.depth is not None or place[0] == "rbp"
    return not (mnemonic.endswith("or") and words[-1] == "0")


def _loaded(at: int, name: str, operands: _Operands, state: _State) -> _State:
    first, source = operands.words[0], operands.words[-1]
    target = _LOW_HALVES.get(first, first)
    if target == "rax":
        state = state.with_number(int(source, 0) if name == "mov" and _NUMBER.match(source) else None)
    if name in _ARITHMETIC and (len(operands.words) < 2 or first != source):
        if name in ("add", "sub") and state.is_stack(source):
            return state.holding(target, (STACK, None) if name == "add" and not state.is_stack(target) else None)
        if name in ("add", "sub") and _NUMBER.match(source):
            return _along(target, state, int(source, 0) if name == "sub" else -int(source, 0))
        return _along(target, state)
    if name == "and" and _aligns(source):
        return _along(target, state)
    held = _held(name, operands, state)
    return state.holding(target, (RETURN, at) if held == (RETURN, None) else held)


def _along(register: str, state: _State, down: int | None = None) -> _State:
    """A register that has been moved down by a number of bytes: it points to where it did. None: the number is not known."""
    kind, depth = state.held.get(register, ("", None))
    if depth is not None:
        depth = None if down is None else depth + down
    return state.holding(register, (kind, depth)) if kind else state


def _aligns(source: str) -> bool:
    """Whether `and` with that number takes an address down by less than a page: it stays on its stack."""
    return bool(_NUMBER.match(source)) and -_PAGE <= ctypes.c_int64(int(source, 0)).value < 0


def _held(name: str, operands: _Operands, state: _State) -> tuple[str, int | None] | None:
    """The value of a register after `mov` or `lea` from the last operand."""
    source, memory = operands.words[-1], operands.memory[-1]
    if memory is not None:
        base, offset = memory
        depth = state.to(base, offset)
        if name == "lea" and state.is_stack(base):
            return (ABOVE if depth == -_WORD and base == "rsp" else STACK, depth)
        if name == "mov" and depth == 0:
            return (RETURN, None)
        return (STACK, None) if name == "mov" and state.is_stack(base) else None
    if operands.summed:
        return (STACK, None) if name in ("mov", "lea") and state.is_sum(operands.summed) else None
    if name == "mov" and source == "rsp":
        return (STACK, state.depth)
    return state.held.get(source) if name == "mov" else None


def _pushed(operands: Sequence[str], state: _State) -> _State:
    if state.depth is None:
        return state
    depth = state.depth + _WORD
    what = state.held.get(operands[0]) if operands else None
    return state._replace(depth=depth, pushed={**state.pushed, depth: what})


def _lifted(state: _State, amount: int) -> _State:
    return state._replace(depth=None if state.depth is None else state.depth - amount)
