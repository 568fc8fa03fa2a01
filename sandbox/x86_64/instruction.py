"""One decoded instruction. Bytes in, facts out.

`capstone` provides an instruction's length, name and displacement; the few facts that the rules of kprobes need (encoding, opcode
map, control flow) are read from the bytes between its prefixes and its ModRM, so that a VEX or EVEX opcode is never taken for the
one-byte opcode of the same number.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from sandbox.x86_64.decoding import first_decoded

MAX_INSN_SIZE = 15
"""Length of the longest instruction, in bytes."""

OPERAND_SIZE, ADDRESS_SIZE, CS_OVERRIDE, LOCK = 0x66, 0x67, 0x2E, 0xF0
_PREFIXES = frozenset({OPERAND_SIZE, ADDRESS_SIZE, LOCK, 0xF2, 0xF3, CS_OVERRIDE, 0x36, 0x3E, 0x26, 0x64, 0x65})
_REX_W, _REX_B = 8, 1


class Encoding(enum.Enum):
    """How the opcode is written down. Only LEGACY opcodes mean what the kernel's tables say."""

    __hash__ = object.__hash__  # an enumeration's own, which is slow, serves members that are equal and not the same

    LEGACY = enum.auto()
    VEX = enum.auto()
    EVEX = enum.auto()
    XOP = enum.auto()


class Flow(enum.Enum):
    """Where execution continues after the instruction."""

    __hash__ = object.__hash__

    NEXT = "the next instruction"
    CALL = "a near call"
    JUMP = "a near jump"
    CONDITIONAL = "a conditional jump"
    LOOP = "a loop instruction"
    COUNT = "a jump if the count register is zero"
    INDIRECT_CALL = "an indirect call"
    INDIRECT_JUMP = "an indirect jump"
    RETURN = "a near return"
    FAR_RETURN = "a far return"
    FAR = "a far transfer or an interrupt return"
    TRAP = "a trap"
    SYSCALL = "a system call"
    TRANSACTION = "the beginning of a transaction"


DIRECT = frozenset({Flow.CALL, Flow.JUMP, Flow.CONDITIONAL, Flow.LOOP, Flow.COUNT})
"""Flows whose target is part of the instruction."""


class Instruction(NamedTuple):
    """One instruction at `address`; `code` is exactly its bytes.

    `opcode_map` is 0 for one-byte opcodes, 1 for 0f, 2 for 0f 38, 3 for 0f 3a, or the number in a VEX, EVEX or XOP prefix.
    `modrm` is None if it has no ModRM byte, which is otherwise at `modrm_offset`. `displacement_offset` is the offset of
    the 4-byte displacement of a RIP-relative operand, or 0; `rip_target` is the address of that operand. `target` is the
    address that a direct branch goes to.
    """

    address: int
    code: bytes
    mnemonic: str
    op_str: str
    prefixes: bytes
    rex: int
    encoding: Encoding
    opcode_map: int
    opcode: int
    modrm: int | None
    modrm_offset: int
    displacement_offset: int
    rip_target: int | None
    flow: Flow
    target: int | None

    @property
    def length(self) -> int:
        """In bytes."""
        return len(self.code)

    @property
    def end(self) -> int:
        """The address after the instruction."""
        return self.address + len(self.code)

    @property
    def text(self) -> str:
        """As a disassembler shows it."""
        return f"{self.mnemonic} {self.op_str}".strip()

    @property
    def reg(self) -> int:
        """The reg field of the ModRM byte (which operation of a group it is); 0 without one."""
        return (self.modrm or 0) >> 3 & 7

    @property
    def in_register(self) -> bool:
        """Whether the ModRM operand is a register and not memory."""
        return self.modrm is not None and self.modrm >= 0xC0

    @property
    def register(self) -> int:
        """The number (0..15, rax rcx rdx rbx rsp rbp rsi rdi r8...) of the register operand of ModRM."""
        return (self.modrm or 0) & 7 | (self.rex & _REX_B) << 3

    @property
    def wide(self) -> bool:
        """Whether REX.W is set."""
        return bool(self.rex & _REX_W)

    def has(self, prefix: int) -> bool:
        """Whether the instruction has this legacy prefix."""
        return prefix in self.prefixes

    def legacy(self, opcode_map: int, *opcodes: int) -> bool:
        """Whether it is written with one of these opcodes of this map, and without VEX, EVEX or XOP."""
        return self.encoding is Encoding.LEGACY and self.opcode_map == opcode_map and self.opcode in opcodes


def decode(code: bytes, address: int) -> Instruction:
    """The instruction at the beginning of `code`, located at `address`.

    Raises ValueError if the bytes are not an instruction, or too few.
    """
    known = _known.get(code)
    if known is not None:
        return tuple.__new__(Instruction, (address, *known[1:]))
    for size in range(1, min(len(code), MAX_INSN_SIZE) + 1):
        known = _known.get(code[:size])
        if known is not None:
            return tuple.__new__(Instruction, (address, *known[1:]))
    return _decode(code, address)


_known: dict[bytes, Instruction] = {}
"""Position-independent instructions, by their bytes, which are the prefix of no other instruction."""
_MOST_KNOWN = 1 << 12


def _decode(code: bytes, address: int) -> Instruction:
    code = code[:MAX_INSN_SIZE]
    decoded = first_decoded(code, address)
    if decoded is None:
        raise ValueError(f"the bytes {code.hex(' ')} at {address:#x} are not an x86-64 instruction")
    _address, size, mnemonic, op_str = decoded
    insn = _described(code[:size], address, mnemonic, op_str)
    if insn.rip_target is None and insn.target is None and len(_known) < _MOST_KNOWN:
        _known[insn.code] = insn
    return insn


def _described(code: bytes, address: int, mnemonic: str, op_str: str) -> Instruction:
    prefixes, rex, encoding, opcode_map, at = _opening(code)
    opcode = code[at]
    modrm_at = at + 1 if _has_modrm(encoding, opcode_map, opcode) else 0
    modrm = code[modrm_at] if modrm_at else None
    # The ModRM of a `mov` from or to a control register looks like that too, but nothing follows it.
    displacement = modrm_at + 1 if modrm is not None and modrm & 0xC7 == 5 and modrm_at + 5 <= len(code) else 0
    flow = _flow(encoding, opcode_map, opcode, modrm)
    return Instruction(
        address, code, mnemonic, op_str, prefixes, rex, encoding, opcode_map, opcode, modrm, modrm_at,
        displacement, _rip_target(code, address, displacement, prefixes), flow, _target(code, address, flow),
    )  # fmt: skip


_WITH_MODRM = frozenset(
    {
        *(operation + form for operation in range(0, 0x40, 8) for form in range(4)),
        *(0x63, 0x69, 0x6B, *range(0x80, 0x90), 0xC0, 0xC1, 0xC6, 0xC7),
        *(*range(0xD0, 0xD4), *range(0xD8, 0xE0), 0xF6, 0xF7, 0xFE, 0xFF),
    }
)
"""One-byte opcodes that a ModRM byte follows."""
_WITHOUT_MODRM = frozenset(
    {
        *(*range(5, 10), 0x0B, 0x0E, *range(0x30, 0x38), 0x77, *range(0x80, 0x90)),
        *(0xA0, 0xA1, 0xA2, 0xA8, 0xA9, 0xAA, 0xB9, *range(0xC8, 0xD0), 0xFF),
    }
)
"""Opcodes after 0f that no ModRM byte follows; capstone takes those that are undefined (b9, ff) for two bytes."""
_VZERO = 0x77


def _has_modrm(encoding: Encoding, opcode_map: int, opcode: int) -> bool:
    if encoding is not Encoding.LEGACY:
        return (encoding, opcode_map, opcode) != (Encoding.VEX, 1, _VZERO)
    return opcode in _WITH_MODRM if opcode_map == 0 else opcode_map > 1 or opcode not in _WITHOUT_MODRM


def _opening(code: bytes) -> tuple[bytes, int, Encoding, int, int]:
    """Prefixes, REX, encoding, opcode map, and the offset of the opcode. A REX that is not in front of that is none."""
    at = rex = 0
    while (first := code[at]) in _PREFIXES or first & 0xF0 == 0x40:
        rex = 0 if first in _PREFIXES else first
        at += 1
    prefixes = bytes(byte for byte in code[:at] if byte in _PREFIXES) if at else b""
    if first == 0xC5:
        return prefixes, 0, Encoding.VEX, 1, at + 2
    if first == 0xC4:
        return prefixes, 0, Encoding.VEX, code[at + 1] & 0x1F, at + 3
    if first == 0x62:
        return prefixes, 0, Encoding.EVEX, code[at + 1] & 7, at + 4
    if first == 0x8F and code[at + 1] & 0x38:
        return prefixes, 0, Encoding.XOP, code[at + 1] & 0x1F, at + 3
    if code[at] != 0x0F:
        return prefixes, rex, Encoding.LEGACY, 0, at
    if code[at + 1] in (0x38, 0x3A):
        return prefixes, rex, Encoding.LEGACY, 2 if code[at + 1] == 0x38 else 3, at + 2
    return prefixes, rex, Encoding.LEGACY, 1, at + 1


_ONE_BYTE = {
    0xE8: Flow.CALL, 0xE9: Flow.JUMP, 0xEB: Flow.JUMP, **dict.fromkeys(range(0x70, 0x80), Flow.CONDITIONAL),
    0xE0: Flow.LOOP, 0xE1: Flow.LOOP, 0xE2: Flow.LOOP, 0xE3: Flow.COUNT, 0xC2: Flow.RETURN, 0xC3: Flow.RETURN,
    0xCA: Flow.FAR_RETURN, 0xCB: Flow.FAR_RETURN, 0xCF: Flow.FAR, 0x9A: Flow.FAR, 0xEA: Flow.FAR,
    0xCC: Flow.TRAP, 0xCD: Flow.TRAP, 0xCE: Flow.TRAP, 0xF1: Flow.TRAP,
}  # fmt: skip
_TWO_BYTES = {
    **dict.fromkeys(range(0x80, 0x90), Flow.CONDITIONAL), 0x05: Flow.SYSCALL,
    0x34: Flow.FAR, 0x35: Flow.FAR, 0x07: Flow.FAR, 0x0B: Flow.TRAP, 0xB9: Flow.TRAP, 0xFF: Flow.TRAP,
}  # fmt: skip
_GROUP_5 = {2: Flow.INDIRECT_CALL, 3: Flow.FAR, 4: Flow.INDIRECT_JUMP, 5: Flow.FAR}
_XBEGIN = (0xC7, 0xF8)


def _flow(encoding: Encoding, opcode_map: int, opcode: int, modrm: int | None) -> Flow:
    if encoding is not Encoding.LEGACY or opcode_map > 1:
        return Flow.NEXT
    if opcode_map == 1:
        return _TWO_BYTES.get(opcode, Flow.NEXT)
    if opcode == 0xFF:
        return _GROUP_5.get((modrm or 0) >> 3 & 7, Flow.NEXT)
    if (opcode, modrm) == _XBEGIN:
        return Flow.TRANSACTION
    return _ONE_BYTE.get(opcode, Flow.NEXT)


def _rip_target(code: bytes, address: int, displacement: int, prefixes: bytes) -> int | None:
    if not displacement:
        return None
    offset = int.from_bytes(code[displacement : displacement + 4], "little", signed=True)
    bits = 32 if ADDRESS_SIZE in prefixes else 64
    return (address + len(code) + offset) % (1 << bits)


def _target(code: bytes, address: int, flow: Flow) -> int | None:
    """A direct branch ends with its displacement: one byte in the short forms, four in the others."""
    if flow is Flow.NEXT or (flow not in DIRECT and flow is not Flow.TRANSACTION):
        return None
    size = 1 if _is_short(code) else 4
    return (address + len(code) + int.from_bytes(code[-size:], "little", signed=True)) % (1 << 64)


def _is_short(code: bytes) -> bool:
    _prefixes, _rex, _encoding, opcode_map, at = _opening(code)
    return opcode_map == 0 and (0x70 <= code[at] < 0x80 or 0xE0 <= code[at] <= 0xE3 or code[at] == 0xEB)
