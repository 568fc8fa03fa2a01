"""Counts and times calls by their stacks of native and Python frames, in the launcher's file."""

from __future__ import annotations

import ctypes

from fprobe.handlers.call_stacks import CallStacks, Key
from fprobe.run import session
from fprobe.run.tracee.table import Table


class Stacks(CallStacks):
    """The handlers, and the numbers of the stacks that this process has seen."""

    def __init__(self, address: str, table: Table) -> None:
        super().__init__()
        self._address = address
        self._table = table
        self._numbers: dict[Key, int] = {}

    def count(self, stack: Key, own: int, total: int) -> None:
        """Count a call in the launcher's file, under the number of its stack."""
        number = self._numbers.get(stack)
        if number is None:
            number = self._numbers[stack] = len(self._numbers)
            session.note(self._address, stack=number, frames=stack)
        if number < session.STACKS and self._table.stacks:
            cell = (ctypes.c_uint64 * 2).from_address(self._table.stacks + 16 * number)
            cell[0] += 1
            cell[1] += own
