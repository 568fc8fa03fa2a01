"""Walking the stack of a hit, from the hit outwards, in native code with guarded reads and a limited depth.

    point: StackPoint = zeroed          # ip, sp, bp of the hit
    count = walk_stack(addressof(point), entries, 64)

The first address is the point's own; the others are return addresses, for hooked calls the real ones. Code that runs Python
functions, perf's trampolines and the interpreter's JIT, is left out. A walk ends at the guard around calls from Python, or with
an address in other code that no table describes.
"""

from __future__ import annotations

from ftrace.hit.python_left import LEFT
from ftrace.hit.rethook import rethook_find_ret_addr
from ftrace.hit.unwind.call_frames import RBP, RSP, Reading, find_rules
from sandbox.native import *
from sandbox.threads.tasks import Node, current

MAX_DEPTH = 64
"""The maximum number of addresses in a stack record."""
_WORD = 8
# Offsets of registers in the ucontext of a signal's frame, to which the stack pointer points once the handler has returned.
_SIGNAL_BP, _SIGNAL_SP, _SIGNAL_IP = 120, 160, 168
# CPython's perf trampolines: the eight bytes around the end of their only call, of which _TO_RETURN are before it.
_LEAVES_SPACE = 0x8348_D1FF_08EC_8348  # sub $8, %rsp; call *%rcx; add ...
_SAVES_BP = 0xC35D_D1FF_E589_4855  # push %rbp; mov %rsp, %rbp; call *%rcx; pop %rbp; ret
_TO_RETURN = 6
# A call instruction by what is before its end: E8 and four bytes; FF and an operand of one, two, three, five or six bytes.
_CALL, _CALL_INDIRECT = 0xE8, 0xFF


@struct
class StackPoint(Structure):
    """A point of execution: the next instruction, and the registers.

    `time`: of the record that was made of it, by the clock of its buffer; 0: none was.
    """

    ip: u64
    sp: u64
    bp: u64
    time: u64


@struct
class CodeRegion(Structure):
    """Code, and its table of functions: pairs of 32-bit offsets from `base`, of the code's start and of its FDE."""

    start: u64
    end: u64
    base: u64
    pairs: u64
    count: u64


@struct
class CodeMap(Structure):
    """The regions, by ascending address."""

    count: u64
    regions: array[CodeRegion, 1]


code_map = global_var(u64, 0, name="unwind_code_map")
"""The address of the CodeMap (ftrace.core.unwind.code_map); 0: stacks have one entry."""

own_text = global_var(u64, 0, name="unwind_own_text")
own_text_end = global_var(u64, 0, name="unwind_own_text_end")
"""The code of hits and of the guard around calls from Python: nothing is a caller of that."""


@native
def region_of(address: u64) -> ptr[CodeRegion]:
    """The region that contains `address`; null if there is none."""
    known = cast(ptr[CodeMap], load(addressof(code_map), "acquire"))
    if known == null:
        return null
    regions = cast(ptr[CodeRegion], addressof(known.regions[0]))
    low: u64 = 0
    high = known.count
    while low < high:
        middle = (low + high) >> 1
        if regions[middle].end <= address:
            low = middle + 1
        else:
            high = middle
    if low < known.count and regions[low].start <= address:
        return addressof(regions[low])
    return null


@native
def pair_at(region: ptr[CodeRegion], index: u64) -> u64:
    """A pair: the code's start in the lower half, its FDE in the upper; 0 if it cannot be read."""
    pair: u64 = 0
    if probe_read(addressof(pair), region.pairs + index * _WORD, _WORD) < 0:
        return 0
    return pair


@native(inline=True)
def placed(region: ptr[CodeRegion], offset: u64) -> u64:
    """The address for a 32-bit offset of a pair."""
    return region.base + cast(u64, cast(i64, cast(i32, offset & 0xFFFF_FFFF)))


@native
def described(region: ptr[CodeRegion], address: u64, reading: ptr[Reading]) -> bool_:
    """Find the rules for leaving the frame of the code at `address`."""
    low: u64 = 0
    high = region.count
    while low < high:
        middle = (low + high) >> 1
        if placed(region, pair_at(region, middle)) <= address:
            low = middle + 1
        else:
            high = middle
    if low == 0:
        return False
    pair = pair_at(region, low - 1)
    return find_rules(reading, placed(region, pair >> 32), placed(region, pair), address)


@native
def frame_end(point: ptr[StackPoint], reading: ptr[Reading]) -> u64:
    """The canonical frame address; 0 if it is not known."""
    base: u64 = 0
    if reading.rules.register == RSP:
        base = point.sp
    elif reading.rules.register == RBP:
        base = point.bp
    else:
        return 0
    end = base + cast(u64, reading.rules.offset)
    if reading.rules.dereferenced != 0 and probe_read(addressof(end), end, _WORD) < 0:
        return 0
    return end


@native
def leave(point: ptr[StackPoint], end: u64, bp_at: u64) -> bool_:
    """Move the point to the caller of a frame that ends at `end`. `bp_at`: where rbp is saved; 0: it is unchanged."""
    if end <= point.sp or end & 7 != 0:
        return False
    parent: u64 = 0
    bp = point.bp
    if probe_read(addressof(parent), end - _WORD, _WORD) < 0:
        return False
    if bp_at != 0 and probe_read(addressof(bp), bp_at, _WORD) < 0:
        return False
    if region_of(parent) == null:
        node = rethook_find_ret_addr(end - _WORD, 0)
        if node != 0:
            parent = cast(ptr[Node], node).parent
    point.ip = parent
    point.sp = end
    point.bp = bp
    return True


@native
def leave_signal_frame(point: ptr[StackPoint]) -> bool_:
    """Move the point to the code that a signal has interrupted."""
    frame = point.sp
    return (
        probe_read(addressof(point.ip), frame + _SIGNAL_IP, _WORD) > 0
        and probe_read(addressof(point.bp), frame + _SIGNAL_BP, _WORD) > 0
        and probe_read(addressof(point.sp), frame + _SIGNAL_SP, _WORD) > 0
    )


@native
def step(point: ptr[StackPoint], reading: ptr[Reading], is_exact: bool_) -> bool_:
    """Move the point to the caller. False if it is not known. `is_exact`: ip is the next instruction, not a return address."""
    looked_up = point.ip if is_exact else point.ip - 1
    region = region_of(looked_up)
    reading.is_signal_frame = 0
    if region == null:
        return False
    if not described(region, looked_up, reading):
        return point.bp >= point.sp and leave(point, point.bp + 2 * _WORD, point.bp)
    if reading.is_signal_frame != 0:
        return leave_signal_frame(point)
    if reading.rules.outermost != 0:
        return False
    end = frame_end(point, reading)
    bp_at: u64 = 0
    if reading.rules.bp == RSP:
        bp_at = end + cast(u64, reading.rules.bp_offset)
    elif reading.rules.bp == RBP:
        bp_at = point.bp + cast(u64, reading.rules.bp_offset)
    return leave(point, end, bp_at)


@native(inline=True)
def is_own(address: u64) -> bool_:
    return address - own_text < own_text_end - own_text


@native
def is_unknown(address: u64) -> bool_:
    """Whether `address` returns to code of somebody else that no table describes, as the last one of a walk shows."""
    return not is_own(address) and region_of(address - 1) == null and follows_call(address)


@native
def follows_call(address: u64) -> bool_:
    """Whether the bytes before `address` look like a call, so that it may be a return address."""
    code: u64 = 0
    if probe_read(addressof(code), address - _WORD, _WORD) < 0:
        return False
    found = code >> 24 & 255 == _CALL
    for length in range(2, 8):
        found = found or (length != 5 and code >> ((_WORD - cast(u64, length)) * 8) & 255 == _CALL_INDIRECT)
    return found


@native(noinline=True)
def cross(point: ptr[StackPoint]) -> bool_:
    """Move the point out of code that no table describes and that runs Python functions. False if it is something else.

    Perf's trampolines have called with two words on the stack, their own and the return address. The interpreter's JIT keeps
    frame pointers from Python 3.15 on; before, rbp is what the interpreter's own code has left there.
    """
    if is_own(point.ip):
        return False
    code: u64 = 0
    if probe_read(addressof(code), point.ip - _TO_RETURN, _WORD) > 0:
        if code == _LEAVES_SPACE:
            return leave(point, point.sp + 2 * _WORD, 0)
        if code == _SAVES_BP:
            return leave(point, point.sp + 2 * _WORD, point.sp)
    ahead: StackPoint = zeroed
    copy(addressof(ahead), point)
    if point.bp < point.sp or not leave(addressof(ahead), point.bp + 2 * _WORD, point.bp):
        return False
    if region_of(ahead.ip - 1) == null or not follows_call(ahead.ip):
        return False
    copy(point, addressof(ahead))
    return True


@native
def step_to_known(point: ptr[StackPoint], reading: ptr[Reading], is_exact: bool_) -> bool_:
    """`step`, and on to the first caller that a table describes. False: there is none; the point may have moved."""
    if not step(point, reading, is_exact):
        return False
    for _ in range(MAX_DEPTH):
        if region_of(point.ip - 1) != null:
            return True
        if not cross(point):
            return False
    return False


@native(noinline=True)
def walk_stack(point: ptr[StackPoint], entries: ptr[u64], depth: u64) -> u64:
    """Store at most `depth` addresses, innermost first. Returns their number. Moves the point."""
    reading: Reading = zeroed
    is_exact = True
    count: u64 = 0
    while count < depth:
        entries[count] = point.ip
        count += 1
        if not step_to_known(point, addressof(reading), is_exact):
            if count < depth and point.ip != entries[count - 1] and is_unknown(point.ip):
                entries[count] = point.ip
                count += 1
            return count
        is_exact = reading.is_signal_frame != 0
    return count


@native(name="ftrace_walk_stack")
def walk_from(point: ptr[StackPoint], entries: ptr[u64], depth: u64) -> u64:
    """`walk_stack`, for tests and for Python."""
    return walk_stack(point, entries, depth)


@native(name="ftrace_walk_hit")
def walk_hit(entries: ptr[u64], depth: u64) -> u64:
    """`walk_stack` from the innermost hit of this thread whose Python handler is running; 0: there is none."""
    task = current()
    if task == null or task.python <= LEFT:
        return 0
    point: StackPoint = zeroed
    copy(addressof(point), cast(ptr[StackPoint], task.python))
    return walk_stack(addressof(point), entries, depth)


FUNCTIONS = (walk_from, walk_hit)
__all__ = ["FUNCTIONS", "MAX_DEPTH", "CodeMap", "CodeRegion", "StackPoint", "void", "walk_stack"]
