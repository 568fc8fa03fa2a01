"""Call frame information, interpreted at a hit: where the caller's frame begins, and where rbp is saved. Native.

Only rip, rsp and rbp are followed, as in the kernel's ORC unwinder. Compilers express the frame by rsp or rbp, or, in a function
that realigns its stack, by a word that rbp points to; anything else ends a walk. Tables are read with guarded reads: a library
may be unloaded meanwhile.
"""

from __future__ import annotations

from sandbox.native import *

RBP, RSP, RIP = 6, 7, 16
"""DWARF's numbers of registers."""
_WINDOW = 256
_STATES = 8
_NO_REGISTER = 255
_SIGN = 1 << 63
# Instructions: the upper two bits, or all of them.
_ADVANCE, _OFFSET, _RESTORE = 1, 2, 3
_ADVANCE1, _ADVANCE4 = 2, 4
_OFFSET_EXTENDED, _RESTORE_EXTENDED, _UNDEFINED, _SAME_VALUE, _REGISTER = 5, 6, 7, 8, 9
_REMEMBER, _RESTORE_STATE = 10, 11
_DEF_CFA, _DEF_CFA_REGISTER, _DEF_CFA_OFFSET, _DEF_CFA_EXPRESSION, _EXPRESSION = 12, 13, 14, 15, 16
_OFFSET_EXTENDED_SF, _DEF_CFA_SF, _DEF_CFA_OFFSET_SF, _VAL_EXPRESSION = 17, 18, 19, 22
_GNU_ARGS_SIZE = 0x2E
# Operations of expressions.
_BREG6, _DEREF = 0x76, 0x06


@struct
class FrameRules(Structure):
    """How to leave a function: the canonical frame address (CFA), and rbp's place."""

    register: u64  # RSP or RBP, to which `offset` is added; _NO_REGISTER: unknown
    offset: i64
    dereferenced: u64  # not 0: the CFA is the word there
    bp: u64  # 0: rbp is as it is; RSP: saved at the CFA plus `bp_offset`; RBP: at rbp plus that
    bp_offset: i64
    outermost: u64  # not 0: it has no caller


@struct
class Reading(Structure):
    """An FDE that is being interpreted. Made once for a walk."""

    at: u64  # address of the next byte
    end: u64
    failed: u64
    start: u64  # of the code
    target: u64  # the address whose rules are wanted
    location: u64
    code_align: u64
    data_align: i64
    encoding: u64  # of addresses in the FDE
    has_sizes: u64  # whether augmentation data has its size in front
    is_signal_frame: u64
    rules: FrameRules
    initial: FrameRules
    depth: u64
    states: array[FrameRules, 8]
    window_start: u64
    window_size: u64
    window: array[u8, 256]


@native
def next_byte(reading: ptr[Reading]) -> u64:
    """0, and `failed`, after the end or where nothing can be read."""
    if reading.at >= reading.end or reading.failed != 0:
        reading.failed = 1
        return 0
    if reading.at - reading.window_start >= reading.window_size:
        size = min(reading.end - reading.at, _WINDOW)
        reading.window_start = reading.at
        reading.window_size = size
        if probe_read(addressof(reading.window[0]), reading.at, size) < 0:
            reading.failed = 1
            reading.window_size = 0
            return 0
    byte = cast(u64, reading.window[reading.at - reading.window_start])
    reading.at += 1
    return byte


@native
def begin(reading: ptr[Reading], at: u64, end: u64) -> void:
    reading.at = at
    reading.end = end
    reading.window_size = 0
    reading.failed = 0


@native
def fixed(reading: ptr[Reading], size: u64) -> u64:
    """A number of `size` bytes."""
    value: u64 = 0
    for index in range(size):
        value |= next_byte(reading) << (index * 8)
    return value


@native(inline=True)
def leb(reading: ptr[Reading], signed: bool_) -> u64:
    """A LEB128 number."""
    value: u64 = 0
    shift: u64 = 0
    byte: u64 = 128
    while byte >= 128 and reading.failed == 0:
        byte = next_byte(reading)
        value |= (byte & 127) << shift
        shift += 7
    if signed and byte & 64 != 0 and shift < 64:
        value |= ~cast(u64, 0) << shift
    return value


@native
def uleb(reading: ptr[Reading]) -> u64:
    return leb(reading, False)


@native
def sleb(reading: ptr[Reading]) -> i64:
    return cast(i64, leb(reading, True))


@native
def skip_block(reading: ptr[Reading]) -> void:
    """An expression that is of no interest."""
    size = uleb(reading)
    if size > reading.end - reading.at:
        reading.failed = 1
    else:
        reading.at += size


# -- heads ------------------------------------------------------------------------------------------------------------


@native
def width_of(encoding: u64) -> u64:
    """Bytes of an encoded address, whatever it is relative to; 0 for a LEB128 number, which no compiler uses here."""
    form = encoding & 7
    if form == 0 or form == 4:
        return 8
    if form == 3:
        return 4
    return 2 if form == 2 else 0


@native
def read_head(reading: ptr[Reading], at: u64) -> bool_:
    """Begin with the length of a CIE or FDE; False for what no compiler of programs for memory writes."""
    head: u64 = 0
    if probe_read(addressof(head), at, 8) < 0:
        return False
    length = head & 0xFFFF_FFFF
    begin(reading, at + 8, at + 4 + length)
    return length > 4 and length < 1 << 24


@native
def read_augmentation(reading: ptr[Reading], letters: u64) -> void:
    """The rules of a CIE for its FDEs. `letters`: up to eight, the first in the low byte."""
    reading.encoding = 0
    reading.has_sizes = 0
    reading.is_signal_frame = 0
    if letters & 255 != 122:  # z
        return
    reading.has_sizes = 1
    size = uleb(reading)
    end = reading.at + size
    for index in range(1, 8):
        letter = letters >> (cast(u64, index) * 8) & 255
        if letter == 82:  # R
            reading.encoding = next_byte(reading)
        elif letter == 76:  # L
            next_byte(reading)
        elif letter == 80:  # P
            reading.at += width_of(next_byte(reading))
        elif letter == 83:  # S
            reading.is_signal_frame = 1
    reading.at = end


@native
def read_cie(reading: ptr[Reading], at: u64) -> bool_:
    """Read a CIE up to its instructions."""
    if not read_head(reading, at):
        return False
    version = next_byte(reading)
    letters: u64 = 0
    count: u64 = 0
    letter = next_byte(reading)
    while letter != 0:
        letters |= letter << (count * 8)
        count += 1
        letter = next_byte(reading)
    reading.code_align = uleb(reading)
    reading.data_align = sleb(reading)
    if version == 1:
        next_byte(reading)
    else:
        uleb(reading)
    read_augmentation(reading, letters)
    return reading.failed == 0 and count <= 8


# -- instructions -----------------------------------------------------------------------------------------------------


@native
def save_register(reading: ptr[Reading], register: u64, offset: i64) -> void:
    """Note that `register` is saved at the CFA plus `offset`."""
    if register == RBP:
        reading.rules.bp = RSP
        reading.rules.bp_offset = offset


@native
def restore_register(reading: ptr[Reading], register: u64) -> void:
    if register == RBP:
        reading.rules.bp = reading.initial.bp
        reading.rules.bp_offset = reading.initial.bp_offset


@native
def define_cfa(reading: ptr[Reading], register: u64, offset: i64) -> void:
    reading.rules.register = register
    reading.rules.offset = offset
    reading.rules.dereferenced = 0


@native
def define_cfa_by_expression(reading: ptr[Reading]) -> void:
    """`*(rbp + N)` is what a function has that realigns its stack."""
    size = uleb(reading)
    end = reading.at + size
    define_cfa(reading, _NO_REGISTER, 0)
    if next_byte(reading) == _BREG6:
        offset = sleb(reading)
        if next_byte(reading) == _DEREF and reading.at == end:
            define_cfa(reading, RBP, offset)
            reading.rules.dereferenced = 1
    reading.at = end


@native
def save_by_expression(reading: ptr[Reading]) -> void:
    """rbp is saved at `rbp + N`; of other registers it does not matter."""
    register = uleb(reading)
    size = uleb(reading)
    end = reading.at + size
    if register == RBP and next_byte(reading) == _BREG6:
        reading.rules.bp = RBP
        reading.rules.bp_offset = sleb(reading)
    reading.at = end


@native
def keep_state(reading: ptr[Reading]) -> void:
    if reading.depth >= _STATES:
        reading.failed = 1
        return
    copy(addressof(reading.states[reading.depth]), addressof(reading.rules))
    reading.depth += 1


@native
def take_state(reading: ptr[Reading]) -> void:
    if reading.depth == 0:
        reading.failed = 1
        return
    reading.depth -= 1
    copy(addressof(reading.rules), addressof(reading.states[reading.depth]))


@native
def define_frame(reading: ptr[Reading], code: u64) -> bool_:
    """An instruction about the CFA; False: it is none."""
    if code == _DEF_CFA:
        register = uleb(reading)
        define_cfa(reading, register, cast(i64, uleb(reading)))
    elif code == _DEF_CFA_REGISTER:
        reading.rules.register = uleb(reading)
    elif code == _DEF_CFA_OFFSET:
        reading.rules.offset = cast(i64, uleb(reading))
    elif code == _DEF_CFA_EXPRESSION:
        define_cfa_by_expression(reading)
    elif code == _DEF_CFA_SF:
        register = uleb(reading)
        define_cfa(reading, register, sleb(reading) * reading.data_align)
    elif code == _DEF_CFA_OFFSET_SF:
        reading.rules.offset = sleb(reading) * reading.data_align
    else:
        return False
    return True


@native
def define_register(reading: ptr[Reading], code: u64) -> bool_:
    """An instruction about a register; False: it is none."""
    if code == _OFFSET_EXTENDED:
        register = uleb(reading)
        save_register(reading, register, cast(i64, uleb(reading)) * reading.data_align)
    elif code == _OFFSET_EXTENDED_SF:
        register = uleb(reading)
        save_register(reading, register, sleb(reading) * reading.data_align)
    elif code == _RESTORE_EXTENDED:
        restore_register(reading, uleb(reading))
    elif code == _UNDEFINED:
        if uleb(reading) == RIP:
            reading.rules.outermost = 1
    elif code == _SAME_VALUE:
        if uleb(reading) == RBP:
            reading.rules.bp = 0
    elif code == _EXPRESSION:
        save_by_expression(reading)
    elif code == _REGISTER:
        uleb(reading)
        uleb(reading)
    elif code == _VAL_EXPRESSION:
        uleb(reading)
        skip_block(reading)
    else:
        return False
    return True


@native
def execute_extended(reading: ptr[Reading], code: u64) -> void:
    """An instruction whose upper two bits are 0."""
    if code == 0 or define_frame(reading, code) or define_register(reading, code):
        return
    if code >= _ADVANCE1 and code <= _ADVANCE4:
        reading.location += fixed(reading, cast(u64, 1) << (code - _ADVANCE1)) * reading.code_align
    elif code == _REMEMBER:
        keep_state(reading)
    elif code == _RESTORE_STATE:
        take_state(reading)
    elif code == _GNU_ARGS_SIZE:
        uleb(reading)
    else:
        reading.failed = 1


@native
def execute(reading: ptr[Reading]) -> void:
    """Carry out instructions up to those for code after the target."""
    while reading.at < reading.end and reading.failed == 0:
        kept = reading.location
        code = next_byte(reading)
        low = code & 63
        if code >> 6 == _ADVANCE:
            reading.location += low * reading.code_align
        elif code >> 6 == _OFFSET:
            save_register(reading, low, cast(i64, uleb(reading)) * reading.data_align)
        elif code >> 6 == _RESTORE:
            restore_register(reading, low)
        else:
            execute_extended(reading, low)
        if reading.location != kept and reading.location > reading.target:
            return


@native
def find_rules(reading: ptr[Reading], fde: u64, start: u64, target: u64) -> bool_:
    """`rules` for the code at `target`, in what begins at `start` and is described by the FDE at `fde`; False: there are none."""
    head: u64 = 0
    if probe_read(addressof(head), fde, 8) < 0:
        return False
    if not read_cie(reading, fde + 4 - (head >> 32)):
        return False
    reading.start = start
    reading.target = target
    reading.location = start
    reading.depth = 0
    reading.rules.bp = 0
    reading.rules.outermost = 0
    define_cfa(reading, _NO_REGISTER, 0)
    execute(reading)
    copy(addressof(reading.initial), addressof(reading.rules))
    if reading.failed != 0:
        return False
    begin(reading, fde + 8, fde + 4 + (head & 0xFFFF_FFFF))
    width = width_of(reading.encoding)
    reading.at += width
    if target - start >= fixed(reading, width):
        return False
    if reading.has_sizes != 0:
        skip_block(reading)
    execute(reading)
    return reading.failed == 0


__all__ = ["RBP", "RSP", "FrameRules", "Reading", "cast", "find_rules", "u32"]
