"""The pool of free pages: a lock-free bitmap that all rings share.

A sub-buffer of 2^order pages is an aligned run of bits, so that freed ones need no merging.
"""

from __future__ import annotations

from ftrace.hit.ring_buffer.records import Ring, meta_at
from sandbox.native import *

WORD = 64
ONE = const(u64, 1)
FULL = 0xFFFF_FFFF_FFFF_FFFF
_TRIES = 8


@native
def run_mask(order: u64) -> u64:
    """A mask of 2^order ones."""
    return (ONE << (ONE << order)) - 1 if order < 6 else FULL


@native
def free_runs(bits: u64, order: u64) -> u64:
    """A mask of the first bit of each aligned run of 2^order ones in `bits`."""
    runs = bits
    for step in range(6):
        if step < order:
            runs &= runs >> (ONE << step)
    return runs & (FULL // run_mask(order))


@native(inline=True)
def word_at(ring: ptr[Ring], index: u64) -> ptr[u64]:
    return addressof(cast(ptr[u64], ring.bitmap)[index])


@native
def take_from_word(ring: ptr[Ring], index: u64, order: u64) -> u64:
    """Take 2^order pages, at most 64, from one word. Returns the number of the first page plus 1; 0 if there are none."""
    word = word_at(ring, index)
    for _attempt in range(_TRIES):
        bits = load(word, "relaxed")
        runs = free_runs(bits, order)
        if runs == 0:
            return 0
        bit = trailing_zeros(runs)
        if atomic_cas(word, bits, bits & ~(run_mask(order) << bit), "acq_rel"):
            return index * WORD + bit + 1
    return 0


@native
def take_two_words(ring: ptr[Ring], index: u64) -> u64:
    """Take 128 pages, which are two whole words. Returns as `take_from_word`."""
    if index & 1 != 0 or not atomic_cas(word_at(ring, index), FULL, 0, "acq_rel"):
        return 0
    if atomic_cas(word_at(ring, index + 1), FULL, 0, "acq_rel"):
        return index * WORD + 1
    store(word_at(ring, index), FULL, "release")
    return 0


@native(name="ring_take_page")
def take_page(ring: ptr[Ring]) -> u64:
    """Take a sub-buffer. Returns the number of its first page plus 1; 0 if none is left."""
    start = load(addressof(ring.hint), "relaxed")
    for step in range(ring.words):
        index = start + step
        if index >= ring.words:
            index -= ring.words
        page = take_two_words(ring, index) if ring.order > 6 else take_from_word(ring, index, ring.order)
        if page != 0:
            store(addressof(ring.hint), index, "relaxed")
            return page
    return 0


@native(name="ring_give_page")
def give_page(ring: ptr[Ring], page: u64) -> void:
    """Free a sub-buffer. No thread may write to it any more."""
    meta = meta_at(ring, page)
    store(addressof(meta.sequence), 0, "release")
    index = page // WORD
    if meta.order > 6:
        store(word_at(ring, index + 1), FULL, "release")
        store(word_at(ring, index), FULL, "release")
    else:
        atomic_or(word_at(ring, index), run_mask(meta.order) << page % WORD, "acq_rel")
    if index < load(addressof(ring.hint), "relaxed"):
        store(addressof(ring.hint), index, "relaxed")
