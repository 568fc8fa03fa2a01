"""Attribution of a fault to a handler: in the exception of a guarded call, or on standard error before the process ends.

The report is composed of texts made in advance: symbols cannot be resolved during a crash.
"""

from __future__ import annotations

import ctypes
import signal

from ftrace.hit.records import SHARED_BUSY
from kprobes.hit.control import NO_PREEMPTION, get_kprobe_ctlblk
from kprobes.hit.records import FAULTING, HIT_SSDONE, RETURN, Child, Kretprobe, PlaceRecord, find_record
from sandbox.native import *
from sandbox.native.native_image import NativeImage, c_string
from sandbox.threads.signals import SIGBUS, SIGFPE, SIGILL, SIGSEGV, ucontext
from sandbox.threads.tasks import TEXT, Task, Text, current
from sandbox.x86_64.syscalls import SYS_WRITE

WORDS = 40
_STANDARD_ERROR = 2
_SI_ADDR = 16
_PAGE_FAULT = 14

OPENING, OF_KPROBE, OF_KRETPROBE, OFFSET, ACCESSED, END, IN = range(32, 39)
report_words = global_var(array[u64, 40], name="kprobe_report_words")
"""Addresses of texts: the names of signals by number, then the texts listed above."""


# -- composing the report -----------------------------------------------------------------------------------------


@native
def append(line: ptr[Text], text: u64) -> void:
    """Append a C string; null appends nothing. Text that does not fit is cut off."""
    letters = cast(ptr[u8], text)
    if text == 0:
        return
    for index in range(TEXT):
        letter = letters[index]
        if letter == 0 or line.length + 1 >= TEXT:
            return
        line.letters[line.length] = letter
        line.length += 1


@native
def append_hex(line: ptr[Text], value: u64) -> void:
    digits: array[u8, 24] = zeroed
    left = value
    at: u64 = 22
    for _ in range(16):
        digit = cast(u8, left & 15)
        digits[at] = digit + (48 if digit < 10 else 87)
        left >>= 4
        if left == 0:
            append(line, cast(u64, addressof(digits[at])))
            return
        at -= 1


@native
def running_child(task: ptr[Task]) -> ptr[Child]:
    """The child whose handler is running. A hit that does not record it has only one child."""
    kcb = get_kprobe_ctlblk(task)
    child = cast(ptr[Child], kcb.child)
    if child != null:
        return child
    record = cast(ptr[PlaceRecord], task.kprobe)
    if find_record(record.address) != record:
        return cast(ptr[Child], task.kprobe)
    if record.children.count != 1:
        return null
    return record.children.children[0]


@native
def running_handler(task: ptr[Task], child: ptr[Child]) -> u64:
    """The text that names the running handler."""
    kcb = get_kprobe_ctlblk(task)
    if kcb.status == FAULTING:
        return child.fault_text
    if child.kind & RETURN == 0:
        return child.post_text if kcb.status == HIT_SSDONE else child.pre_text
    rp = cast(ptr[Kretprobe], child.rp)
    return rp.handler_text if kcb.frame & NO_PREEMPTION != 0 else rp.entry_text


@native
def note_handler(task: ptr[Task]) -> void:
    """Write the running handler into Task.fault: "pre_handler count of the kprobe at vfs_read+0x5 [demo]"."""
    line = addressof(task.fault.handler)
    line.length = 0
    if task.kprobe == 0 or task.kprobe == SHARED_BUSY:
        return
    child = running_child(task)
    if child == null:
        return
    append(line, running_handler(task, child))
    append(line, report_words[OF_KRETPROBE] if child.kind & RETURN != 0 else report_words[OF_KPROBE])
    append(line, child.symbol)
    append(line, report_words[OFFSET])
    append_hex(line, child.address - child.start)
    append(line, child.owner)
    line.letters[line.length] = 0


@native
def kprobe_crash(signal: u32, info: u64, context: ptr[ucontext]) -> bool_:
    """The last consumer of fault signals: reports an unhandled fault in a handler. A previous handler may still handle it."""
    task = current()
    if task == null or task.fault.handler.length == 0:
        return False
    line: Text = zeroed
    append(addressof(line), report_words[OPENING])
    append(addressof(line), report_words[cast(u64, signal) & 31])
    append(addressof(line), report_words[IN])
    append(addressof(line), cast(u64, addressof(task.fault.handler.letters[0])))
    if context.trap_number == _PAGE_FAULT:
        append(addressof(line), report_words[ACCESSED])
        append_hex(addressof(line), cast(ptr[u64], info + _SI_ADDR)[0])
    append(addressof(line), report_words[END])
    syscall(SYS_WRITE, _STANDARD_ERROR, cast(i64, addressof(line.letters[0])), cast(i64, line.length), 0, 0, 0)
    return False


_REPORT_TEXTS = {
    OPENING: "kprobes: ", IN: " in the ", OF_KPROBE: " of the kprobe at ", OF_KRETPROBE: " of the kretprobe at ",
    OFFSET: "+0x", ACCESSED: ", accessing 0x", END: "\n",
}  # fmt: skip


def write_report_texts(image: NativeImage) -> None:
    """Fill in the runtime's table of texts."""
    words = (ctypes.c_uint64 * WORDS).from_address(image.address("kprobe_report_words"))
    for number in (SIGSEGV, SIGBUS, SIGFPE, SIGILL):
        words[number] = c_string(signal.Signals(number).name)
    for place, text in _REPORT_TEXTS.items():
        words[place] = c_string(text)
