"""The stub of a site: the code that a patched function entry jumps to. Bytes in, bytes out.

A stub belongs to one site for as long as its module lives. It is 128 bytes, aligned to 64, and position-independent
except for the words and displacements that `emit_stubs` (ftrace.hit.text_poke) writes into each copy:

    registers  r11 = task, r10 = the site's probe list; both are free at a stub of ours and nowhere else
    stack      entry:  rsp -> the parent's return address (the return slot)
               return: rsp -> what lay above the return slot

      0  .quad site                <- the StubRecord begins
      8  .word 0                   <- 1 if the return slot is at 8(%rbp)
     10  mov %fs:TASK, %r11        <- the site jumps here: this thread's record
     19  test %r11, %r11
     22  je 109                    <- it has none yet
     24  cmpl $0, REC(%r11)
     29  jne 109                   <- it is in tracing code already
     31  movl $FAST, REC(%r11)     <- from here on unregistering waits for it
     39  mov slot(%rip), %r10      <- the site's probe list
     46  call *(%r10)              <- its entry trampoline; ZF says whether to hook
     49  jne body                  <- declined: the stack is as it was
     55  add $8, %rsp              <- the parent is in the node: drop it
     59  call body                 <- site+5; its return slot is the one that held the parent
     64  mov %fs:TASK, %r11        <- the body returns here
     73  lea 49(%rip), %r10        <- this stub, as nodes name it
     80  test %r11, %r11
     83  je 103                    <- it has none: another thread has made the call
     85  mov TOP(%r11), %r11       <- the newest node
     89  cmp %r10, STUB(%r11)
     93  jne 103
     95  mov PROBES(%r11), %r10    <- the list it came in with
     99  jmp *EXIT(%r10)           <- its exit trampoline: it returns to the parent
    103  jmp *exit_slow(%rip)      <- not on top: search
    109  call *entry_slow(%rip)
    115  jmp 49
    120  .quad slot

The entry is in the first cache line and the return in the second. A node identifies its stub by the address of RETURN_POINT,
which an entry trampoline finds on the stack.

For a stub after the prologue (mcount) the return slot is at 8(%rbp), not on top of the stack: the classic swap puts the
address of offset 54 there, and the entry always continues at site+5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

STUB_SIZE = 128
ENTRY_POINT = 10
"""Offset that the site jumps to."""
RETURN_POINT = 49
"""Offset after the call of the entry trampoline."""
EXIT_POINT = 64
"""Offset of the address that a hooked call's return slot holds."""
SLOW_RETURN = 115
AFTER_PROLOGUE = 8
TO_SLOT, TO_BODY, TO_BODY_BY_CALL, TO_EXIT_SLOW, TO_ENTRY_SLOW = 42, 51, 60, 105, 111
"""Offsets of the displacements, 4 bytes each and relative to the following byte."""
SLOT = 120
"""Offset of the address of the site's slot, where the code has ended."""

SITE_SIZE = 5


def _rel8(opcode: int, at: int, to: int) -> bytes:
    return bytes([opcode, (to - (at + 2)) & 0xFF])


def _disp8(value: int) -> bytes:
    if not 0 <= value < 128:
        raise ValueError(f"field offset {value} does not fit a byte")
    return bytes([value])


def stub_template(task_offset: int, fast: int, offsets: Mapping[str, int]) -> bytes:
    """The stub for a process whose threads find their task at %fs:`task_offset` (bytes, signed).

    `fast` is what `rec` holds during a hit on the fast path.
    `offsets` gives the fields REC and TOP of Task, STUB and PROBES of Node, EXIT of ProbeList (whose ENTRY is at 0).
    """
    load_task = b"\x64\x4c\x8b\x1c\x25" + task_offset.to_bytes(4, "little", signed=True)
    code = b"".join((*_entry(load_task, fast, offsets), *_return(load_task, offsets), *_slow_entry()))
    if len(code) != STUB_SIZE:
        raise AssertionError(f"a stub of {len(code)} bytes")
    return code


def _entry(load_task: bytes, fast: int, offsets: Mapping[str, int]) -> tuple[bytes, ...]:
    """Up to the call of the function's body."""
    rec = _disp8(offsets["REC"])
    return (
        bytes(10),
        load_task,
        bytes.fromhex("4d85db"),
        _rel8(0x74, 22, 109),
        b"\x41\x83\x7b" + rec + b"\x00",
        _rel8(0x75, 29, 109),
        b"\x41\xc7\x43" + rec + fast.to_bytes(4, "little"),
        bytes.fromhex("4c8b1500000000"),
        bytes.fromhex("41ff12"),
        bytes.fromhex("0f8500000000"),
        bytes.fromhex("4883c408"),
        bytes.fromhex("e800000000"),
    )


def _return(load_task: bytes, offsets: Mapping[str, int]) -> tuple[bytes, ...]:
    """From the body's return on."""
    return (
        load_task,
        bytes.fromhex("4c8d15") + (RETURN_POINT - 80).to_bytes(4, "little", signed=True),
        bytes.fromhex("4d85db"),
        _rel8(0x74, 83, 103),
        b"\x4d\x8b\x5b" + _disp8(offsets["TOP"]),
        b"\x4d\x39\x53" + _disp8(offsets["STUB"]),
        _rel8(0x75, 93, 103),
        b"\x4d\x8b\x53" + _disp8(offsets["PROBES"]),
        b"\x41\xff\x62" + _disp8(offsets["EXIT"]),
        bytes.fromhex("ff2500000000"),
    )


def _slow_entry() -> tuple[bytes, ...]:
    """And the word after the code."""
    return bytes.fromhex("ff1500000000"), _rel8(0xEB, 115, RETURN_POINT), bytes(11)


def swapping(template: bytes) -> bytes:
    """The stub for sites whose return slot is not on top of the stack: the entry always continues at site+5."""
    code = bytearray(template)
    code[RETURN_POINT : RETURN_POINT + 6] = bytes.fromhex("90e900000000")
    code[AFTER_PROLOGUE] = 1
    return bytes(code)
