"""From native code into a Python handler: the GIL, the arguments, the pending exception, the result.

With ftrace.hit.thread_states the one place of the native side that knows CPython. Symbols are the interpreter's own; Python
3.10 and all since have them.
"""

from __future__ import annotations

from typing import TypeAlias

from ftrace.hit.thread_states import enter_interpreter
from sandbox.native import (
    Structure,
    addressof,
    array,
    extern,
    fn,
    global_var,
    i32,
    i64,
    load,
    native,
    null,
    ptr,
    store,
    struct,
    u8,
    u64,
    void,
    zeroed,
)

Object: TypeAlias = ptr[u8]
_PyBUF_WRITE = 0x200

gil_release = extern("PyGILState_Release", fn[void, i32])
error_fetch = extern("PyErr_Fetch", fn[void, ptr[Object], ptr[Object], ptr[Object]])
error_restore = extern("PyErr_Restore", fn[void, Object, Object, Object])
error_normalize = extern("PyErr_NormalizeException", fn[void, ptr[Object], ptr[Object], ptr[Object]])
error_occurred = extern("PyErr_Occurred", fn[Object])
error_clear = extern("PyErr_Clear", fn[void])
set_interrupt = extern("PyErr_SetInterrupt", fn[void])
int_from = extern("PyLong_FromUnsignedLongLong", fn[Object, u64])
int_as = extern("PyLong_AsLong", fn[i64, Object])
memory_view = extern("PyMemoryView_FromMemory", fn[Object, u64, i64, i32])
vectorcall = extern("PyObject_VectorcallDict", fn[Object, Object, ptr[Object], u64, Object])
incref = extern("Py_IncRef", fn[void, Object])
decref = extern("Py_DecRef", fn[void, Object])


@struct
class PythonHandler(Structure):
    """What the call needs; the address of one is the `fp` that the hit path passes. The objects are kept alive by Python."""

    handler: Object
    fp: Object
    registers: Object  # callable: address -> pt_regs
    report: Object  # callable: (handler, exception)
    none: Object
    interrupt: Object  # KeyboardInterrupt
    data_size: i64
    is_exit: u64


switched_off = global_var(u64, 0, name="python_switched_off")
"""Not 0: no handler is called. ENDING for good; FORKED until Python's own hooks have run in the child of a fork."""
ENDING, FORKED = 1, 2


@native
def call_one(function: Object, argument: Object) -> Object:
    """function(argument), giving up the reference to the argument."""
    if argument == null:
        return null
    stack: array[Object, 1] = zeroed
    stack[0] = argument
    result = vectorcall(function, addressof(stack[0]), 1, null)
    decref(argument)
    return result


@native
def data_object(this: ptr[PythonHandler], data: u64) -> Object:
    if data == 0:
        incref(this.none)
        return this.none
    return memory_view(data, this.data_size, _PyBUF_WRITE)


@native
def release_arguments(arguments: ptr[Object]) -> void:
    for index in range(1, 5):
        if arguments[index] != null:
            decref(arguments[index])


@native
def call_handler(this: ptr[PythonHandler], ip: u64, ret_ip: u64, regs: u64, data: u64) -> Object:
    """handler(fp, entry_ip, ret_ip, regs, entry_data), or null with an exception set."""
    arguments: array[Object, 5] = zeroed
    arguments[0] = this.fp
    arguments[1] = int_from(ip)
    arguments[2] = int_from(ret_ip)
    arguments[3] = call_one(this.registers, int_from(regs))
    arguments[4] = data_object(this, data)
    result: Object = null
    if arguments[1] != null and arguments[2] != null and arguments[3] != null and arguments[4] != null:
        result = vectorcall(this.handler, addressof(arguments[0]), 5, null)
    release_arguments(addressof(arguments[0]))
    return result


@native
def report_error(this: ptr[PythonHandler]) -> void:
    """Hand the exception to Python's `report`; it never reaches the traced program.

    An interrupt is meant for whoever called that: it comes again, at the latest when the call returns.
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
    """What an entry handler's object means: 0 for None or 0, else 1."""
    if this.is_exit != 0 or result == this.none:
        return 0
    value = int_as(result)
    if value == -1 and error_occurred() != null:
        report_error(this)
        return 0
    return 1 if value != 0 else 0


@native(export=True)
def no_python_in_child() -> void:
    """In the child of a fork, also of one that C has made, where nobody may be left who would give up the GIL."""
    store(addressof(switched_off), switched_off | FORKED, "release")


@native(export=True)
def python_call(this: ptr[PythonHandler], ip: u64, ret_ip: u64, regs: u64, data: u64) -> i32:
    """Run a Python handler. An exception that was pending before is pending again afterwards."""
    if load(addressof(switched_off), "acquire") != 0:
        return 0
    gil = enter_interpreter()
    pending: array[Object, 3] = zeroed
    error_fetch(addressof(pending[0]), addressof(pending[1]), addressof(pending[2]))
    value: i32 = 0
    result = call_handler(this, ip, ret_ip, regs, data)
    if result == null:
        report_error(this)
    else:
        value = as_result(this, result)
        decref(result)
    error_restore(pending[0], pending[1], pending[2])
    gil_release(gil)
    return value
