"""Histograms that hits update in native code: each thread has its own table, and readers add the tables up."""

from __future__ import annotations

from ftrace.events.filters.matching import read_cpu
from ftrace.events.triggers.records import Call
from ftrace.hit.hashing import GOLDEN, first_place
from ftrace.unwind.walk import StackPoint
from sandbox.native import (
    Structure,
    addressof,
    array,
    atomic_cas,
    cast,
    extern,
    fn,
    i8,
    i16,
    i32,
    i64,
    leading_zeros,
    likely,
    load,
    native,
    null,
    ptr,
    single_add,
    store,
    struct,
    u8,
    u16,
    u32,
    u64,
    unlikely,
    void,
    zeroed,
)
from sandbox.threads.system_calls import get_task_comm
from sandbox.threads.tasks import Task, current

MAX_KEYS, MAX_VALUES = 3, 2
MAX_KEY_WORDS = 48
PROBES = 128
"""The maximum number of places that are probed for a key."""
HEADER = 64
KEY_AT = 2
"""Words of an entry before its key: a hash of the key (0 in a free place), and a flag that the key is complete."""

task_get = extern("task_get", fn[ptr[Task]])

U8, I8, U16, I16, U32, I32, WORD, TEXT, DYNAMIC_TEXT, CPU, ONE, STACK = range(12)
"""The source of a field's value."""
PLAIN, LOG2, BUCKETS = range(3)


@struct
class NativeField(Structure):
    """A key or a value: its place in the record, and its modifier."""

    source: u64
    start: u64  # offset in the record
    extent: u64  # size of a text's field in bytes
    shape: u64
    width: u64  # width of buckets
    words: u64  # of a key


@struct
class NativeTable(Structure):
    """A histogram, as hits use it; constant while any do."""

    base: u64
    stride: u64  # bytes from one thread's table to the next
    mask: u64  # places less one
    shift: u64  # 64 less the number of bits of a place
    limit: u64  # maximum number of entries of a table
    entry: u64  # bytes of an entry
    key_words: u64
    sums: u64  # offset of the sums in an entry
    comm: u64  # offset of the task's name, or 0
    rseq: i64
    capture: Call  # stores the stack of a hit
    capture_argument: u64
    keys: u64
    values: u64
    fields: array[NativeField, 5]  # the keys, then the values


@struct
class TableHeader(Structure):
    """The header of a thread's table, before its places."""

    used: u64
    dropped: u64
    reserved: array[u64, 6]


@native(inline=True)
def read_number(source: u64, at: u64) -> u64:
    """A number of the record, sign-extended or zero-extended."""
    if source == WORD:
        return cast(ptr[u64], at)[0]
    if source == I32:
        return cast(u64, cast(ptr[i32], at)[0])
    if source == U32:
        return cast(u64, cast(ptr[u32], at)[0])
    if source == U8:
        return cast(u64, cast(ptr[u8], at)[0])
    if source == I8:
        return cast(u64, cast(ptr[i8], at)[0])
    if source == U16:
        return cast(u64, cast(ptr[u16], at)[0])
    return cast(u64, cast(ptr[i16], at)[0])


@native(noinline=True)
def unusual_value(field: ptr[NativeField], at: u64, rseq: i64) -> u64:
    """The value of a field other than a plain number of the record."""
    value: u64 = 1
    if field.source == CPU:
        value = cast(u64, read_cpu(rseq))
    elif field.source != ONE:
        value = read_number(field.source, at)
    if field.shape == LOG2:
        return 0 if value < 2 else 64 - leading_zeros(value - 1) & 63
    if field.shape == BUCKETS:
        return value // field.width * field.width
    return value


@native(inline=True)
def value_of(field: ptr[NativeField], record: ptr[u8], rseq: i64) -> u64:
    at = cast(u64, addressof(record[field.start]))
    if likely(field.shape == PLAIN and field.source <= WORD):
        return read_number(field.source, at)
    return unusual_value(field, at, rseq)


@native(noinline=True)
def copy_text(field: ptr[NativeField], record: ptr[u8], length: u64, key: ptr[u64]) -> void:
    """Copy a text, cut to the key's size, to a key that is zero."""
    start: u64 = field.start
    size: u64 = field.extent
    if field.source == DYNAMIC_TEXT:
        location = cast(ptr[u32], addressof(record[field.start]))[0]
        start = cast(u64, location & 0xFFFF)
        size = cast(u64, location >> 16)
    limit = field.words * 8
    text = cast(ptr[u8], key)
    for index in range(min(size, limit - 1)):
        if start + index >= length or record[start + index] == 0:
            return
        text[index] = record[start + index]


@native(inline=True)
def places(table: ptr[NativeTable]) -> u64:
    """Address of the running thread's table; 0 if it has none."""
    task = current()
    if unlikely(cast(u64, task) == 0):
        task = task_get()
        if cast(u64, task) == 0:
            return 0
    return table.base + cast(u64, task.index) * table.stride


@native(inline=True)
def mix(hash: u64, word: u64) -> u64:
    mixed = (hash ^ word) * GOLDEN
    return mixed ^ (mixed >> 32)


@native(noinline=True)
def new_entry(table: ptr[NativeTable], header: ptr[TableHeader], entry: ptr[u64], key: ptr[u64], mark: u64) -> u64:
    """Take a free place. Returns 0 if the table is full, or if a signal's handler has just taken the place.

    A hit in a signal's handler during this may make a second entry of the same key; readers add them up.
    """
    if header.used >= table.limit or not atomic_cas(entry, 0, mark, "relaxed"):
        return 0
    single_add(addressof(header.used), 1)
    for index in range(table.key_words):
        entry[KEY_AT + index] = key[index]
    if table.comm != 0:
        get_task_comm(addressof(cast(ptr[u8], entry)[table.comm]))
    store(addressof(entry[1]), 1, "release")
    return cast(u64, entry)


@native(inline=True)
def find_entry(table: ptr[NativeTable], area: u64, key: ptr[u64], mark: u64) -> u64:
    """Find or make the entry of a key. Returns 0 if the table is full."""
    header = cast(ptr[TableHeader], area)
    place = first_place(mark, table.shift)
    for _ in range(PROBES):
        entry = cast(ptr[u64], area + HEADER + place * table.entry)
        found = load(entry, "relaxed")
        if found == mark:
            same: u64 = 0
            while same < table.key_words and entry[KEY_AT + same] == key[same]:
                same += 1
            if same == table.key_words:
                return cast(u64, entry)
        elif found == 0:
            taken = new_entry(table, header, entry, key, mark)
            if taken != 0 or header.used >= table.limit:
                return taken
        place = (place + 1) & table.mask
    return 0


@native(inline=True)
def count_in(table: ptr[NativeTable], record: ptr[u8], area: u64, key: ptr[u64], mark: u64) -> void:
    entry = find_entry(table, area, key, mark)
    header = cast(ptr[TableHeader], area)
    if unlikely(entry == 0):
        single_add(addressof(header.dropped), 1)
        return
    sums = cast(ptr[u64], entry + table.sums)
    single_add(addressof(sums[0]), 1)
    for index in range(min(table.values, MAX_VALUES)):
        field = addressof(table.fields[table.keys + index])
        single_add(addressof(sums[1 + index]), value_of(field, record, table.rseq))


@native(inline=True)
def count_keys(table: ptr[NativeTable], record: ptr[u8], length: u64, key: ptr[u64], point: ptr[StackPoint]) -> void:
    """Count a hit. `key`: scratch memory for all keys, zeroed. `point`: of the hit; null: no key is a stack."""
    area = places(table)
    if area == 0:
        return
    mark: u64 = 0
    at: u64 = 0
    for index in range(min(table.keys, MAX_KEYS)):
        field = addressof(table.fields[index])
        if likely(field.source <= WORD):
            key[at] = value_of(field, record, table.rseq)
        elif field.source == STACK:
            table.capture(table.capture_argument, cast(ptr[u8], addressof(key[at])), field.words * 8, point)
        elif field.source == TEXT or field.source == DYNAMIC_TEXT:
            copy_text(field, record, length, addressof(key[at]))
        else:
            key[at] = value_of(field, record, table.rseq)
        at += field.words
    for word in range(min(table.key_words, MAX_KEY_WORDS)):
        if key[word] != 0:  # most of a text's words are 0
            mark = mix(mark + word, key[word])
    count_in(table, record, area, key, mark | 1)


@native
def count_texts(argument: u64, record: ptr[u8], length: u64) -> void:
    """The call of a histogram's trigger, for keys with texts."""
    key: array[u64, 48] = zeroed
    count_keys(cast(ptr[NativeTable], argument), record, length, cast(ptr[u64], addressof(key)), null)


@native
def count_stacks(argument: u64, record: ptr[u8], length: u64, point: ptr[StackPoint]) -> void:
    """The call of a histogram's trigger, for keys with stacks."""
    key: array[u64, 48] = zeroed
    count_keys(cast(ptr[NativeTable], argument), record, length, cast(ptr[u64], addressof(key)), point)


@native
def count_numbers(argument: u64, record: ptr[u8], length: u64) -> void:
    """The call of a histogram's trigger, for keys that are numbers."""
    key: array[u64, 4] = zeroed
    count_keys(cast(ptr[NativeTable], argument), record, length, cast(ptr[u64], addressof(key)), null)


@native
def count_number(argument: u64, record: ptr[u8], length: u64) -> void:
    """The call of a histogram's trigger, for a single key that is a number."""
    table = cast(ptr[NativeTable], argument)
    area = places(table)
    if area == 0:
        return
    key: array[u64, 1] = zeroed
    key[0] = value_of(addressof(table.fields[0]), record, table.rseq)
    count_in(table, record, area, cast(ptr[u64], addressof(key)), key[0] << 1 | 1)


FUNCTIONS = (count_texts, count_stacks, count_numbers, count_number)
