"""A hash table that all threads share, without locks, as kernel/trace/tracing_map.c: its entries are found by their keys.

    header | places: a word each, 0 or the entry's number + 1 with 32 bits of the key's hash | entries

An entry is filled before a place refers to it, so nobody ever sees half of one or waits for another thread. A thread that finds
that another was quicker gives its entry back. Nothing is removed: clearing replaces the whole area.
"""

from __future__ import annotations

from ftrace.hit.hashing import first_place
from sandbox.native import *
from sandbox.threads.acting import shown_comm

HEADER = 128
_TAG = 0xFFFF_FFFF_0000_0000
_NUMBER = 0xFFFF_FFFF


@struct
class MapHeader(Structure):
    """The beginning of an area."""

    used: u64  # entries in the table
    fresh: u64  # entries that were ever taken
    given_back: u64  # the number + 1 of an entry that is free again, in the low half; the high half counts changes
    hits: u64
    dropped: u64
    snapshot_value: u64
    snapshot_entry: u64  # address of the entry whose hit took the last snapshot; 0: there was none
    snapshot_action: u64
    reserved: array[u64, 8]


@struct
class TracingMap(Structure):
    """A table. All but `area` is constant."""

    area: u64
    mask: u64  # places less one
    shift: u64  # 64 less the number of bits of a place
    limit: u64  # maximum number of entries in the table
    capacity: u64  # ... in the area: more, since entries that are being filled count
    entries: u64  # offset of the first entry
    entry: u64  # bytes of an entry; it begins with its key
    key_words: u64
    comm: u64  # offset of the task's name in an entry; 0: it has none


@native(inline=True)
def is_key_of(map: ptr[TracingMap], entry: u64, key: ptr[u64]) -> bool_:
    words = cast(ptr[u64], entry)
    same: u64 = 0
    while same < map.key_words and words[same] == key[same]:
        same += 1
    return same == map.key_words


@native(inline=True)
def entry_at(map: ptr[TracingMap], area: u64, place: u64) -> u64:
    """The entry that the word of a place refers to."""
    return area + map.entries + ((place & _NUMBER) - 1) * map.entry


@native
def look_up(map: ptr[TracingMap], area: u64, key: ptr[u64], mark: u64) -> u64:
    """Address of the entry with that key; 0 if there is none. `mark`: a hash of the key."""
    places = cast(ptr[u64], area + HEADER)
    at = first_place(mark, map.shift)
    for _ in range(map.mask + 1):
        place = load(addressof(places[at]), "acquire")
        if place == 0:
            return 0
        if place & _TAG == mark & _TAG and is_key_of(map, entry_at(map, area, place), key):
            return entry_at(map, area, place)
        at = at + 1 & map.mask
    return 0


@native
def take_number(map: ptr[TracingMap], area: u64) -> u64:
    """The number of a free entry, plus 1; 0 if the table is full."""
    header = cast(ptr[MapHeader], area)
    if atomic_add(addressof(header.used), 1, "relaxed") >= map.limit:
        atomic_sub(addressof(header.used), 1, "relaxed")
        return 0
    first = load(addressof(header.given_back), "acquire")
    while first & _NUMBER != 0:
        entry = cast(ptr[u64], entry_at(map, area, first))
        following = (first & _TAG) + (1 << 32) | load(entry, "relaxed")
        if atomic_cas(addressof(header.given_back), first, following, "acq_rel"):
            return first & _NUMBER
        first = load(addressof(header.given_back), "acquire")
    fresh = atomic_add(addressof(header.fresh), 1, "relaxed")
    if fresh < map.capacity:
        return fresh + 1
    atomic_sub(addressof(header.used), 1, "relaxed")
    return 0


@native
def give_back(map: ptr[TracingMap], area: u64, number: u64) -> void:
    """Free an entry that no place refers to."""
    header = cast(ptr[MapHeader], area)
    entry = cast(ptr[u64], entry_at(map, area, number))
    is_done = False
    while not is_done:
        first = load(addressof(header.given_back), "acquire")
        store(entry, first & _NUMBER, "relaxed")
        is_done = atomic_cas(addressof(header.given_back), first, (first & _TAG) + (1 << 32) | number, "acq_rel")
    atomic_sub(addressof(header.used), 1, "relaxed")


@native
def fill_entry(map: ptr[TracingMap], entry: u64, key: ptr[u64]) -> void:
    words = cast(ptr[u64], entry)
    for index in range(map.key_words):
        words[index] = key[index]
    if map.comm != 0:
        shown_comm(cast(ptr[u8], entry + map.comm))


@native
def find_or_make(map: ptr[TracingMap], area: u64, key: ptr[u64], mark: u64) -> u64:
    """Address of the entry with that key, which is made if there is none. 0 if the table is full."""
    places = cast(ptr[u64], area + HEADER)
    at = first_place(mark, map.shift)
    made: u64 = 0
    found: u64 = 0
    tried: u64 = 0
    while found == 0 and tried <= map.mask:
        place = load(addressof(places[at]), "acquire")
        if place == 0:
            if made == 0:
                made = take_number(map, area)
                if made == 0:
                    return 0
                fill_entry(map, entry_at(map, area, made), key)
            if atomic_cas(addressof(places[at]), 0, mark & _TAG | made, "acq_rel"):
                return entry_at(map, area, made)
        elif place & _TAG == mark & _TAG and is_key_of(map, entry_at(map, area, place), key):
            found = entry_at(map, area, place)
        else:
            at = at + 1 & map.mask
            tried += 1
    if made != 0:
        give_back(map, area, made)
    return found
