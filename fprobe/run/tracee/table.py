"""This process's table of calls, in the launcher's file of counts; the action that fills it."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

from fprobe.actions import Action
from fprobe.run import session
from fprobe.run.session import Settings
from ftrace.core.handlers.kinds import BoundHandler
from ftrace.core.maps.areas import memory
from ftrace.core.runtime import runtime
from ftrace.hit.account import TIMED_CELL, Account
from ftrace.hit.call_table import CALL_SIZES, HANDLERS, UNCLAIMED, CallTable
from ftrace.hit.ring_buffer.layout import Geometry, subbufs
from ftrace.ring_buffer import clock
from ftrace.ring_buffer.arena import native_ring
from sandbox.memory import mappings
from sandbox.memory.mappings import PAGE
from sandbox.native.handler import Fields
from sandbox.process import fork
from sandbox.process.once import once


@once
def _count_in_children() -> None:
    fork.at_fork(0, 0, runtime().image.address("table_in_child"))


class Table:
    """The file of counts, mapped, and this process's part of it. Raises OSError(ENOMEM) if address space is limited."""

    def __init__(self, counts: int, settings: Settings) -> None:
        image = runtime().image
        size = session.HEADER + session.PARTS * session.PART
        start = mappings.map_shared(counts, 0, size)
        self.native: Any = CallTable.ctypes(
            account=Account.ctypes(
                stride=session.STRIDE,
                shift=65 - (session.STRIDE // TIMED_CELL).bit_length(),
                by=settings.by,
                measures=settings.measures,
            ),
            maps_at=session.MAPS_AT,
            parts=start + session.HEADER,
            length=session.PART,
            count=session.PARTS,
            rows_at=session.ROWS_AT,
            next=start + session.NEXT_AT,
            forked=start + session.FORKED_AT,
            in_children=UNCLAIMED if settings.children else 0,
        )
        self._mapped = start, size
        if settings.with_events:
            self._record_calls()
        image.call("table_take", self.address, 0)
        image.variable("call_table").value = self.address
        _count_in_children()

    def _record_calls(self) -> None:
        """Have a ring buffer for records of calls in each part that is taken."""
        geometry, self._clock = Geometry(session.CALL_PAGES), clock.start(clock.find("local"))
        most = subbufs(session.CALLS_KB, session.CALLS_ORDER)
        self.native.ring = native_ring(geometry, 0, 0, session.CALLS_ORDER, self._clock, most, overwrite=True)
        self.native.ring_at, self.native.ring_pages = session.CALLS_AT, geometry.pages

    def end(self) -> None:
        """Unmap the file. No probe may use the table any more."""
        runtime().image.variable("call_table").value = 0
        runtime().quiesce()
        mappings.release(*self._mapped)

    @property
    def address(self) -> int:
        """The address of the native table."""
        return ctypes.addressof(self.native)

    def use_for_maps(self) -> int:
        """Reserve the memory for maps and return its address. After a fork, the child's own part is at the same address."""
        self.native.maps = self.native.parts + self.part * session.PART + session.MAPS_AT
        self.native.maps_size = session.MAPS
        return int(self.native.maps)

    @property
    def part(self) -> int:
        """The number of this process's part."""
        return int(self.native.part)


class MapSpace:
    """Memory in the launcher's file for maps of this process, or of a child of a fork: taken from its beginning on."""

    def __init__(self, table: Table) -> None:
        self._start = table.use_for_maps()
        self.sizes: dict[int, int] = {}
        """By address, what was taken."""

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """New maps are made here inside the block."""
        before, memory.lender = memory.lender, self.take
        try:
            yield
        finally:
            memory.lender = before

    def where(self, address: int) -> tuple[int, int]:
        """Offset and size of what was taken."""
        return address - self._start, self.sizes[address]

    def take(self, size: int) -> int:
        """The address of zeroed memory. Raises MemoryError."""
        address = self._start + sum(-(-taken // PAGE) * PAGE for taken in self.sizes.values())
        if address + size > self._start + session.MAPS:
            raise MemoryError(f"the maps and histograms exceed {session.MAPS >> 30} GiB; make them smaller, or fewer")
        self.sizes[address] = size
        return address


class Calls(Action):
    """Counts and times calls in a table."""

    fields: tuple[Fields, ...] = (Fields(), Fields())

    def __init__(self, table: Table, settings: Settings) -> None:
        super().__init__()
        self._table = table
        self.entry_data_size = CALL_SIZES[settings.measures]
        self.names: tuple[str, ...] = f"{HANDLERS[settings.measures]}_entry", f"{HANDLERS[settings.measures]}_exit"

    def prepare(self, functions: int) -> None:
        """See `Action`."""
        made: list[Any] = [
            BoundHandler(runtime().image.address(name), plain=True, registers=fields, keep=self)
            for name, fields in zip(self.names, self.fields, strict=True)
        ]
        self.entry, self.exit = made

    @property
    def state(self) -> int:
        """Address of the table."""
        return self._table.address
