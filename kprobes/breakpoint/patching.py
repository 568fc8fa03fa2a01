"""Writing probed text, in batches: one opening of the alias and one synchronisation of the cores for many changes."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ftrace.core.sites.trapping import refuse_blocked_traps
from ftrace.core.tracer import tracer
from ftrace.hit.poke import BREAKPOINTS, TAILS, Poke
from sandbox.images import jit_image
from sandbox.memory import mappings as memory
from sandbox.memory import pages
from sandbox.process import fork, hooks
from sandbox.x86_64 import encoding

if TYPE_CHECKING:
    from sandbox.memory.mappings import TextMapping
    from sandbox.memory.scattered import ScatteredText

INT3 = bytes([encoding.INT3])

kprobe_mutex = threading.RLock()
"""Protects all changes of probes, as the kernel's kprobe_mutex does. Taken before any lock of ftrace."""
fork.hold(kprobe_mutex, level=0)


class _Batch:
    """The present batch: which mappings are open for writing."""

    def __init__(self) -> None:
        self.depth = 0
        self.stack = contextlib.ExitStack()
        self.deltas: dict[TextMapping, int] = {}
        self.opened: set[ScatteredText] = set()
        self.dirty = False
        self.checked = False
        self.collecting = False
        """Whether the garbage collector was on. It is off in a batch: the many new objects stay, so scanning them is wasted."""


_batch = _Batch()


@contextlib.contextmanager
def patching() -> Iterator[None]:
    """A batch: hold `kprobe_mutex` and ftrace's lock; when the outermost one ends, every core executes the new text.

    ftrace's lock is taken because kprobes on ftrace locations go through ftrace, and its lock precedes that of the text. Do
    not wait for other threads within a batch: a handler may need these locks.
    """
    tracing = tracer()
    with tracing.reclaimer.deferred(), kprobe_mutex, tracing.table.lock:
        _batch.depth += 1
        if _batch.depth == 1:
            _batch.collecting = gc.isenabled()
            gc.disable()
        try:
            if _batch.depth == 1 and jit_image.patched:
                hooks.before_batch()  # text that has been unmapped without notice is neither read nor written
            yield
        finally:
            _batch.depth -= 1
            if not _batch.depth:
                _close()


def _close() -> None:
    if _batch.collecting:
        gc.enable()
    stack, _batch.stack = _batch.stack, contextlib.ExitStack()
    _batch.checked = False
    _batch.deltas.clear()
    _batch.opened.clear()
    stack.close()
    sync()


def check_traps() -> None:
    """Before the first breakpoint of a batch: raise OSError(EBUSY) if a thread that could hit it blocks SIGTRAP."""
    if not _batch.checked:
        native = tracer().runtime
        refuse_blocked_traps(native)
        native.signals.check()
        _batch.checked = True


def sync() -> None:
    """Return once every core executes what has been written so far."""
    if _batch.dirty:
        _batch.dirty = False
        pages.sync_cores()


def keep_open(text: ScatteredText) -> None:
    """Open the pages of `text` for writing until the batch ends. Within `patching()`."""
    if text not in _batch.opened:
        _batch.opened.add(text)
        _batch.stack.enter_context(text.writable())
    _batch.dirty = True


def _delta(text: TextMapping) -> int:
    """The distance from the executable view of `text` to its writable alias; valid until the batch ends."""
    delta = _batch.deltas.get(text)
    if delta is None:
        delta = _batch.deltas[text] = _batch.stack.enter_context(text.writable())
    return delta


def _store(address: int, data: bytes) -> None:
    """Store `data`. If it lies in one aligned word, one 8-byte store makes it visible as a whole."""
    size, offset = len(data), address & 7
    if size == 1 or size > 8 - offset:
        ctypes.memmove(address, data, size)
        return
    word = ctypes.c_uint64.from_address(address - offset)
    low, bits = 8 * offset, (1 << 8 * size) - 1
    word.value = word.value & ~(bits << low) | int.from_bytes(data, "little") << low


def write(text: TextMapping, address: int, data: bytes) -> None:
    """Store `data` at `address`, within `patching()`. In code that may be running, only a single byte may be changed so.

    Raises OSError(EINVAL) if the text cannot be written.
    """
    _store(address + _delta(text), data)
    _batch.dirty = True
    if ctypes.string_at(address, len(data)) != data:
        memory.write_through_kernel(address, data)
        if ctypes.string_at(address, len(data)) != data:
            raise OSError(errno.EINVAL, f"the text at {address:#x} could not be written")


class Pokes:
    """Changes of several bytes of running code: (text mapping, address, new bytes, offsets of heads); see ftrace.hit.poke."""

    def __init__(self, changes: Iterable[tuple[TextMapping, int, bytes, Sequence[int]]]) -> None:
        pokes = [
            (at, at + _delta(text), int.from_bytes(data, "little"), len(data), sum(1 << offset for offset in heads))
            for text, at, data, heads in changes
        ]
        self._pokes = (Poke.ctypes * len(pokes))(*pokes)

    def run(self, stage: int, first: int, end: int) -> None:
        """Run a stage of the changes [first, end), within `patching()`. Raises OSError(EINVAL) if text cannot be written."""
        _batch.dirty = True
        missed = self._stage(stage, first, end)
        if missed < 0:
            return
        for poke in self._pokes[missed:end]:
            for offset, byte in _due(poke, stage):
                memory.write_through_kernel(poke.address + offset, bytes([byte]))
        missed = self._stage(stage, first, end)
        if missed >= 0:
            raise OSError(errno.EINVAL, f"the text at {self._pokes[missed].address:#x} could not be written")

    def _stage(self, stage: int, first: int, end: int) -> int:
        return tracer().runtime.image.call("poke_stage", ctypes.addressof(self._pokes), first, end, stage)


def _due(poke: Any, stage: int) -> Iterator[tuple[int, int]]:
    """The bytes that a poke changes in a stage: (offset, byte)."""
    for offset, byte in enumerate(poke.text.to_bytes(8, "little")[: poke.length]):
        if bool(poke.heads >> offset & 1) != (stage == TAILS):
            yield offset, INT3[0] if stage == BREAKPOINTS else byte
