"""Functions of the language, compiled and run."""

from __future__ import annotations

import ctypes
import os

from native_machine import Loaded, isolated, load_functions

from sandbox.native import (
    Unit,
    addressof,
    array,
    atomic_add,
    atomic_cas,
    cast,
    const,
    fn,
    global_var,
    i32,
    i64,
    likely,
    load,
    native,
    null,
    ptr,
    read_fs,
    single_add,
    single_cas,
    store,
    struct,
    syscall,
    u8,
    u16,
    u32,
    u64,
    void,
    zeroed,
)


@struct
class Node:
    frame: u64
    prev: ptr[Node]


@struct
class Task:
    depth: u32
    top: ptr[Node]
    tid: u64
    slots: array[u16, 7]
    flag: bool
    handler: fn[i32, u64]


LIMIT = 4096
SEVEN = const(u64, 7)
tasks = global_var(array[Task, 16])
counter = global_var(u64, 3)


@native(bounded=False)
def find(task: ptr[Task], frame: u64) -> ptr[Node]:
    node = task.top
    while node != null:
        if node.frame == frame:
            return node
        node = node.prev
    return null


@native
def run(handler: fn[i32, ptr[Node], u64], node: ptr[Node], ip: u64) -> i32:
    return handler(node, ip)


@native(inline=True)
def square(x: u32) -> u32:
    return x * x


@native
def work(n: u32, d: i64) -> i64:
    total: u32 = 0
    for i in range(min(n, 100)):
        if i % 3 == 0 or (i & 1 != 0 and i < LIMIT):
            continue
        total += square(i)
    digits: array[u8, 40] = zeroed
    digits[3] = 9
    x = d // 3 - d % -7
    if likely(n > 5 and x != 12):
        x += cast(i64, total) + cast(i64, digits[3])
    return x


@native
def touch(index: u32, flag: bool) -> u64:
    global counter
    task = addressof(tasks[index])
    task.slots[3] += 5
    task.flag = flag
    single_add(addressof(task.tid), 1)
    old = atomic_add(addressof(task.depth), 2, "relaxed")
    if atomic_cas(addressof(counter), SEVEN, 100):
        return 1000
    counter += cast(u64, old)
    return load(addressof(counter), "acquire")


@native
def publish(task: ptr[Task], node: ptr[Node]) -> void:
    store(addressof(task.top), node, "release")


@native
def process_id() -> i64:
    return syscall(39)


@native
def thread_pointer() -> u64:
    return read_fs(0)


def python_work(n: int, d: int) -> int:
    total = sum(i * i for i in range(min(n, 100)) if i % 3 and not i & 1)
    x = d // 3 - d % -7
    return x + total + 9 if n > 5 and x != 12 else x


@isolated
def test_a_list_is_walked_through_typed_pointers() -> None:
    unit = load_functions(find)
    nodes = (Node.ctypes * 3)()
    for i, node in enumerate(nodes):
        node.frame, node.prev = 10 * i, ctypes.addressof(nodes[i - 1]) if i else None
    task = Task.ctypes(top=ctypes.addressof(nodes[2]))
    assert unit.find(ctypes.addressof(task), 10) == ctypes.addressof(nodes[1])
    assert unit.find(ctypes.addressof(task), 11) is None


@isolated
def test_a_function_pointer_is_called() -> None:
    seen = []
    callback = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_uint64)(
        lambda p, ip: seen.append((p, ip)) or -4
    )
    assert load_functions(run).run(ctypes.cast(callback, ctypes.c_void_p), 4096, 1 << 63) == -4
    assert seen == [(4096, 1 << 63)]


@isolated
def test_arithmetic_is_pythons() -> None:
    unit = load_functions(work)
    for n, d in [(0, 5), (10, -5), (50, 100), (99, -1), (200, -(1 << 40))]:
        assert unit.work(n, d) == python_work(n, d)


@isolated
def test_globals_and_atomics() -> None:
    unit = Loaded(Unit("test", [touch]))
    assert unit.touch(2, True) == 3
    assert unit.touch(2, False) == 5
    task = unit.variable("tasks", tasks.type)[2]
    assert (task.depth, task.tid, task.slots[3], task.flag) == (4, 2, 10, False)
    unit.variable("counter", u64).value = 7
    assert unit.touch(3, True) == 1000
    assert unit.variable("counter", u64).value == 100


@native
def exchange(p: ptr[u64], expected: u64, new: u64) -> bool:
    return single_cas(p, expected, new)


@isolated
def test_a_single_cas_exchanges_what_it_expects_and_nothing_else() -> None:
    unit, word = load_functions(exchange), ctypes.c_uint64(1 << 63)
    assert not unit.exchange(ctypes.addressof(word), 5, 6)
    assert word.value == 1 << 63
    assert unit.exchange(ctypes.addressof(word), 1 << 63, 6)
    assert word.value == 6


@isolated
def test_a_pointer_is_published() -> None:
    task = Task.ctypes()
    load_functions(publish).publish(ctypes.addressof(task), 4096)
    assert task.top == 4096


@isolated
def test_system_calls_and_the_thread_pointer() -> None:
    unit = load_functions(process_id, thread_pointer)
    assert unit.process_id() == os.getpid()
    pointer = unit.thread_pointer()
    assert ctypes.c_uint64.from_address(pointer).value == pointer
