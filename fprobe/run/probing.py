"""The action of a run's probes: count, time and record calls in the launcher's file."""

from __future__ import annotations

from typing import Any

from fprobe.actions import Action
from fprobe.run.table import Table
from ftrace.handlers.kinds import Resolved
from ftrace.runtime import runtime
from sandbox.native.handler import Fields


class Calls(Action):
    """Counts and times calls in a table. `with_events`: also record each entry and return."""

    entry_data_size = 8

    def __init__(self, table: Table, with_events: bool) -> None:
        super().__init__()
        self._table = table
        self._names = ("events_entry", "events_exit") if with_events else ("calls_entry", "calls_exit")
        self._fields = (
            (Fields(frozenset({"sp"})), Fields(frozenset({"sp", "ax"}))) if with_events else (Fields(), Fields())
        )

    def prepare(self, functions: int) -> None:
        """See `Action`."""
        made: list[Any] = [
            Resolved(runtime().image.address(name), plain=True, registers=fields, keep=self._table)
            for name, fields in zip(self._names, self._fields, strict=True)
        ]
        self.entry, self.exit = made

    @property
    def state(self) -> int:
        """Address of the table."""
        return self._table.address
