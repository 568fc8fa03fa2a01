"""The table of stacks: a tree of frames whose nodes hits find or make, without locks and without allocation. Native.

It is one piece of memory that another process may read: a head, the nodes with their index, Python's code objects with theirs,
texts, and an area for each thread. A node is a frame and what called it; a stack is known by its innermost node. A frame is
a word:

    native   its address
    Python   PYTHON | number of the code object << 32 | offset of the instruction in bytes

Memory that has not been written to is a hole of the file, so indexes are apart from what they lead to, which is contiguous.
"""

from __future__ import annotations

from ftrace.hit.account import Row
from ftrace.hit.hashing import first_place
from sandbox.native import *
from sandbox.threads.tasks import CAPACITY, current

PYTHON = 1 << 63
CUT = 1 << 62
"""The frame that stands for those outside of the deepest that are kept."""
DEPTH, NATIVE_DEPTH = 4096, 128
NODE_BITS, CODE_BITS = 19, 15
NODES, CODES = 1 << NODE_BITS, 1 << CODE_BITS
TEXTS = 1 << 26
"""Bytes of texts."""
PROBES = 128
_TEXT_HEAD = 8
_LONGEST = 65_536
"""Bytes of a text that are kept, as many as one guarded read takes."""
CODE_FORGOTTEN = 1


@struct
class StackHead(Structure):
    """The beginning of the memory."""

    nodes: u64  # in use; numbers begin with 1
    codes: u64
    texts: u64  # bytes in use
    lost: u64  # calls whose stack found no place
    cut: u64  # stacks that were deeper than DEPTH
    forgotten: u64  # code objects that have been freed
    reserved: array[u64, 2]


@struct
class StackNode(Structure):
    """A frame, and the calls whose stack ends with it. `weight`: ticks, or the sum of an argument."""

    frame: u64
    parent: u64  # the number of its caller's node; 0: it has none
    calls: u64
    weight: u64


@struct
class StackCode(Structure):
    """A code object as it was when it was first seen. Texts are offsets; `address` is CODE_FORGOTTEN once it has been freed."""

    address: u64
    line: u64
    filename: u64
    name: u64
    lines: u64  # its table of lines
    reserved: array[u64, 3]


@struct
class KnownFrame(Structure):
    """A frame of Python as the last hit has seen it, and the node of the stack that it ends."""

    frame: u64
    code: u64  # as the frame has it
    place: u64  # likewise
    node: u64


@struct
class ThreadStack(Structure):
    """A thread's area. It begins with what `self_time` takes of a row.

    `known`: the frames of Python of the last hit, from 1 on, outermost first, while `forgotten` is the same as in the head.
    """

    row: Row
    is_busy: u64
    count: u64
    forgotten: u64
    reserved: array[u64, 5]
    frames: array[u64, 128]
    known: array[KnownFrame, 4104]
    new: array[KnownFrame, 4104]


@struct
class StackTable(Structure):
    """Addresses of the table's pieces."""

    head: ptr[StackHead]
    node_index: ptr[u32]
    nodes: ptr[StackNode]
    code_index: ptr[u32]
    codes: ptr[StackCode]
    texts: u64
    threads: u64


PIECES = (
    ("head", 4096),
    ("node_index", 8 * NODES),
    ("nodes", StackNode.size * (NODES + 1)),
    ("code_index", 8 * CODES),
    ("codes", StackCode.size * (CODES + 1)),
    ("texts", TEXTS),
    ("threads", ThreadStack.size * CAPACITY),
)
"""The pieces in their order, with their bytes. An index has two places for each entry."""
NODE_SHIFT, CODE_SHIFT = 64 - NODE_BITS - 1, 64 - CODE_BITS - 1


@native(inline=True)
def thread_area(table: ptr[StackTable]) -> ptr[ThreadStack]:
    return cast(ptr[ThreadStack], table.threads + cast(u64, current().index) * sizeof(ThreadStack))


@native(inline=True)
def take_number(used: ptr[u64], most: u64) -> u64:
    """The number of a new entry, from 1 on; 0 if there are `most`."""
    if load(used) >= most:
        return 0
    number = atomic_add(used, 1, "relaxed") + 1
    return number if number <= most else 0


@native(noinline=True)
def new_node(table: ptr[StackTable], place: ptr[u32], parent: u64, frame: u64) -> u64:
    """Make a node in a free place of the index; 0 if there is no memory, or if another thread has taken the place."""
    number = take_number(addressof(table.head.nodes), NODES)
    if number == 0:
        return 0
    node = addressof(table.nodes[number])
    node.frame = frame
    node.parent = parent
    return number if atomic_cas(place, 0, cast(u32, number), "acq_rel") else 0


@native(inline=True)
def node_of(table: ptr[StackTable], parent: u64, frame: u64) -> u64:
    """The number of the node of a frame that `parent` has called; 0 if there is no place for it."""
    index = first_place(frame ^ (parent << 40) ^ (parent << 17), NODE_SHIFT)
    for _ in range(PROBES):
        place = addressof(table.node_index[index])
        number = cast(u64, load(place, "acquire"))
        if unlikely(number == 0):
            number = new_node(table, place, parent, frame)
            if number != 0:
                return number
            number = cast(u64, load(place, "acquire"))
            if number == 0:
                return 0
        node = addressof(table.nodes[number])
        if likely(node.frame == frame and node.parent == parent):
            return number
        index = (index + 1) & (2 * NODES - 1)
    return 0


@native
def keep_text(table: ptr[StackTable], data: u64, size: u64, kind: u64) -> u64:
    """Copy a text and return its offset; 0 if there is no place. Before it are its bytes and its `kind`, 32 bits each."""
    kept = min(size, _LONGEST)
    need = (kept + 7 & ~7) + _TEXT_HEAD
    if load(addressof(table.head.texts)) + need > TEXTS - _TEXT_HEAD:
        return 0
    start = atomic_add(addressof(table.head.texts), need, "relaxed") + _TEXT_HEAD  # 0 is none
    if start + need > TEXTS:
        return 0
    if kept != 0 and probe_read(cast(ptr[u8], table.texts + start + _TEXT_HEAD), data, kept) < 0:
        return 0
    cast(ptr[u64], table.texts + start)[0] = kept | kind << 32
    return start


@native(name="stack_code_freed")
def forget_code(table: ptr[StackTable], address: u64) -> void:
    """A code object is about to be freed: another one may get its address."""
    index = first_place(address, CODE_SHIFT)
    for _ in range(PROBES):
        number = cast(u64, load(addressof(table.code_index[index]), "acquire"))
        if number == 0:
            return
        if load(addressof(table.codes[number].address)) == address:
            store(addressof(table.codes[number].address), CODE_FORGOTTEN)
            atomic_add(addressof(table.head.forgotten), 1, "release")
        index = (index + 1) & (2 * CODES - 1)


@native(inline=True)
def count(table: ptr[StackTable], node: u64) -> void:
    atomic_add(addressof(table.nodes[node].calls), 1, "relaxed")


@native(inline=True)
def add_weight(table: ptr[StackTable], node: u64, weight: u64) -> void:
    atomic_add(addressof(table.nodes[node].weight), weight, "relaxed")
