"""Memory that is reserved keeps away from code, unless it is asked to be near."""

from __future__ import annotations

import ctypes

import sandbox
from sandbox.memory import mappings

IR = "define i64 @one() noinline {\n  ret i64 1\n}\n"
LARGE = 1 << 32


def distance(start: int, size: int, address: int) -> int:
    return max(start - address, address - (start + size))


def test_h7_large_reservations_leave_the_surroundings_of_code_free() -> None:
    module = sandbox.load(IR, name="surrounded")
    taken = [mappings.reserve(LARGE) for _ in range(4)]
    try:
        code = module["one"].address
        assert all(distance(start, LARGE, code) > mappings.REACH for start in taken)
        later = sandbox.load(IR, name="later")
        assert later["one"]() == 1
        later.unload()
    finally:
        for start in taken:
            mappings.release(start, LARGE)
        module.unload()


def test_reservations_near_something_reach_it() -> None:
    module = sandbox.load(IR, name="reached")
    code = module["one"].address
    start = mappings.reserve(8192, (code, code + 1))
    try:
        assert distance(start, 8192, code) < mappings.REACH
        assert ctypes.string_at(start, 8192) == bytes(8192)
    finally:
        mappings.release(start, 8192)
        module.unload()
