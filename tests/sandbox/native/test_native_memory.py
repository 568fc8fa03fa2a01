"""Memory, atomics and the operations of the machine, run for real."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from native_machine import define, isolated, load_functions

from sandbox.native import array, u8, u32, u64

PROGRAM = """
@struct
class Inner:
    small: i8
    flags: array[bool_, 3]
    rows: array[array[u16, 4], 3]

@struct
class Outer:
    count: u32
    inner: Inner
    link: ptr["Outer"]
    many: array[Inner, 2]

outers = global_var(array[Outer, 3])
spins = global_var(u64)

@native
def fill(p: ptr[Outer], i: u32, j: i64) -> i64:
    p.inner.rows[i][j] = 513
    p.many[1].rows[i][j] += p.inner.rows[i][j]
    p.inner.flags[1] = p.inner.rows[i][j] > 512
    p.many[0].small = -5
    p.link = addressof(outers[1])
    p.link.count = 9
    outers[1].link = p
    return cast(i64, p.link.link.many[0].small) + cast(i64, outers[1].count)

@native
def neighbours(p: ptr[u64], back: i8, far: u8) -> u64:
    return p[back] * 100 + p[far] * 10 + p[-1]

@native
def unaligned(p: ptr[u8]) -> u64:
    q = cast(ptr[u64], addressof(p[3]))
    q[0] += 0x0101
    return q[0]

@native
def alias(p: ptr[u64], q: ptr[u32]) -> u64:
    p[0] = 0x1_0000_0001
    q[0] = 7
    return p[0]

@native
def transfer(to: ptr[Outer], source: ptr[Outer]) -> void:
    copy(to, source)
    zero_fill(addressof(source.inner))

@native
def through(a: u64) -> u64:
    x = a
    p = addressof(x)
    p[0] += 1
    q = cast(ptr[u32], p)
    q[1] = 1
    return x

@native
def atomics(p: ptr[u32]) -> u32:
    a = atomic_add(p, 5)
    b = atomic_sub(p, 1, "acq_rel")
    c = atomic_or(p, 0x100, "release")
    d = atomic_and(p, 0xFF0, "acquire")
    e = atomic_xor(p, 0xF, "relaxed")
    g = atomic_exchange(p, 42)
    return a ^ b << 4 ^ c << 8 ^ d << 12 ^ e << 18 ^ g << 24

@native
def swap(p: ptr[u64], old: u64, new: u64) -> bool_:
    return atomic_cas(p, old, new, "acquire")

@native
def swap_pointer(p: ptr[ptr[u64]], old: ptr[u64], new: ptr[u64]) -> bool_:
    return atomic_cas(p, old, new)

@native
def orders(p: ptr[u8]) -> u8:
    store(p, 1)
    store(p, load(p) + 1, "release")
    fence("acquire")
    store(p, load(p, "acquire") + 1, "seq_cst")
    fence("release")
    fence("acq_rel")
    single_sub(p, 250)
    signal_fence()
    return load(p, "seq_cst") + volatile_load(p)

@native
def shared_add(p: ptr[u64], times: u32) -> void:
    for _ in range(min(times, 100000)):
        atomic_add(p, 1, "relaxed")

@native
def fs_word(offset: u64) -> u64:
    return read_fs(offset)

@native(noinline=True)
def where(out: ptr[u64]) -> void:
    out[0] = frame_address()
    out[1] = return_address()
    out[2] = stack_pointer()

@native
def read_bytes(fd: i32, buffer: ptr[u8], size: u64, offset: i64) -> i64:
    return syscall(17, fd, buffer, size, offset)

@native
def map_page() -> i64:
    return syscall(9, null, 4096, 3, 0x22, -1, 0)

@native
def bad_call() -> i64:
    return syscall(3, -1)

@native
def time() -> u64:
    return rdtsc()

@native
def die() -> void:
    trap()

@native
def wait_for(p: ptr[u64]) -> u64:
    for i in range(1000000):
        if load(p, "acquire") != 0:
            return i
        pause()
    return 1000000
"""
NAMES = define(PROGRAM)


@pytest.fixture(params=[0, 2], ids=["unoptimised", "optimised"])
def loaded(request: Any) -> Any:
    functions = [value for value in NAMES.values() if type(value).__name__ == "NativeFunction"]
    return load_functions(*functions, opt=request.param)


@isolated
def test_nested_structs_and_arrays(loaded: Any) -> None:
    outer = NAMES["Outer"].ctypes()
    here = ctypes.addressof(outer)
    assert loaded.fill(here, 2, 3) == 4
    assert outer.inner.rows[2][3] == 513 == outer.many[1].rows[2][3]
    assert list(outer.inner.flags) == [False, True, False]
    assert (outer.many[0].small, outer.count) == (-5, 0)
    assert loaded.variable("outers", NAMES["outers"].type)[1].link == here


@isolated
def test_indices_are_extended_by_their_sign(loaded: Any) -> None:
    words = (ctypes.c_uint64 * 300)(*range(300))
    middle = ctypes.addressof(words) + 8 * 20
    assert loaded.neighbours(middle, -20, 255) == 0 * 100 + 275 * 10 + 19


@isolated
def test_pointers_may_be_unaligned_and_alias(loaded: Any) -> None:
    data = (ctypes.c_uint8 * 16)()
    assert loaded.unaligned(ctypes.addressof(data)) == 0x0101
    assert bytes(data)[3:6] == b"\1\1\0"
    assert loaded.alias(ctypes.addressof(data), ctypes.addressof(data)) == 0x1_0000_0007
    assert loaded.through(9) == 0x1_0000_000A


@isolated
def test_objects_are_copied_and_cleared_whole(loaded: Any) -> None:
    make = NAMES["Outer"].ctypes
    source, target = make(), make()
    ctypes.memset(ctypes.addressof(source), 0x5A, ctypes.sizeof(source))
    before = bytes(source)
    loaded.transfer(ctypes.addressof(target), ctypes.addressof(source))
    inner = make.inner
    assert bytes(target) == before
    cleared = before[: inner.offset] + bytes(inner.size) + before[inner.offset + inner.size :]
    assert bytes(source) == cleared


@isolated
def test_atomics_give_the_old_value(loaded: Any) -> None:
    word = ctypes.c_uint32(0x10)
    got = loaded.atomics(ctypes.addressof(word))
    a, b, c, d, e, g = 0x10, 0x15, 0x14, 0x114, 0x110, 0x11F
    assert got == (a ^ b << 4 ^ c << 8 ^ d << 12 ^ e << 18 ^ g << 24) & 0xFFFFFFFF
    assert word.value == 42


@isolated
def test_compare_and_swap_says_whether_it_did(loaded: Any) -> None:
    word = ctypes.c_uint64(5)
    assert loaded.swap(ctypes.addressof(word), 4, 9) is False and word.value == 5
    assert loaded.swap(ctypes.addressof(word), 5, 9) is True and word.value == 9
    assert loaded.swap_pointer(ctypes.addressof(word), 9, 4096) is True and word.value == 4096


@isolated
def test_ordered_accesses_read_what_they_wrote(loaded: Any) -> None:
    assert loaded.orders(ctypes.addressof(ctypes.c_uint8())) == 2 * ((3 - 250) % 256) % 256


@isolated
def test_atomic_additions_of_two_threads_add_up(loaded: Any) -> None:
    word = ctypes.c_uint64()
    work = [threading.Thread(target=loaded.shared_add, args=(ctypes.addressof(word), 100000)) for _ in range(2)]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    assert word.value == 200000


@isolated
def test_a_spinning_thread_sees_the_store(loaded: Any) -> None:
    word = ctypes.c_uint64()
    timer = threading.Timer(0.002, lambda: setattr(word, "value", 1))
    timer.start()
    assert loaded.wait_for(ctypes.addressof(word)) <= 1000000
    timer.join()


@isolated
def test_the_stack_and_the_thread_are_where_they_are(loaded: Any) -> None:
    out = (ctypes.c_uint64 * 3)()
    loaded.where(ctypes.addressof(out))
    frame, returns_to, stack = out
    assert 0 <= frame - stack < 256 and returns_to > 4096
    own = loaded.fs_word(0)
    assert ctypes.c_uint64.from_address(own + 16).value == loaded.fs_word(16)


@isolated
def test_system_calls_take_six_arguments_and_give_errors(loaded: Any) -> None:
    with Path("/proc/self/exe").open("rb") as file:
        buffer = ctypes.create_string_buffer(3)
        assert loaded.read_bytes(file.fileno(), ctypes.addressof(buffer), 3, 1) == 3
    assert buffer.raw == b"ELF"
    page = loaded.map_page()
    assert page > 0 and page % 4096 == 0
    assert ctypes.c_uint64.from_address(page).value == 0
    assert loaded.bad_call() == -9


@isolated
def test_time_passes(loaded: Any) -> None:
    first = loaded.time()
    assert loaded.time() > first


def test_trap_ends_the_process() -> None:
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        load_functions(NAMES["die"]).die()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGILL


def test_types_have_the_sizes_of_c() -> None:
    assert [t.size for t in (u8, u32, u64, array[array[u32, 3], 5])] == [1, 4, 8, 60]


ERRORS = """
@native
def lookup(key: u64) -> ptr[u8]:
    if key > 9:
        return cast(ptr[u8], -2)
    return cast(ptr[u8], 4096)
"""


@isolated
def test_a_negative_number_can_become_a_pointer() -> None:
    loaded = load_functions(define(ERRORS)["lookup"])
    assert [loaded.lookup(10), loaded.lookup(9)] == [(1 << 64) - 2, 4096]
