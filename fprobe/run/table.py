"""This process's table of calls, in the launcher's file of counts."""

from __future__ import annotations

import ctypes
from typing import Any

from fprobe.run import session
from ftrace.hit.call_table import CELL, EVENTS_AT, CallTable
from ftrace.runtime import runtime
from sandbox.memory import mappings
from sandbox.process import fork


class Table:
    """The file of counts, mapped, and this process's part of it. Raises OSError(ENOMEM) if address space is limited."""

    def __init__(self, counts: int, by: int, with_events: bool) -> None:
        image = runtime().image
        size = session.HEADER + session.PARTS * session.PART
        start = mappings.map_shared(counts, 0, size)
        self.native: Any = CallTable.ctypes(
            stride=session.STRIDE,
            shift=64 - (EVENTS_AT // CELL).bit_length() + 1,
            events=session.EVENTS - 1 if with_events else 0,
            maps_at=session.MAPS_AT,
            by=by,
            parts=start + session.HEADER,
            length=session.PART,
            count=session.PARTS,
            rows_at=session.ROWS_AT,
            next=start + session.NEXT_AT,
        )
        image.call("table_take", self.address, 0)
        image.variable("call_table").value = self.address
        fork.at_fork(0, 0, image.address("table_in_child"))

    @property
    def address(self) -> int:
        """The address of the native table."""
        return ctypes.addressof(self.native)

    @property
    def stacks(self) -> int:
        """Address of the counts of this process's stacks; 0 if the process has no part."""
        if not self.native.rows and not runtime().image.call("table_claim", self.address):
            return 0
        return int(self.native.parts + self.part * session.PART + session.STACKS_AT)

    def use_for_maps(self) -> int:
        """Reserve the memory for maps and return its address. After a fork, the child's own part is at the same address."""
        self.native.maps = self.native.parts + self.part * session.PART + session.MAPS_AT
        self.native.maps_size = session.MAPS
        return int(self.native.maps)

    @property
    def part(self) -> int:
        """The number of this process's part."""
        return int(self.native.part)
