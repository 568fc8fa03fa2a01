"""Keeps SIGTRAP out of signal masks while there are breakpoints: one that a thread hits with SIGTRAP blocked ends the process.

The C library's system calls that block signals lead to routines that leave SIGTRAP out, and report what the program has asked
for (ftrace.hit.x86_64.signal_masks). With them, the children of posix_spawn() and system(), which run in this process's memory
until they execute, may hit breakpoints too. Code that makes these system calls itself is not changed.
"""

from __future__ import annotations

import ctypes
import logging
from typing import NamedTuple

from ftrace.core.runtime import runtime
from ftrace.core.unwind.unwinding import FrameDescription
from ftrace.hit import signal_masks as native
from ftrace.hit.x86_64 import signal_masks as code
from sandbox.images.process_text import library_called, text_at
from sandbox.memory import mappings
from sandbox.memory.pages import is_denied
from sandbox.process import fork, hooks
from sandbox.process.once import once
from sandbox.threads.signals import EPOCH
from sandbox.x86_64.encoding import jump

log = logging.getLogger("ftrace")

_LIBRARIES = ("libc", "libpthread", "ld-musl-x86_64")
"""Libraries that set masks. In glibc before 2.34, pthread_sigmask() is in libpthread."""


class _Text(NamedTuple):
    """The system calls in one mapping of text: addresses, the instructions there, and the jumps in their place.

    `entries`, `copies`: where these lead to, and copies of the instructions.
    """

    addresses: list[int]
    originals: list[bytes]
    jumps: list[bytes]
    entries: list[int]
    copies: list[int]


@once
def _offset() -> int:
    """Where each thread has its word. Raises OSError if there is no pthread key."""
    image, offset = runtime().image, runtime().key.another()
    image.call("begin_masks", offset)
    fork.at_fork(0, 0, image.address("note_process"))
    return offset


@once
def _texts() -> list[_Text]:
    """Those of the C library. Raises OSError if there is no memory near it, or no pthread key."""
    spans = {span for name in _LIBRARIES if (library := library_called(name)) is not None for span in library.text}
    found = []
    for start, end in sorted(spans):
        calls = list(code.calls_in(ctypes.string_at(start, end - start), start))
        if calls:
            found.append(_with_islands(calls, (start, end)))
    return found


def _with_islands(calls: list[code.Call], near: tuple[int, int]) -> _Text:
    page = mappings.allocate_text(near, len(calls) * code.ISLAND, "fprobe-masks")
    text = _Text([], [], [], [], [])
    for index, call in enumerate(calls):
        where = page.base + index * code.ISLAND
        page.write(
            where, code.island(call, where, runtime().image.address(code.routine(call.number, bool(call.target))))
        )
        text.addresses.append(call.address)
        text.originals.append(ctypes.string_at(call.address, native.SIZE))
        text.entries.append(code.entry_of(call, where))
        text.jumps.append(jump(call.address, text.entries[-1]))
        text.copies.append(where + code.ORIGINAL)
    _frames.append(FrameDescription("fprobe-masks", page.base, page.size, code.section(page.base, page.size)))
    hooks.own_code.add(page.__contains__)
    return text


_frames: list[FrameDescription] = []
_is_on = [False]


def keep_traps_unblocked() -> bool:
    """From now on, masks have no SIGTRAP. Called before there are breakpoints; returns whether that is so.

    Threads that block SIGTRAP already do so until they set their mask again (ftrace.core.sites.trapping).
    """
    with mappings.text_mutex:
        if not _is_on[0]:
            if is_denied("masks"):
                return False
            try:
                texts, offset = _texts(), _offset()
            except OSError as error:
                log.info("signal masks keep SIGTRAP: %s", error)
                return False
            for text in texts:
                _write(text, text.originals, text.jumps, text.entries)
            runtime().image.call("take_traps")
            runtime().image.variable("trap_blocked_offset").value = offset
            _is_on[0] = bool(texts)
        return _is_on[0]


def restore_masks() -> None:
    """Give the system calls back: there are no breakpoints any more. SIGTRAP stays unblocked until a thread blocks it again."""
    with mappings.text_mutex:
        if _is_on[0]:
            runtime().image.variable("trap_blocked_offset").value = 0
            for text in _texts():
                _write(text, text.jumps, text.originals, text.copies)
            runtime().image.call("give_traps")
            runtime().image.variable(
                "trap_blocked_epoch"
            ).value += EPOCH  # threads' words do not change any more: they are old
            _is_on[0] = False


def _write(text: _Text, before: list[bytes], after: list[bytes], leads: list[int]) -> None:
    """Change the sites that hold `before`: others may be another tool's. Threads at a breakpoint there continue at `leads`."""
    size = native.SIZE
    chosen = [n for n, at in enumerate(text.addresses) if ctypes.string_at(at, size) == before[n]]
    sites = (native.Site.ctypes * (len(chosen) + 1))()
    for site, index in zip(sites, chosen, strict=False):
        site.address, site.word = text.addresses[index], int.from_bytes(after[index], "little")
    detours = runtime().detours
    stopping = [n for n in chosen if text.addresses[n] & 7 == 7]
    for index in stopping:
        detours.set(text.addresses[index], leads[index])
    library_text = text_at(text.addresses[0])
    library_text.prepare(text.addresses)
    with library_text.writable() as delta:
        runtime().image.call("write_mask_sites", ctypes.addressof(sites), len(chosen), delta)
    for index in stopping:
        detours.set(text.addresses[index], 0)
