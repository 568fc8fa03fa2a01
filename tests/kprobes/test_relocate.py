"""Instructions at another address do what they did at their own: executed at both, and compared."""

from __future__ import annotations

import random

import pytest
from isolation import isolated

from kprobes.x86_64.slot import BOOSTED, slot_bytes
from sandbox.x86_64.encoding import jump
from sandbox.x86_64.instruction import Flow, decode
from sandbox.x86_64.relocate import expand, relocate

AT, TARGET, COPY = 0x40, 0x80, 0x2000
"""Offsets in the text: the original, where its branches lead (in short reach), and the copy."""

PLAIN = """90 488d05{data} 488b0d{data} 8305{data:1}07 48c705{data:4}78563412 67488d05{data} f20f1005{data} c5fb1005{data}
50 58 4155 6a05 9c 9d 480fafc1 488d442408 0fc8 91 d7 0fb64500 f3a4 f348ab 4887cb 480fb107 31c0 11c8 c9""".split()  # noqa: SIM905
BRANCHES = [
    "e8{target}", "e9{target}", "eb{short}", "f2e9{target}", "666648e8{target}",
    *[f"{0x70 + condition:02x}{{short}}" for condition in range(16)],
    *[f"0f{0x80 + condition:02x}{{target}}" for condition in range(16)],
    "e0{short}", "e1{short}", "e2{short}", "e3{short}", "67e2{short}", "67e3{short}",
]  # fmt: skip
INDIRECT = [
    "ffd0",
    "41ffd3",
    "ffe0",
    "ff542408",
    "ff9424f8ffffff",
    "ff15{word}",
    "ff25{word}",
    "ff55f8",
    "ff1424",
    "c3",
    "c21000",
    "f3c3",
]

SPECIAL: dict[str, dict[str, object]] = {
    "d7": {"ax": 5}, "f3a4": {"cx": 17}, "f348ab": {"cx": 3}, "9d": {"stack": [0xCD5] * 76},
}  # fmt: skip
"""What these need to find in registers."""


def bytes_of(sample: str, base: int, data: int) -> bytes:
    """The sample with its displacements filled in for AT. `{data:n}`: n bytes of immediate follow."""
    head, brace, tail = sample.partition("{")
    if not brace:
        return bytes.fromhex(sample)
    what, _, rest = tail.partition("}")
    kind, _, after = what.partition(":")
    size = 1 if kind == "short" else 4
    length = len(bytes.fromhex(head)) + size + int(after or 0)
    to = {"data": data, "word": data + 64, "target": base + TARGET, "short": base + TARGET}[kind]
    displacement = (to - (base + AT + length)).to_bytes(size, "little", signed=True)
    return bytes.fromhex(head) + displacement + bytes.fromhex(rest)


def a_state(seed: int, machine) -> tuple[dict[str, object], int, bytes]:
    rng = random.Random(seed)
    base, data = machine.text.base, machine.data
    registers: dict[str, object] = {
        "ax": base + TARGET, "r11": base + TARGET, "cx": rng.choice([0, 1, 2, 1 << 32, (1 << 32) + 1]),
        "dx": rng.getrandbits(64), "bx": data + 128, "si": data, "di": data + 256,
        "bp": machine.stack + 4096 - 8 * 40, "stack": [base + TARGET] * 76,
    }  # fmt: skip
    contents = rng.randbytes(64) + (base + TARGET).to_bytes(8, "little") + rng.randbytes(440)
    return registers, rng.getrandbits(12), contents


@isolated(timeout=60)
def test_a_moved_instruction_does_the_same():
    """KP-26, KP-34; a copied call pushes the original return address"""
    from machine import RED_ZONE, WHERE, Machine

    machine = Machine()
    base = machine.text.base
    machine.go_to(base + TARGET, machine.other_end)
    arrived = set()
    for sample in PLAIN + BRANCHES + INDIRECT:
        code = bytes_of(sample, base, machine.data)
        insn = decode(code, base + AT)
        assert insn.length == len(code), sample
        machine.put(base + AT, code)
        machine.go_to(insn.end, machine.end)
        copy = base + COPY
        moved = expand(insn, copy)
        machine.put(copy, moved + jump(copy + len(moved), insn.end))
        for seed in range(12):
            state = a_state(seed, machine)
            state[0].update(SPECIAL.get(sample, {}))
            original, again = machine.run(base + AT, *state), machine.run(copy, *state)
            if insn.flow is Flow.INDIRECT_CALL:  # below the return address is what the called function may overwrite
                original, again = [(*end[:-1], end[-1][RED_ZONE - 8 :]) for end in (original, again)]
            assert again == original, (sample, insn.text, seed)
            arrived.add((insn.flow, original[WHERE]))
    both_ways = {Flow.CONDITIONAL, Flow.LOOP, Flow.COUNT}
    assert {(flow, end) for flow in both_ways for end in (0, 1)} <= arrived


@isolated
def test_a_system_call_finds_its_original_return_address_in_rcx():
    """Section P; KP-29"""
    import os

    from machine import FLAGS, Machine

    machine = Machine()
    base = machine.text.base
    insn = decode(b"\x0f\x05", base + AT)
    machine.put(base + AT, insn.code)
    machine.go_to(insn.end, machine.end)
    slot = slot_bytes(insn, base + COPY, boosted=True)
    assert len(slot) <= BOOSTED
    machine.put(base + COPY, slot)
    registers = {"ax": 39}
    original, copied = machine.run(base + AT, registers, 0x8D5, b""), machine.run(base + COPY, registers, 0x8D5, b"")
    assert copied == original
    assert copied[:2] == (os.getpid(), insn.end)
    assert copied[FLAGS] == 0x8D5


def test_the_length_stays_where_it_has_to():
    """KP-26: a slot's copy is as long as the original."""
    for sample in ("488d0500000000", "c5fb100500000000", "67488d0500000000", "0f8400010000", "e8fbffffff"):
        insn = decode(bytes.fromhex(sample), 0x7F00_0000_0000)
        moved = decode(relocate(insn, 0x7F00_1000_0000), 0x7F00_1000_0000)
        assert (moved.length, moved.rip_target, moved.target) == (insn.length, insn.rip_target, insn.target)


@pytest.mark.parametrize("sample", ["488d0500000000", "e800000000", "7400", "0f8400000000"])
def test_what_is_out_of_reach_is_refused(sample):
    """KP-19"""
    insn = decode(bytes.fromhex(sample), 0x7F00_0000_0000)
    with pytest.raises(OverflowError):
        relocate(insn, 0x7F00_0000_0000 + (1 << 31) + 16)


@pytest.mark.parametrize("sample", ["cc", "0f0b", "48cf", "cb", "c7f800000000", "66e900000000", "ffd4"])
def test_what_cannot_be_moved_is_refused(sample):
    with pytest.raises(ValueError, match="`"):
        expand(decode(bytes.fromhex(sample), 0x40_0000), 0x41_0000)
