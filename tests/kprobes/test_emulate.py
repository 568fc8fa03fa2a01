"""KP-27, KP-34: an emulated instruction does what the processor does with it."""

from __future__ import annotations

import ctypes
import mmap

import pytest
from isolation import isolated

from sandbox.x86_64.instruction import decode

CF, PF, ZF, SF, OF = 1, 4, 0x40, 0x80, 0x800
AT, TARGET = 256, 1024
BRANCHES = [*range(0x70, 0x80), 0xE0, 0xE1, 0xE2, 0xE3]
"""jcc, loopne, loope, loop, jrcxz."""
COUNTS = (0, 1, 2, 1 << 32, (1 << 32) + 1)


def after(emulator, code, address=0x1000, **registers):
    """The registers after an instruction at `address`."""
    from ftrace.hit.x86_64.pt_regs import pt_regs

    regs = pt_regs.ctypes(ip=address, **registers)
    emulator.carry_out(decode(bytes.fromhex(code), address), regs)
    return regs


def on_stack(*words):
    """Words at the top of a stack, and the address there."""
    stack = (ctypes.c_uint64 * 8)(*words)
    return stack, ctypes.addressof(stack)


def states(opcode):
    """Every value of the flags that decide, and counts where those decide."""
    for bits in range(32):
        flags = sum(flag for index, flag in enumerate((CF, PF, ZF, SF, OF)) if bits >> index & 1)
        for count in COUNTS if opcode >= 0xE0 else (7,):
            yield flags, count


@isolated(timeout=60)
def test_conditional_branches_go_where_the_processor_goes():
    from emulating import Emulator
    from machine import WHERE, Machine

    machine, emulator = Machine(), Emulator()
    base = machine.text.base
    machine.go_to(base + TARGET, machine.other_end)
    for opcode in BRANCHES:
        for prefix in ("", "67") if opcode >= 0xE0 else ("",):  # 67: ecx counts
            code = bytes.fromhex(f"{prefix}{opcode:02x}10")
            machine.put(base + AT, code)
            machine.go_to(base + AT + len(code), machine.end)
            machine.go_to(base + AT + len(code) + 16, machine.other_end)
            for flags, count in states(opcode):
                state = machine.run(base + AT, {"cx": count}, flags, b"")
                regs = after(emulator, code.hex(), base + AT, cx=count, flags=flags | 0x202)
                to = base + AT + len(code) + 16 * state[WHERE]
                assert (regs.ip, regs.cx) == (to, state[1]), (code.hex(), hex(flags), count)
                assert regs.flags == flags | 0x202


@isolated
def test_far_returns_pop_as_many_bytes_as_their_width():
    """As retf and lretq do, which also pop the code segment; and drop what their immediate says."""
    from emulating import Emulator

    emulator = Emulator()
    stack, sp = on_stack(0x33_1234_5678, 0x33)
    for code, ip, popped in (
        ("cb", 0x1234_5678, 8),
        ("48cb", 0x33_1234_5678, 16),
        ("ca1000", 0x1234_5678, 24),
        ("c21000", 0x33_1234_5678, 24),
        ("c3", 0x33_1234_5678, 8),
    ):
        regs = after(emulator, code, sp=sp)
        assert (regs.ip, regs.sp) == (ip, sp + popped), code
    assert list(stack)[:2] == [0x33_1234_5678, 0x33]


@isolated
def test_popf_changes_only_what_user_mode_may():
    """IF, IOPL, RF, VM and reserved bits stay; as with popfq."""
    from emulating import Emulator

    emulator = Emulator()
    for before, popped, expected in (
        (0x202, 0xFFFF_FFFF_FFFF_FFFF, 0x244FD7),
        (0x244FD7, 0, 0x202),
        (0x3_3202, 0xCD5, 0x3_3ED7),
    ):
        stack, sp = on_stack(popped)
        regs = after(emulator, "9d", sp=sp, flags=before)
        assert (regs.flags, regs.sp, regs.ip, stack[0]) == (expected, sp + 8, 0x1001, popped)


@isolated
def test_pushf_hides_the_resume_flag():
    from emulating import Emulator

    stack, top = on_stack(1, 2)
    regs = after(Emulator(), "9c", sp=top + 8, flags=0x3_0ED7)
    assert (list(stack)[:2], regs.sp, regs.flags) == ([0xED7, 2], top, 0x3_0ED7)


@pytest.mark.parametrize("prefix, upper", [("", 0), ("67", 0), ("67", 5 << 40)], ids=["64", "32", "32, upper half"])
@isolated
def test_branches_through_memory_read_where_the_processor_reads(prefix, upper):
    """An address-size prefix drops the upper half of the address, not of the registers."""
    from emulating import Emulator

    emulator = Emulator()
    low = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40)  # MAP_32BIT
    words = (ctypes.c_uint64 * 512).from_buffer(low)
    at = ctypes.addressof(words)
    assert at < 1 << 32
    words[3] = 0xABCD_0000_1234
    for code, registers in {
        "ff20": {"ax": at + 24},
        "ff6018": {"ax": at},
        "ff24d8": {"ax": at, "bx": 3},  # (%rax,%rbx,8)
        "41ff6424e8": {"r12": at + 48},
    }.items():
        values = {name: value + upper if name != "bx" else value for name, value in registers.items()}
        regs = after(emulator, prefix + code, **values)
        assert regs.ip == 0xABCD_0000_1234, code
        assert all(getattr(regs, name) == value for name, value in values.items())
