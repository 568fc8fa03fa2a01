"""The page format of the kernel's ring buffer, and the layout of the memory file that holds the pages.

A sub-buffer is a u64 time stamp, a u64 commit word and events, as described by events/header_page. The file begins with a header,
followed by a directory of the rings in it, a bitmap of the free pages, a PageMeta for each page, the rings' slots, and the
pages. Everything in the file refers to pages by their number, so that another process can map it anywhere.
"""

from __future__ import annotations

from typing import NamedTuple

from sandbox.native import *

PAGE_SHIFT = 12
PAGE_SIZE = 1 << PAGE_SHIFT
HEADER = 16
"""Bytes of a sub-buffer before its events."""
MAX_ORDER = 7
"""A sub-buffer has at most 2^7 pages: 512 KiB."""

DATA_TYPE_MAX = 28
"""Largest type_len of an event: the number of 4-byte words of its data. 0: the next word has the length."""
PADDING, TIME_EXTEND, TIME_STAMP = 29, 30, 31
DELTA_BITS = 27
TIME_STAMP_BITS = 59

COMMIT_MASK = (1 << 27) - 1
MISSED_EVENTS, MISSED_STORED = 1 << 31, 1 << 30
"""Flags of a commit word: events are missing before this sub-buffer; their number follows the data as a u64."""

SMALL_DATA = 4 * DATA_TYPE_MAX
COMMON = 8
"""Bytes of common_type, common_flags, common_preempt_count and common_pid, which precede each event's fields."""

MAGIC = 0x32_66_75_62_65_63_72_74  # "trcebuf2"
RINGS = 64
"""Maximum number of rings in a process. An instance takes two if it has a snapshot."""
SLOTS = 2048
"""Slots of a ring: one for each record of a thread (sandbox.threads.tasks.CAPACITY)."""
DIRECTORY_ENTRY = 256
META_SIZE = 64
SLOT_SIZE = 256


@native(inline=True)
def event_size(length: u64) -> u64:
    """Bytes of an event with `length` bytes of data, rounded as by rb_calculate_event_length()."""
    data = (length + 3) & ~3
    if length > SMALL_DATA:
        return data + 8
    return 16 if data == 8 else data + 4 if data != 0 else 8


class Geometry(NamedTuple):
    """The layout of a memory file with a pool of `pages` pages. Offsets are in bytes."""

    pages: int

    @property
    def directory(self) -> int:
        """Offset of the directory of rings."""
        return PAGE_SIZE

    @property
    def bitmap(self) -> int:
        """Offset of the bitmap of free pages: 64-bit words; a bit is 1 if its page is free."""
        return self.directory + RINGS * DIRECTORY_ENTRY

    @property
    def words(self) -> int:
        """Number of words of the bitmap."""
        return self.pages // 64

    @property
    def metas(self) -> int:
        """Offset of the array of PageMeta."""
        return _page_aligned(self.bitmap + 8 * self.words)

    @property
    def slots(self) -> int:
        """Offset of the slots of ring 0, which those of the other rings follow."""
        return _page_aligned(self.metas + META_SIZE * self.pages)

    def slots_of(self, ring: int) -> int:
        """Offset of the first slot of a ring."""
        return self.slots + ring * SLOTS * SLOT_SIZE

    @property
    def data(self) -> int:
        """Offset of the first page, aligned to the largest sub-buffer."""
        return -(-self.slots_of(RINGS) // (PAGE_SIZE << MAX_ORDER)) * (PAGE_SIZE << MAX_ORDER)

    @property
    def size(self) -> int:
        """Size of the file."""
        return self.data + self.pages * PAGE_SIZE


def geometry(pool_bytes: int) -> Geometry:
    """The layout of a file with a pool of at least `pool_bytes`, rounded up to whole 512 KiB."""
    largest = PAGE_SIZE << MAX_ORDER
    return Geometry(-(-pool_bytes // largest) << MAX_ORDER)


def _page_aligned(offset: int) -> int:
    return -(-offset // PAGE_SIZE) * PAGE_SIZE


def subbuf_order(kilobytes: int) -> int:
    """The order of the smallest sub-buffer (2^order pages) of at least that many KiB, as for buffer_subbuf_size_kb."""
    return max(0, (kilobytes - 1).bit_length() - 2)


def subbufs(kilobytes: int, order: int) -> int:
    """Number of sub-buffers of a slot for a buffer_size_kb, rounded as by ring_buffer_resize(): at least 2."""
    return max(2, -(-kilobytes * 1024 // capacity(order)))


def capacity(order: int) -> int:
    """Bytes for events in a sub-buffer."""
    return (PAGE_SIZE << order) - HEADER
