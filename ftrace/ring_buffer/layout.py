"""The page format of the kernel's ring buffer, and the layout of the memory file that holds the pages.

A sub-buffer is a u64 time stamp, a u64 commit word and events, as described by events/header_page. The file begins with a header,
followed by a directory of the rings in it, a bitmap of the free pages, a PageMeta for each page, the rings' slots, and the
pages. Everything in the file refers to pages by their number, so that another process can map it anywhere.
"""

from __future__ import annotations

from typing import NamedTuple

from sandbox.native import native, u64

PAGE_SHIFT = 12
PAGE_SIZE = 1 << PAGE_SHIFT
HEADER = 16
"""Bytes of a sub-buffer before its events."""
MAX_ORDER = 7
"""A sub-buffer has at most 2^7 pages: 512 KiB."""

DATA_TYPE_MAX = 28
"""Largest type_len of an event: its data takes that many words of 4 bytes. 0: the next word has the length."""
PADDING, TIME_EXTEND, TIME_STAMP = 29, 30, 31
DELTA_BITS = 27
TIME_STAMP_BITS = 59

COMMIT_MASK = (1 << 27) - 1
MISSED_EVENTS, MISSED_STORED = 1 << 31, 1 << 30
"""Flags of a commit word: events were lost before this page; their number follows its data as a u64."""

SMALL_DATA = 4 * DATA_TYPE_MAX
COMMON = 8
"""Bytes of common_type, common_flags, common_preempt_count and common_pid in front of each event's fields."""

MAGIC = 0x31_66_75_62_65_63_72_74  # "trcebuf1"
RINGS = 64
"""Rings that can exist in a process: an instance takes two if it has a snapshot."""
SLOTS = 2048
"""Slots of a ring: one for each record of a thread (sandbox.threads.tasks.CAPACITY)."""
DIRECTORY_ENTRY = 256
META_SIZE = 64
SLOT_SIZE = 256


@native(inline=True)
def event_size(length: u64) -> u64:
    """Bytes that an event with `length` bytes of data takes, as rb_calculate_event_length() rounds them."""
    data = (length + 3) & ~3
    if length > SMALL_DATA:
        return data + 8
    return 16 if data == 8 else data + 4 if data != 0 else 8


class Geometry(NamedTuple):
    """Where things are in a memory file whose pool is `pages` pages: offsets in bytes."""

    pages: int

    @property
    def directory(self) -> int:
        """The entries of the rings."""
        return PAGE_SIZE

    @property
    def bitmap(self) -> int:
        """A word for 64 pages; a bit is 1 where the page is free."""
        return self.directory + RINGS * DIRECTORY_ENTRY

    @property
    def words(self) -> int:
        """Number of words of the bitmap."""
        return self.pages // 64

    @property
    def metas(self) -> int:
        """A PageMeta for each page."""
        return _page_aligned(self.bitmap + 8 * self.words)

    @property
    def slots(self) -> int:
        """The slots of ring 0, then those of the others."""
        return _page_aligned(self.metas + META_SIZE * self.pages)

    def slots_of(self, ring: int) -> int:
        """The first slot of a ring."""
        return self.slots + ring * SLOTS * SLOT_SIZE

    @property
    def data(self) -> int:
        """The first page, aligned to the largest sub-buffer."""
        return -(-self.slots_of(RINGS) // (PAGE_SIZE << MAX_ORDER)) * (PAGE_SIZE << MAX_ORDER)

    @property
    def size(self) -> int:
        """The whole file."""
        return self.data + self.pages * PAGE_SIZE


def geometry(pool_bytes: int) -> Geometry:
    """The layout of a file with a pool of at least `pool_bytes`, rounded up to whole 512 KiB."""
    largest = PAGE_SIZE << MAX_ORDER
    return Geometry(-(-pool_bytes // largest) << MAX_ORDER)


def _page_aligned(offset: int) -> int:
    return -(-offset // PAGE_SIZE) * PAGE_SIZE


def subbuf_order(kilobytes: int) -> int:
    """The order of a sub-buffer of at least that many KiB: it has 2^order pages. As buffer_subbuf_size_kb rounds."""
    return max(0, (kilobytes - 1).bit_length() - 2)


def subbufs(kilobytes: int, order: int) -> int:
    """How many sub-buffers a slot has for a buffer_size_kb, as ring_buffer_resize() rounds: at least 2."""
    return max(2, -(-kilobytes * 1024 // capacity(order)))


def capacity(order: int) -> int:
    """Bytes of events in a sub-buffer."""
    return (PAGE_SIZE << order) - HEADER
