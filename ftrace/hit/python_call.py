"""From native code into a Python handler: the GIL, the arguments, the pending exception, the result.

A handler gets copies of its registers and of its entry data, which are written back after it returns: objects that it keeps
refer to memory of their own.

This module, python_objects, python_states and interpreters are the only native code that knows CPython. The symbols are the
interpreter's; Python 3.10 and later have them.

CPython gives an unknown thread a state and links it into its list: under a lock, but not under the GIL. A child forked at that
moment finds the lock taken, and up to Python 3.11 waits for it inside `os.fork`; or it finds the list half changed. So threads
that are about to get a state are counted; `os.fork` waits until there are none, and holds off new ones
(`ftrace.core.handlers.python_handler`). A thread that has a state skips all this. States are released under the GIL, which the
forking thread holds.
"""

from __future__ import annotations

from ftrace.hit.python_objects import (
    Object,
    address_object,
    decref,
    drop,
    entry_addresses,
    give_back,
    incref,
    int_from,
    references,
    return_addresses,
    take,
)
from ftrace.hit.python_states import begin_call, this_thread
from ftrace.hit.unwind.walk import StackPoint
from ftrace.hit.x86_64.pt_regs import pt_regs
from sandbox.native import *
from sandbox.threads.system_calls import nap
from sandbox.threads.tasks import current

_PyBUF_WRITABLE = 1
_REGISTERS = 21
"""Words of a pt_regs."""

gil_release = extern("PyGILState_Release", fn[void, i32])
error_fetch = extern("PyErr_Fetch", fn[void, ptr[Object], ptr[Object], ptr[Object]])
error_restore = extern("PyErr_Restore", fn[void, Object, Object, Object])
error_normalize = extern("PyErr_NormalizeException", fn[void, ptr[Object], ptr[Object], ptr[Object]])
error_occurred = extern("PyErr_Occurred", fn[Object])
error_clear = extern("PyErr_Clear", fn[void])
set_interrupt = extern("PyErr_SetInterrupt", fn[void])
int_as = extern("PyLong_AsLong", fn[i64, Object])
bytes_copy = extern("PyByteArray_FromStringAndSize", fn[Object, u64, i64])
bytes_memory = extern("PyByteArray_AsString", fn[ptr[u8], Object])
bytes_size = extern("PyByteArray_Size", fn[i64, Object])
memory_view = extern("PyMemoryView_FromObject", fn[Object, Object])
get_buffer = extern("PyObject_GetBuffer", fn[i32, Object, ptr[u64], i32])
release_buffer = extern("PyBuffer_Release", fn[void, ptr[u64]])
copy_bytes = extern("memmove", fn[ptr[u8], ptr[u8], ptr[u8], u64])
vectorcall = extern("PyObject_VectorcallDict", fn[Object, Object, ptr[Object], u64, Object])


@struct
class PythonHandler(Structure):
    """The data of a call; its address is the `fp` that the hit path passes. Python keeps the objects alive."""

    handler: Object
    fp: Object
    registers: Object  # callable: () -> pt_regs with memory of its own
    expire: Object  # callable: (pt_regs, entry data, ip), if the handler has kept one of them
    spare: Object  # a pt_regs that calls reuse, and the address of its memory
    spare_memory: ptr[u64]
    spare_taken: u64
    report: Object  # callable: (handler, exception)
    none: Object
    interrupt: Object  # KeyboardInterrupt
    data_size: i64
    is_exit: u64


switched_off = global_var(u64, 0, name="python_switched_off")
"""Not 0: no handler is called. ENDING for good; FORKED until Python's own hooks have run in the child of a fork."""
ENDING, FORKED = 1, 2


@struct
class BorrowedObjects(Structure):
    """The objects that a handler gets for one call."""

    registers: Object
    memory: ptr[u64]  # of the registers
    owned: u64  # references to the registers that are not the handler's
    view: Object  # of the entry data, or None
    bytes: Object  # what that shows; null: there is no data


@native(inline=True)
def copy_words(to: ptr[u64], source: ptr[u64]) -> void:
    for index in range(_REGISTERS):
        to[index] = source[index]


@native
def memory_of(object: Object) -> ptr[u64]:
    """The memory of a ctypes object, or null with an exception set."""
    buffer: array[u64, 16] = zeroed  # a Py_buffer; the address comes first
    if get_buffer(object, addressof(buffer[0]), _PyBUF_WRITABLE) != 0:
        return null
    memory = cast(ptr[u64], buffer[0])
    release_buffer(addressof(buffer[0]))
    return memory


@native
def lend_registers(this: ptr[PythonHandler], borrowed: ptr[BorrowedObjects], regs: u64) -> bool_:
    """The spare, or if another call has that a new one. False: with an exception set."""
    if take(addressof(this.spare_taken)):
        incref(this.spare)
        borrowed.registers = this.spare
        borrowed.memory = this.spare_memory
        borrowed.owned = 2
    else:
        none: array[Object, 1] = zeroed
        borrowed.registers = vectorcall(this.registers, addressof(none[0]), 0, null)
        if borrowed.registers == null:
            return False
        borrowed.memory = memory_of(borrowed.registers)
        borrowed.owned = 1
        if borrowed.memory == null:
            return False
    copy_words(borrowed.memory, cast(ptr[u64], regs))
    return True


@native
def lend_data(this: ptr[PythonHandler], borrowed: ptr[BorrowedObjects], data: u64) -> bool_:
    if data == 0:
        borrowed.view = this.none
        return True
    borrowed.bytes = bytes_copy(data, this.data_size)
    if borrowed.bytes != null:
        borrowed.view = memory_view(borrowed.bytes)
    return borrowed.view != null


@native
def write_back(this: ptr[PythonHandler], borrowed: ptr[BorrowedObjects], regs: u64, data: u64) -> void:
    copy_words(cast(ptr[u64], regs), borrowed.memory)
    if borrowed.bytes != null and bytes_size(borrowed.bytes) == this.data_size:
        copy_bytes(cast(ptr[u8], data), bytes_memory(borrowed.bytes), cast(u64, this.data_size))


@native(noinline=True)
def expire(this: ptr[PythonHandler], borrowed: ptr[BorrowedObjects], ip: u64) -> void:
    """The handler has kept a reference: expire the object. A pending exception is preserved."""
    pending: array[Object, 3] = zeroed
    error_fetch(addressof(pending[0]), addressof(pending[1]), addressof(pending[2]))
    arguments: array[Object, 3] = zeroed
    arguments[0] = borrowed.registers
    arguments[1] = borrowed.view
    arguments[2] = int_from(ip)
    if arguments[2] != null:
        result = vectorcall(this.expire, addressof(arguments[0]), 3, null)
        if result != null:
            decref(result)
        decref(arguments[2])
    error_clear()
    error_restore(pending[0], pending[1], pending[2])


@native
def take_back(this: ptr[PythonHandler], borrowed: ptr[BorrowedObjects], ip: u64) -> void:
    is_kept = references(borrowed.registers) > borrowed.owned
    if is_kept or (borrowed.bytes != null and references(borrowed.view) > 1):
        expire(this, borrowed, ip)
    if borrowed.owned == 2 and not is_kept:
        give_back(addressof(this.spare_taken))


@native
def call_handler(this: ptr[PythonHandler], ip: u64, ret_ip: u64, regs: u64, data: u64) -> Object:
    """handler(fp, entry_ip, ret_ip, regs, entry_data), or null with an exception set."""
    borrowed: BorrowedObjects = zeroed
    arguments: array[Object, 5] = zeroed
    arguments[0] = this.fp
    arguments[1] = address_object(addressof(entry_addresses[0]), ip)
    arguments[2] = address_object(addressof(return_addresses[0]), ret_ip)
    result: Object = null
    if lend_registers(this, addressof(borrowed), regs):
        if lend_data(this, addressof(borrowed), data) and arguments[1] != null and arguments[2] != null:
            arguments[3] = borrowed.registers
            arguments[4] = borrowed.view
            result = vectorcall(this.handler, addressof(arguments[0]), 5, null)
            write_back(this, addressof(borrowed), regs, data)
        take_back(this, addressof(borrowed), ip)
    drop(arguments[1])
    drop(arguments[2])
    drop(borrowed.registers)
    if borrowed.bytes != null:
        drop(borrowed.view)
        decref(borrowed.bytes)
    return result


@native
def report_error(this: ptr[PythonHandler]) -> void:
    """Pass the exception to Python's `report`; it never reaches the traced program.

    A KeyboardInterrupt belongs to the program's caller: it is raised again, at the latest when the call returns.
    """
    error: array[Object, 3] = zeroed
    error_fetch(addressof(error[0]), addressof(error[1]), addressof(error[2]))
    error_normalize(addressof(error[0]), addressof(error[1]), addressof(error[2]))
    arguments: array[Object, 3] = zeroed
    arguments[0] = this.handler
    arguments[1] = error[1]
    arguments[2] = error[2]
    if error[2] == null:
        arguments[2] = this.none
    result = vectorcall(this.report, addressof(arguments[0]), 3, null)
    if result != null:
        decref(result)
    error_clear()
    if error[0] == this.interrupt:
        set_interrupt()
    for index in range(3):
        if error[index] != null:
            decref(error[index])


@native
def as_result(this: ptr[PythonHandler], result: Object) -> i32:
    """The meaning of an entry handler's result: 0 for None or 0, else 1."""
    if this.is_exit != 0 or result == this.none:
        return 0
    value = int_as(result)
    if value == -1 and error_occurred() != null:
        report_error(this)
        return 0
    return 1 if value != 0 else 0


@native(export=True)
def no_python_in_child() -> void:
    """In the child of a fork, including one made by C, where no thread may be left that would release the GIL."""
    store(addressof(switched_off), switched_off | FORKED, "release")


@native(export=True)
def python_call(this: ptr[PythonHandler], ip: u64, ret_ip: u64, regs: u64, data: u64) -> i32:
    """Run a Python handler. An exception that was pending before is pending again afterwards."""
    if load(addressof(switched_off), "acquire") != 0:
        return 0
    task = current()
    here: StackPoint = zeroed
    outer: u64 = 0
    depth: u64 = 0
    if task != null:
        hit = cast(ptr[pt_regs], regs)
        here.ip = ret_ip if this.is_exit != 0 else ip
        here.sp = hit.sp
        here.bp = hit.bp
        outer = task.python
        depth = task.python_depth
        task.python = cast(u64, addressof(here))
    gil = enter_interpreter()
    if task != null:
        begin_call(task, cast(u64, addressof(here)), gil)
    pending: array[Object, 3] = zeroed
    is_pending = error_occurred() != null
    if is_pending:
        error_fetch(addressof(pending[0]), addressof(pending[1]), addressof(pending[2]))
    value: i32 = 0
    result = call_handler(this, ip, ret_ip, regs, data)
    if result == null:
        report_error(this)
    else:
        value = as_result(this, result)
        decref(result)
    if is_pending:
        error_restore(pending[0], pending[1], pending[2])
    gil_release(gil)
    if task != null:
        task.python_depth = depth
        task.python = outer
    return value


PATIENCE = 40_000
"""Naps, some seconds in all: a limit that turns a deadlock into a delay."""

gil_ensure = extern("PyGILState_Ensure", fn[i32])

coming = global_var(u64, 0, name="thread_states_coming")
"""How many threads may be in the midst of getting a state."""
held_off = global_var(u64, 0, name="thread_states_held_off")
"""Not 0 while a fork is in progress."""


@native
def begin_state() -> void:
    """Count this thread in `coming` once no fork is in progress."""
    atomic_add(addressof(coming), 1)
    for _ in range(PATIENCE):
        if load(addressof(held_off), "seq_cst") == 0:
            return
        atomic_sub(addressof(coming), 1)
        nap()
        atomic_add(addressof(coming), 1)


@native
def enter_interpreter() -> i32:
    """PyGILState_Ensure. If this makes a thread state, it waits until no fork is in progress."""
    if this_thread() != null:
        return gil_ensure()
    begin_state()
    gil = gil_ensure()
    atomic_sub(addressof(coming), 1)
    return gil


@native(export=True)
def hold_off_states() -> u32:
    """A fork is about to come: return when no thread is getting a state. Without the GIL, which those wait for.

    1 if that is so, 0 if it has taken too long.
    """
    atomic_add(addressof(held_off), 1)
    for _ in range(PATIENCE):
        if load(addressof(coming), "seq_cst") == 0:
            return 1
        nap()
    return 0
