"""The stubs that calls return into whose return was hooked at a breakpoint or jump.

Where r10, r11 and the flags are free it is the second half of an ftrace stub. In libraries, and at functions of C programs
that have no stub, nothing is free: gcc keeps values in r8 to r11 over the calls of functions whose use of registers it knows
(-fipa-ra). There it is

      0  .quad site
     54  lea  8(%rsp),%rsp             calls whose return was hooked by a jump: the return address is dropped
     59  call body
     64  lea  -8(%rsp),%rsp            calls return here: room for the address that they really return to
     69  call *exit(%rip)              kprobe_exit_keeping_all
     75  ret

in which calls and returns pair up for the CPU's return predictor.
"""

from __future__ import annotations

from ftrace.x86_64.stubs import (
    EXIT_POINT,
    SITE_SIZE,
    SLOT,
    STUB_SIZE,
    TO_BODY,
    TO_BODY_BY_CALL,
    TO_ENTRY_SLOW,
    TO_EXIT_SLOW,
    TO_SLOT,
)
from kprobes.x86_64.instruction import INT3

DROP_RETURN, DROP_RETURN_KEEPING = 55, 54
"""Offset behind the decision to hook: the return address is taken off the stack, and the body called."""
EXIT_KEEPING, ROOM_MADE = 75, 69
"""Offset behind the call of the routine, in the stub that keeps all; up to where its return address is in the node only."""


def return_stub(
    template: bytes, where: int, site: int, pointers: int, body: int | None = None, slot: int | None = None
) -> bytes:
    """The stub at `where` of a function at `site`.

    `template` is the stub of this process; at `pointers` lie the addresses of its slow exit and its slow entry. Without a
    `body`, where it lets the function go on, and a `slot`, the address of its list's address, only the way back can be run.
    """
    code = bytearray(template)
    code[0:8] = site.to_bytes(8, "little")
    _displace(code, TO_SLOT, where, slot or pointers)
    _displace(code, TO_ENTRY_SLOW, where, pointers + 8)
    _displace(code, TO_EXIT_SLOW, where, pointers)
    for at in (TO_BODY, TO_BODY_BY_CALL):
        _displace(code, at, where, body or where + SITE_SIZE)
    code[SLOT : SLOT + 8] = (slot or pointers).to_bytes(8, "little")
    if len(code) != STUB_SIZE:
        raise ValueError(f"a stub of {len(code)} bytes")
    return bytes(code)


def keeping_return_stub(where: int, site: int, exit_: int) -> bytes:
    """The stub that keeps every register and flag, at `where`, of the function at `site`. At `exit_` lies the address of

    kprobe_exit_keeping_all. Only the way back can be run until the body's address is filled in.
    """
    code = bytearray([INT3]) * STUB_SIZE
    code[0:8] = site.to_bytes(8, "little")
    code[DROP_RETURN_KEEPING:EXIT_POINT] = _DROP_AND_CALL
    code[EXIT_POINT : EXIT_KEEPING + 1] = _CALL_EXIT
    _displace(code, TO_BODY_BY_CALL, where, where + SITE_SIZE)
    _displace(code, EXIT_KEEPING - 4, where, exit_)
    return bytes(code)


_DROP_AND_CALL = bytes.fromhex("488d642408") + b"\xe8" + bytes(4)
_CALL_EXIT = bytes.fromhex("488d6424f8") + b"\xff\x15" + bytes(4) + b"\xc3"


def _displace(code: bytearray, at: int, where: int, target: int) -> None:
    code[at : at + 4] = (target - (where + at + 4)).to_bytes(4, "little", signed=True)
