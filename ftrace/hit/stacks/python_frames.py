"""The Python frames of the running thread, read from the interpreter's structures, without its lock. Native.

A thread's own frames change only by what it does itself, and at a hit it does nothing else. Their code objects live as long as
they do, apart from a frame that is just being removed. All reads are guarded.
"""

from __future__ import annotations

from ftrace.hit.hashing import first_place
from ftrace.hit.stacks.stack_table import (
    CODE_SHIFT,
    CODES,
    CUT,
    DEPTH,
    PROBES,
    PYTHON,
    KnownFrame,
    StackTable,
    ThreadStack,
    forget_code,
    keep_text,
    node_of,
    take_number,
)
from sandbox.native import *

_WORD = 8
_TAGS = 7
"""Low bits of a reference to a code object that are no part of its address, from Python 3.14 on."""
_TYPE, _LENGTH, _STATE, _BYTES = 8, 16, 32, 32
"""Offsets in objects: of the type; of a text's length and state; of a bytes object's first byte."""
_DATA = 3
"""The kind of texts that are bytes; others have ASCII, or the bytes of a character: 1, 2, 4."""
ASCII_KIND = 0


@struct
class PythonLayout(Structure):
    """Where CPython keeps what, in bytes. `of_thread`: where a thread has its state, from %fs; 0: frames are not read."""

    of_thread: u64
    interpreter: u64  # start of its code
    interpreter_size: u64
    code_type: u64
    state_frame: u64
    through: u64  # 1 more than the offset of the frame in what the state points to; 0: it points to the frame
    code: u64  # of a frame; the next two follow, as same_frames() has them
    previous: u64
    place: u64
    is_index: u64  # not 0: the place is a number of instructions, not an address
    owner: u64  # 0: there is none
    shim: u64  # from this owner on, frames are no Python functions
    first: u64  # instructions of a code object
    line: u64
    filename: u64
    name: u64
    lines: u64
    ascii: u64  # characters of a text
    other: u64


python_layout = global_var(PythonLayout, name="python_layout")
stack_table = global_var(u64, 0, name="stack_table")
dealloc_code = global_var(u64, 0, name="python_code_dealloc")
"""The interpreter's own function that frees a code object."""
interpreter_ends = global_var(u64, 0, name="python_interpreter_ends")
"""Not 0 once the interpreter is about to free its threads' states."""


@native(inline=True)
def word_at(address: u64) -> u64:
    """0 if it cannot be read."""
    word: u64 = 0
    probe_read(addressof(word), address, _WORD)
    return word


@native
def keep_unicode(table: ptr[StackTable], layout: ptr[PythonLayout], text: u64) -> u64:
    """Copy a str."""
    state = word_at(text + _STATE)
    kind = state >> 2 & 7
    if word_at(text + _TYPE) == 0 or kind == 0 or kind == 3 or kind > 4:
        return 0
    is_ascii = state >> 6 & 1 != 0
    start = layout.ascii if is_ascii else layout.other
    return keep_text(table, text + start, word_at(text + _LENGTH) * kind, ASCII_KIND if is_ascii else kind)


@native(noinline=True)
def new_code(table: ptr[StackTable], place: ptr[u32], address: u64) -> u64:
    """Keep what names a code object and its lines. 0 if there is no memory, or if another thread has taken the place."""
    layout = addressof(python_layout)
    number = take_number(addressof(table.head.codes), CODES)
    if number == 0:
        return 0
    code = addressof(table.codes[number])
    code.line = word_at(address + layout.line) & 0xFFFF_FFFF
    code.filename = keep_unicode(table, layout, word_at(address + layout.filename))
    code.name = keep_unicode(table, layout, word_at(address + layout.name))
    lines = word_at(address + layout.lines)
    code.lines = keep_text(table, lines + _BYTES, word_at(lines + _LENGTH), _DATA)
    code.address = address
    return number if atomic_cas(place, 0, cast(u32, number), "acq_rel") else 0


@native(inline=True)
def code_number(table: ptr[StackTable], address: u64) -> u64:
    """The number of a code object; 0 if there is no place for it."""
    index = first_place(address, CODE_SHIFT)
    for _ in range(PROBES):
        place = addressof(table.code_index[index])
        number = cast(u64, load(place, "acquire"))
        if unlikely(number == 0):
            number = new_code(table, place, address)
            if number != 0:
                return number
            number = cast(u64, load(place, "acquire"))
            if number == 0:
                return 0
        if likely(load(addressof(table.codes[number].address)) == address):
            return number
        index = (index + 1) & (2 * CODES - 1)
    return 0


@native(inline=True)
def is_function(layout: ptr[PythonLayout], frame: u64, code: u64) -> bool_:
    """Whether a frame is of a Python function.

    From 3.13 on, __init__ may be called by a frame of the interpreter's own, whose code names itself as its file.
    """
    if layout.owner != 0 and word_at(frame + (layout.owner & ~7)) >> ((layout.owner & 7) * 8) & 255 >= layout.shim:
        return False
    if word_at(code + layout.filename) == word_at(code + layout.name):
        return False
    return word_at(code + _TYPE) == layout.code_type


@native(inline=True)
def place_of(layout: ptr[PythonLayout], place: u64, code: u64) -> u64:
    """The offset of the instruction that a frame executes; 0 before the first one."""
    offset = place - code - layout.first
    if layout.is_index != 0:
        offset = (place & 0xFFFF_FFFF) * 2
    return offset if offset < 1 << 31 else 0


@native(inline=True)
def innermost_frame(layout: ptr[PythonLayout]) -> u64:
    """The address of the running thread's innermost frame; 0 if it has none."""
    if layout.of_thread == 0 or load(addressof(interpreter_ends)) != 0:
        return 0
    state = read_fs(layout.of_thread)
    if state == 0:
        return 0
    frame = word_at(state + layout.state_frame)
    if layout.through != 0 and frame != 0:
        frame = word_at(frame + layout.through - 1)
    return frame


same_frames = extern("ftrace_same_frames", fn[i64, u64, ptr[KnownFrame], ptr[u64]])


@native(inline=True)
def read_frame(layout: ptr[PythonLayout], frame: u64, into: ptr[KnownFrame]) -> u64:
    """Read a frame, and return its caller's."""
    into.frame = frame
    into.code = word_at(frame + layout.code)
    into.place = word_at(frame + layout.place)
    return word_at(frame + layout.previous)


@native(noinline=True)
def new_frames(area: ptr[ThreadStack], innermost: u64) -> u64:
    """Store in `new` the frames from `innermost` outwards that are not as the last hit has seen them; `count` others are.

    Returns their number; DEPTH + 1 if there are more.
    The frames of a thread are at falling addresses from `innermost` outwards, but for those of generators and coroutines.
    """
    layout = addressof(python_layout)
    known = cast(ptr[KnownFrame], addressof(area.known[0]))
    new = cast(ptr[KnownFrame], addressof(area.new[0]))
    number: u64 = 0
    frame = innermost
    while frame != 0 and number < DEPTH:
        while area.count != 0 and known[area.count].frame > frame:
            area.count -= 1
        differing: u64 = 0
        if known[area.count].frame == frame:
            same = same_frames(frame, addressof(known[area.count]), addressof(layout.code))
            if same >> 32 == 1:
                return number
            differing = cast(u64, same) if same > 0 else 0
        for _ in range(min(differing + 1, DEPTH)):
            if frame == 0 or number == DEPTH:
                break
            frame = read_frame(layout, frame, addressof(new[number]))
            number += 1
    area.count = 0
    return number if frame == 0 else DEPTH + 1


@native(inline=True)
def frame_node(table: ptr[StackTable], frame: ptr[KnownFrame], parent: u64) -> bool_:
    """Find the node of a frame that `parent` has called: that itself if the frame is no function's. False: there is no place."""
    layout = addressof(python_layout)
    code = frame.code & ~cast(u64, _TAGS)
    frame.node = parent
    if unlikely(not is_function(layout, frame.frame, code)):
        return True
    number = code_number(table, code)
    if unlikely(number == 0):
        return False
    frame.node = node_of(table, parent, PYTHON | number << 32 | place_of(layout, frame.place, code))
    return frame.node != 0


@native(noinline=True)
def python_node(table: ptr[StackTable], area: ptr[ThreadStack], innermost: u64, node: ptr[u64]) -> bool_:
    """Store the node of the frames from `innermost` outwards; 0 if there are no functions. False: there is no place for them."""
    forgotten = load(addressof(table.head.forgotten), "acquire")
    if area.forgotten != forgotten:
        area.count = 0
        area.forgotten = forgotten
    number = new_frames(area, innermost)
    is_cut = number > DEPTH
    known = cast(ptr[KnownFrame], addressof(area.known[0]))
    parent: u64 = 0
    if area.count != 0:
        parent = known[area.count].node
    if unlikely(is_cut):
        number = DEPTH
        atomic_add(addressof(table.head.cut), 1, "relaxed")
        parent = node_of(table, 0, CUT)
        if parent == 0:
            return False
    for index in range(min(number, DEPTH)):
        frame = addressof(area.new[number - 1 - index])
        if unlikely(not frame_node(table, frame, parent)):
            return False
        parent = frame.node
        if not is_cut and area.count < DEPTH:
            area.count += 1
            copy(addressof(known[area.count]), frame)
    node[0] = parent
    return True


@native(name="python_stack")
def own_python_node(table: ptr[StackTable], area: ptr[ThreadStack], node: ptr[u64]) -> u64:
    """`python_node` of the thread that calls this, for the check against known frames. 1: it was found."""
    innermost = innermost_frame(addressof(python_layout))
    if innermost == 0 or not python_node(table, area, innermost, node):
        return 0
    return 1


@native(name="python_code_freed")
def code_freed(code: u64) -> void:
    """In place of the interpreter's function that frees a code object."""
    if stack_table != 0:
        forget_code(cast(ptr[StackTable], stack_table), code)
    cast(fn[void, u64], dealloc_code)(code)


FUNCTIONS = (own_python_node, code_freed)
