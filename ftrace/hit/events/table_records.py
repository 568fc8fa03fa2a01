"""Histograms that hits update in native code: each thread has its own table, and readers add the tables up."""

from __future__ import annotations

from ftrace.hit.events.map_records import hash_of, mix, put_key, running_task
from ftrace.hit.events.operations import WORD, CountedRecord, Program, Source, Value, begin_hit, compute, read_number
from ftrace.hit.hashing import first_place
from ftrace.hit.unwind.walk import StackPoint
from sandbox.native import *
from sandbox.threads.acting import shown_comm

MAX_KEYS, MAX_VALUES = 3, 2
PROBES = 128
"""The maximum number of places that are probed for a key."""
HEADER = 64
KEY_AT = 2
"""Words of an entry before its key: a hash of the key (0 in a free place), and a flag that the key is complete."""


SHORT_KEY = 4
"""Words of a key that count_short has memory for."""
COMPUTED = WORD + 1
"""A field that is no plain number of the record."""


@struct
class NativeField(Structure):
    """A key or a value."""

    source: u64  # the kind of number, as in operations; or COMPUTED
    start: u64  # offset in the record
    program: Program
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
    source: Source
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
def number_of(field: ptr[NativeField], record: ptr[u8]) -> u64:
    return read_number(field.source, cast(u64, addressof(record[field.start])))


@native(inline=True)
def places(table: ptr[NativeTable]) -> u64:
    """Address of the running thread's table; 0 if it has none."""
    task = running_task()
    if task == null:
        return 0
    return table.base + cast(u64, task.index) * table.stride


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
        shown_comm(addressof(cast(ptr[u8], entry)[table.comm]))
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
def entry_of(table: ptr[NativeTable], area: u64, key: ptr[u64], mark: u64) -> ptr[u64]:
    """The sums of a key's entry, with the hit counted; null, and a dropped hit, if the table is full."""
    entry = find_entry(table, area, key, mark)
    if unlikely(entry == 0):
        single_add(addressof(cast(ptr[TableHeader], area).dropped), 1)
        return null
    sums = cast(ptr[u64], entry + table.sums)
    single_add(addressof(sums[0]), 1)
    return sums


@native(inline=True)
def add_numbers(table: ptr[NativeTable], record: ptr[u8], sums: ptr[u64]) -> void:
    for index in range(min(table.values, MAX_VALUES)):
        single_add(addressof(sums[1 + index]), number_of(addressof(table.fields[table.keys + index]), record))


@native(inline=True)
def count_values(table: ptr[NativeTable], hit: ptr[CountedRecord], area: u64, key: ptr[u64]) -> void:
    """Count a hit with keys and values of any kind. `key`: memory for the keys, which is zero."""
    at: u64 = 0
    for index in range(min(table.keys, MAX_KEYS)):
        field = addressof(table.fields[index])
        put_key(addressof(field.program), field.words, hit, addressof(key[at]))
        at += field.words
    sums = entry_of(table, area, key, hash_of(key, table.key_words))
    if sums == null:
        return
    value: Value = zeroed
    for index in range(min(table.values, MAX_VALUES)):
        compute(addressof(table.fields[table.keys + index].program), hit, addressof(value))
        single_add(addressof(sums[1 + index]), value.word)


@native
def count_long(argument: u64, record: ptr[u8], length: u64, point: ptr[StackPoint]) -> void:
    """The call of a histogram's trigger, for keys and values of any kind."""
    table = cast(ptr[NativeTable], argument)
    area = places(table)
    if area != 0:
        hit: CountedRecord = zeroed
        key: array[u64, 48] = zeroed
        begin_hit(addressof(hit), addressof(table.source), record, length, point)
        count_values(table, addressof(hit), area, addressof(key[0]))


@native
def count_short(argument: u64, record: ptr[u8], length: u64, point: ptr[StackPoint]) -> void:
    """The same, for keys of a few words."""
    table = cast(ptr[NativeTable], argument)
    area = places(table)
    if area != 0:
        hit: CountedRecord = zeroed
        key: array[u64, 4] = zeroed
        begin_hit(addressof(hit), addressof(table.source), record, length, point)
        count_values(table, addressof(hit), area, addressof(key[0]))


@native
def count_numbers(argument: u64, record: ptr[u8], length: u64) -> void:
    """The call of a histogram's trigger, for keys and values that are plain numbers."""
    table = cast(ptr[NativeTable], argument)
    area = places(table)
    if area == 0:
        return
    key: array[u64, 4] = zeroed
    mark: u64 = 0
    for index in range(min(table.keys, MAX_KEYS)):
        key[index] = number_of(addressof(table.fields[index]), record)
        if key[index] != 0:
            mark = mix(mark + index, key[index])
    sums = entry_of(table, area, addressof(key[0]), mark | 1)
    if likely(sums != null):
        add_numbers(table, record, sums)


@native
def count_number(argument: u64, record: ptr[u8], length: u64) -> void:
    """The same, for a single key."""
    table = cast(ptr[NativeTable], argument)
    area = places(table)
    if area == 0:
        return
    key: array[u64, 1] = zeroed
    key[0] = number_of(addressof(table.fields[0]), record)
    sums = entry_of(table, area, addressof(key[0]), key[0] << 1 | 1)
    if likely(sums != null):
        add_numbers(table, record, sums)


FUNCTIONS = (count_long, count_short, count_numbers, count_number)
