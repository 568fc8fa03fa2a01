"""Return probes at the cost of an fprobe: a jump-optimised entry that leads into a stub like ftrace's.

This serves a single kretprobe with native handlers at the entry of a module's function. The first instruction of the detour
becomes a jump into the stub. The stub's list holds one probe, whose handlers (a few instructions of assembly:
kprobes.x86_64.single_handlers) call the kretprobe's. The call's node is the kretprobe instance. The probe's pool counts all
instances in use, including those of calls that were hooked differently. The stub overwrites r10 and r11, so it is not used
where they may hold a value.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from ftrace.runtime import runtime
from ftrace.tracer import tracer
from ftrace.x86_64.stubs import ENTRY_POINT, SLOT
from kprobes.breakpoint import patching
from kprobes.fast.return_stubs import take_stub
from kprobes.fast.single import FastReturn
from kprobes.x86_64.return_stub import return_stub
from sandbox.x86_64.encoding import jump

if TYPE_CHECKING:
    from collections.abc import Collection

    from ftrace.sites.lists import ListRecord
    from kprobes.jump.detours import Detour
    from kprobes.place.aggregate import Aggregate

_LIST = SLOT + 8
"""Offset in a stub of the word that holds its list's address."""


class Stub:
    """The stub of one detour."""

    def __init__(self, place: Aggregate, detour: Detour) -> None:
        self.detour = detour
        self.head = ctypes.string_at(detour.entry, len(jump(0, 0)))
        self.page, self.where, pointers = take_stub(place.text)
        code = return_stub(
            runtime().template, self.where, place.address, pointers, detour.copies[0], self.where + _LIST
        )
        patching.write(self.page, self.where, code)
        self.on = False
        self._set_list(tracer().table.lists.get(()))

    def lead(self, record: ListRecord) -> None:
        """Lead the detour into the stub, with this list."""
        self._set_list(record)
        if not self.on:
            self.on = True
            patching.sync()
            self.detour.write_head(jump(self.detour.entry, self.where + ENTRY_POINT))

    def lead_back(self, valid: Collection[ListRecord]) -> None:
        """Lead the detour past the stub again.

        Calls that are in the stub at that moment keep its list if it is `valid`: probes that have joined the place since are
        not called for them, which does not count as a miss.
        """
        if self.on:
            self.on = False
            self.detour.write_head(self.head)
            patching.sync()
        if self._list not in valid:
            self._set_list(tracer().table.lists.get(()))

    def _set_list(self, record: ListRecord) -> None:
        self._list = record
        patching.write(self.page, self.where + _LIST, record.address.to_bytes(8, "little"))


_stubs: dict[int, Stub] = {}
"""By the address of the detour."""


def update(place: Aggregate) -> None:
    """Lead the detours of a place into a stub if its present children allow that, else past it. Within `patching()`."""
    if place.jump is None:
        return
    fast = _fast_of(place)
    if fast is None and not _stubs:
        return
    enabled = [child.fast.list for child in place.children if not child.is_off and isinstance(child.fast, FastReturn)]
    for detour in place.jump.detours:
        stub = _stubs.get(detour.address)
        if stub is None and fast is not None:
            stub = _stubs[detour.address] = Stub(place, detour)
        if fast is not None and stub is not None:
            stub.lead(fast.list)
        elif stub is not None:
            stub.lead_back(enabled)


def _fast_of(place: Aggregate) -> FastReturn | None:
    if len(place.children) != 1 or place.children[0].is_off or not place.scratch_is_free:
        return None
    fast = place.children[0].fast
    return fast if isinstance(fast, FastReturn) else None


def forget(place: Aggregate) -> None:
    """The code is about to be freed."""
    for detour in place.jump.detours if place.jump is not None else ():
        _stubs.pop(detour.address, None)
