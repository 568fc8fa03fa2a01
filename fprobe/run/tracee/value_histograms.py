"""Histograms of the values of arguments: hist triggers whose tables are in the launcher's memory."""

from __future__ import annotations

from functools import partial
from typing import Any

from fprobe.recorded_events import explained
from fprobe.run import session
from fprobe.run.session import Settings
from fprobe.run.tracee.table import MapSpace
from fprobe.run.tracee.value_events import ValueEvents
from fprobe.run.values import GROUP
from fprobe.tracefs import tracefs
from ftrace.tracing.events.hist.hist_trigger import HistTrigger
from ftrace.tracing.events.hist.per_thread_table import PerThreadHistogram
from ftrace.tracing.events.probe_event import Probe
from ftrace.tracing.instances.trace_array import global_trace
from sandbox.threads import tasks


class ValueHistograms(ValueEvents):
    """Events that have a histogram each."""

    def __init__(self, address: str, settings: Settings, space: MapSpace) -> None:
        super().__init__(address, settings.values)
        self._trigger, self._space = settings.value_trigger, space
        self._defined: list[str] = []

    def _count(self, number: int, probe: Probe) -> None:
        files = f"events/{GROUP}/h{number}"
        self._defined.append(f"{GROUP}/h{number}")
        with self._space.used():
            explained(partial(tracefs.write, f"{files}/trigger", self._trigger, append=True), self._trigger)
        (histogram,) = probe.event.file_in(global_trace()).triggers.hists
        assert isinstance(histogram, HistTrigger)
        table = histogram.table
        assert isinstance(table, PerThreadHistogram)
        where = self._trigger.partition(" if ")[2]
        session.note(self._address, values=number, layout=self._layout(table), **({"where": where} if where else {}))

    def _layout(self, table: PerThreadHistogram) -> dict[str, Any]:
        """Where the launcher finds what. Offsets and sizes are in bytes, but `keys` are the words of each key."""
        native = table.native
        offset, _ = self._space.where(native.base)
        return {
            "offset": offset,
            "stride": native.stride,
            "threads": tasks.CAPACITY,
            "entry": native.entry,
            "keys": table.key_words,
            "values": native.values,
            "signed": table.signed,
        }

    def remove(self) -> None:
        """Remove the events. What they counted stays in the launcher's memory. Raises OSError."""
        self._waiting.clear()
        for name in self._defined:
            tracefs.write(f"events/{name}/trigger", f"!{self._trigger}", append=True)
            tracefs.write("dynamic_events", f"-:{name}", append=True)
        self._defined.clear()
