"""The stub that calls return into whose return was hooked at a breakpoint: the second half of an ftrace stub."""

from __future__ import annotations

from ftrace.x86_64.stubs import (
    SITE_SIZE,
    SLOT,
    STUB_SIZE,
    TO_BODY,
    TO_BODY_BY_CALL,
    TO_ENTRY_SLOW,
    TO_EXIT_SLOW,
    TO_SLOT,
)


def return_stub(template: bytes, where: int, site: int, pointers: int) -> bytes:
    """The stub at `where` of a function at `site`, of which only the way back is ever run.

    `template` is the stub of this process; at `pointers` lie the addresses of its slow exit and its slow entry.
    """
    code = bytearray(template)
    code[0:8] = site.to_bytes(8, "little")
    for at in (TO_SLOT, TO_ENTRY_SLOW):
        _displace(code, at, where, pointers)
    _displace(code, TO_EXIT_SLOW, where, pointers)
    for at in (TO_BODY, TO_BODY_BY_CALL):
        _displace(code, at, where, where + SITE_SIZE)
    code[SLOT : SLOT + 8] = pointers.to_bytes(8, "little")
    if len(code) != STUB_SIZE:
        raise ValueError(f"a stub of {len(code)} bytes")
    return bytes(code)


def _displace(code: bytearray, at: int, where: int, target: int) -> None:
    code[at : at + 4] = (target - (where + at + 4)).to_bytes(4, "little", signed=True)
