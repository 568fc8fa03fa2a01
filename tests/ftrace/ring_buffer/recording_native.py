"""A native handler that records two integers, and a program to probe with it."""

# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import threading
from typing import Any

from ftrace.hit.records import Probe
from ftrace.hit.ring_buffer.records import Mark, Reservation, RingBuffer
from ftrace.hit.ring_buffer.writer import commit, reserve, shorten
from ftrace.hit.x86_64.pt_regs import pt_regs
from sandbox.native import Structure, addressof, cast, i32, native, ptr, struct, u64, zeroed

TYPE = 1315
IR = "define i64 @work(i64 %x, i64 %y) noinline { %r = add i64 %x, %y  ret i64 %r }"


@struct
class Pair(Structure):
    """An event: where it was, and two arguments."""

    common: u64
    ip: u64
    first: u64
    second: u64


@native(cc="preserve_most")
def record_pair(fp: ptr[Probe], ip: u64, ret_ip: u64, regs: ptr[pt_regs], data: ptr[u64]) -> i32:
    mark: Mark = zeroed
    place: Reservation = zeroed
    if reserve(cast(ptr[RingBuffer], fp.action), addressof(mark), addressof(place), TYPE, 32):
        pair = cast(ptr[Pair], place.event)
        pair.ip = ip
        pair.first = regs.di
        pair.second = regs.si
        commit(addressof(mark), addressof(place))
    return 0


@native(cc="preserve_most")
def record_shortened(fp: ptr[Probe], ip: u64, ret_ip: u64, regs: ptr[pt_regs], data: ptr[u64]) -> i32:
    """Reserve 400 bytes, and keep as many as the first argument says."""
    mark: Mark = zeroed
    place: Reservation = zeroed
    if reserve(cast(ptr[RingBuffer], fp.action), addressof(mark), addressof(place), TYPE, 400):
        pair = cast(ptr[Pair], place.event)
        pair.ip = ip
        pair.first = regs.di
        pair.second = regs.si
        shorten(addressof(place), 400, regs.di)
        commit(addressof(mark), addressof(place))
    return 0


def recorded(buffer: Any, function: str = "work", handler: Any = record_pair) -> Any:
    """An attachment, not attached yet, that records the calls of `function` into `buffer`."""
    import fprobe

    attachment = fprobe.attach(function, entry=handler)
    attachment.fp.action = buffer.address
    return attachment


def program() -> Any:
    """work(x, y), loaded."""
    import sandbox

    return sandbox.load(IR, name="recorded")


def in_thread(call: Any) -> None:
    """Run `call` in a thread that has ended when this returns."""
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
