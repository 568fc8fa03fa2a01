"""Return stubs: calls whose return was hooked at a breakpoint or jump return to them.

Where r10, r11 and the flags are free, a return stub is the second half of an ftrace stub; elsewhere it preserves every
register and flag (ftrace.hit.x86_64.preserving_stub). The second half (a test compares it):

    registers  r11 = task, then the newest node; r10 = this stub, then the probe list
    stack      55: rsp -> the parent's return address (the return slot)
               64: rsp -> what lay above the return slot

      0  .quad site
     55  add $8, %rsp              <- calls whose return was hooked by a jump: the parent is in the node
     59  call body                 <- ... which goes on where the copied instructions are
     64  mov %fs:TASK, %r11        <- calls return here, also those that a breakpoint has hooked
     73  lea 49(%rip), %r10        <- the stub, as nodes name it
     80  test %r11, %r11
     83  je 103                    <- another thread has made the call
     85  mov TOP(%r11), %r11
     89  cmp %r10, STUB(%r11)
     93  jne 103
     95  mov PROBES(%r11), %r10
     99  jmp *EXIT(%r10)           <- its exit trampoline: it returns to the parent
    103  jmp *exit_slow(%rip)      <- not on top: search
"""

from __future__ import annotations

from ftrace.hit.x86_64.stubs import (
    SITE_SIZE,
    SLOT,
    STUB_SIZE,
    TO_BODY,
    TO_BODY_BY_CALL,
    TO_ENTRY_SLOW,
    TO_EXIT_SLOW,
    TO_SLOT,
)

DROP_RETURN = 55
"""Offset after the decision to hook: the return address is taken off the stack, and the body called."""


def return_stub(
    template: bytes, where: int, site: int, pointers: int, body: int | None = None, slot: int | None = None
) -> bytes:
    """The stub at `where` of a function at `site`.

    `template` is the stub of this process; at `pointers` lie the addresses of its slow exit and its slow entry. Without a
    `body`, where the function continues, and a `slot`, the address of its list's address, only its return half can be run.
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
        raise ValueError(f"the template has {len(code)} bytes; a stub has {STUB_SIZE}")
    return bytes(code)


def _displace(code: bytearray, at: int, where: int, target: int) -> None:
    code[at : at + 4] = (target - (where + at + 4)).to_bytes(4, "little", signed=True)
