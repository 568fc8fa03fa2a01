"""What native code reads of Python objects and keeps of them between hits: all that depends on how objects are counted.

With a GIL a count is one number, and what it protects can be tested and set in two steps. Builds without one (PEP 703) count the
owner's references and those of other threads apart, and two threads may be here at once. Such builds have the same layout where
PYTHON_GIL=1 turns their GIL on.
"""

from __future__ import annotations

from typing import TypeAlias

from ftrace.hit.hashing import first_place
from sandbox.native import *

Object: TypeAlias = ptr[u8]
_PLACE_BITS = 6
# Without a GIL: the places of ob_ref_local (32 bits) and of ob_ref_shared, whose lowest bits are flags; immortal objects have
# the largest local count.
_LOCAL, _SHARED, _SHARED_SHIFT = 12, 16, 2

int_from = extern("PyLong_FromUnsignedLongLong", fn[Object, u64])
incref = extern("Py_IncRef", fn[void, Object])
decref = extern("Py_DecRef", fn[void, Object])

split_counts = global_var(u64, 0, name="python_split_counts")
"""Not 0: the interpreter is a build without a GIL (Py_GIL_DISABLED), whether or not that is on."""


@struct
class Address(Structure):
    """A number that handlers have been given, and the int for it, to which this is a reference."""

    value: u64
    object: Object


entry_addresses = global_var(array[Address, 1 << _PLACE_BITS], name="python_entry_addresses")
return_addresses = global_var(array[Address, 1 << _PLACE_BITS], name="python_return_addresses")
"""Caches of int objects for addresses, by hash, under the GIL: the same functions and callers recur."""


@native(inline=True)
def references(object: Object) -> u64:
    """How many references there are; a large number for immortal objects, of whose count only the low half is read."""
    if split_counts == 0:
        return cast(u64, cast(ptr[u32], object)[0])
    local = cast(u64, cast(ptr[u32], cast(u64, object) + _LOCAL)[0])
    shared = load(cast(ptr[i64], cast(u64, object) + _SHARED)) >> _SHARED_SHIFT
    return local + cast(u64, shared)


@native(inline=True)
def take(flag: ptr[u64]) -> bool_:
    """Set a flag that only one call may have. False if another one has it."""
    return load(flag) == 0 and atomic_cas(flag, 0, 1)


@native(inline=True)
def give_back(flag: ptr[u64]) -> void:
    store(flag, 0, "release")


@native
def drop(object: Object) -> void:
    if object != null:
        decref(object)


@native
def address_object(table: ptr[Address], value: u64) -> Object:
    """A new reference to an int, or null with an exception set."""
    if split_counts != 0:  # another thread might drop a known one before it is counted here
        return int_from(value)
    known = addressof(table[first_place(value, 64 - _PLACE_BITS)])
    if known.object == null or known.value != value:
        made = int_from(value)
        if made == null:
            return null
        drop(known.object)
        known.object = made
        known.value = value
    incref(known.object)
    return known.object


@native(name="python_references")
def count_references(object: u64) -> u64:
    """`references`, for tests."""
    return references(cast(Object, object))


FUNCTIONS = (count_references,)
