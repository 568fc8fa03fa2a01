"""The stub of a site: what a patched function head jumps to. Bytes in, bytes out.

A stub belongs to one site for as long as its module lives. It is 128 bytes, aligned to 64, and position-independent
but for the displacements that `emit_stubs` (ftrace.text_poke) writes into each copy:

    register roles   r11 = task, r10 = the site's probe list; both are free at a stub of ours and nowhere else

    entry, stack     rsp -> the parent's return address (the return slot)

      0  mov  %fs:TASK,%r11        this thread's record
      9  test %r11,%r11
     12  je   96                   it has none yet
     14  cmpl $0,REC(%r11)
     19  jne  96                   it is in tracing code already
     21  movl $INSIDE,REC(%r11)    from here on unregistering waits for it
     29  mov  slot(%rip),%r10      the site's probe list
     36  call *(%r10)              an entry trampoline; ZF says whether to hook
     39  je   site+5               declined: the stack is as it was
     45  add  $8,%rsp              the parent is in the node: drop it
     49  call site+5               the body; its return slot is the one that held the parent

    return, stack    rsp -> what lay above the return slot

     54  mov  %fs:TASK,%r11
     63  mov  TOP(%r11),%r11       the newest node
     67  lea  54(%rip),%r10        this very address
     74  cmp  %r10,STUB(%r11)
     78  jne  90
     80  mov  PROBES(%r11),%r10    the list it came in with
     84  jmp  *EXIT(%r10)          an exit trampoline: it returns to the parent
     90  jmp  *exit_slow(%rip)     not on top: search

     96  call *entry_slow(%rip)
    102  jmp  39
    104  .quad site                a StubRecord
    112  .quad slot
    120  .quad 1 if the return slot is at 8(%rbp)

For a stub after the prologue (mcount) the return slot is at 8(%rbp), not on top of the stack: the classic swap puts the
address of offset 54 there, and the entry always continues at site+5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

STUB_SIZE = 128
RETURN_POINT = 39
"""Offset behind the call of the entry trampoline."""
EXIT_POINT = 54
"""Offset of the address that a hooked call's return slot holds."""
SLOW_RETURN = 102
RECORD = 104
"""Offset of the StubRecord."""

SITE_SIZE = 5
NOP5 = bytes.fromhex("0f1f440000")
JMP32 = 0xE9


@dataclass(frozen=True)
class StubTemplate:
    """A stub's bytes and the offsets of the 4-byte displacements in it, each relative to the byte behind itself."""

    code: bytes
    slot: int
    body: tuple[int, ...]
    exit_slow: int
    entry_slow: int


def _rel8(opcode: int, at: int, to: int) -> bytes:
    return bytes([opcode, (to - (at + 2)) & 0xFF])


def _disp8(value: int) -> bytes:
    if not 0 <= value < 128:
        raise ValueError(f"field offset {value} does not fit a byte")
    return bytes([value])


def stub_template(task_offset: int, offsets: Mapping[str, int]) -> StubTemplate:
    """The stub for a process whose threads find their task at %fs:`task_offset` (bytes, signed).

    `offsets` gives the fields REC and TOP of Task, STUB and PROBES of Node, EXIT of ProbeList (whose ENTRY is at 0).
    """
    fs_load = bytes.fromhex("644c8b1c25") + task_offset.to_bytes(4, "little", signed=True)
    parts = [
        fs_load,
        bytes.fromhex("4d85db"),
        _rel8(0x74, 12, 96),
        b"\x41\x83\x7b" + _disp8(offsets["REC"]) + b"\x00",
        _rel8(0x75, 19, 96),
        b"\x41\xc7\x43" + _disp8(offsets["REC"]) + (1).to_bytes(4, "little"),
        bytes.fromhex("4c8b1500000000"),
        bytes.fromhex("41ff12"),
        bytes.fromhex("0f8400000000"),
        bytes.fromhex("4883c408"),
        bytes.fromhex("e800000000"),
        fs_load,
        b"\x4d\x8b\x5b" + _disp8(offsets["TOP"]),
        bytes.fromhex("4c8d15") + (-20).to_bytes(4, "little", signed=True),
        b"\x4d\x39\x53" + _disp8(offsets["STUB"]),
        _rel8(0x75, 78, 90),
        b"\x4d\x8b\x53" + _disp8(offsets["PROBES"]),
        b"\x41\xff\x62" + _disp8(offsets["EXIT"]),
        b"\xcc\xcc",
        bytes.fromhex("ff2500000000"),
        bytes.fromhex("ff1500000000"),
        _rel8(0xEB, 102, RETURN_POINT),
        bytes(24),
    ]
    code = b"".join(parts)
    if len(code) != STUB_SIZE:
        raise AssertionError(f"a stub of {len(code)} bytes")
    return StubTemplate(code, slot=32, body=(41, 50), exit_slow=92, entry_slow=98)


def swapping(template: StubTemplate) -> StubTemplate:
    """The stub for sites whose return slot is not on top of the stack: the entry always goes on at site+5."""
    code = bytearray(template.code)
    code[RETURN_POINT : RETURN_POINT + 6] = bytes.fromhex("90e900000000")
    code[RECORD + 16] = 1
    return StubTemplate(bytes(code), template.slot, template.body, template.exit_slow, template.entry_slow)


def jump(site: int, target: int) -> bytes:
    """`jmp target` for the 5 bytes at `site`. Raises OverflowError beyond 2 GB."""
    return bytes([JMP32]) + (target - (site + SITE_SIZE)).to_bytes(4, "little", signed=True)
