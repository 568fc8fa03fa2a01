"""Histograms of the values of arguments: hist triggers whose tables are in the launcher's memory."""

from __future__ import annotations

from functools import partial
from typing import Any

from fprobe.recorded_events import define, explained
from fprobe.run import session
from fprobe.run.session import Settings
from fprobe.run.tracee.defining import Definition
from fprobe.run.tracee.patterns import Pattern, plain_values
from fprobe.run.tracee.table import MapSpace
from fprobe.run.values import GROUP
from fprobe.tracefs import tracefs
from ftrace.tracing.events.hist.hist_trigger import HistTrigger
from ftrace.tracing.events.hist.per_thread_table import PerThreadHistogram
from ftrace.tracing.instances.trace_array import global_trace
from sandbox.threads import tasks


class ValueHistograms:
    """The histograms of a run: those that wait for their functions, and those that count."""

    def __init__(self, address: str, settings: Settings, space: MapSpace) -> None:
        self._address, self._trigger, self._space = address, settings.value_trigger, space
        self._waiting = [(number, Definition(text)) for number, text in enumerate(settings.values)]
        self._defined: list[str] = []

    @property
    def patterns(self) -> list[Pattern]:
        """The patterns that still wait for their functions."""
        return [each.pattern for _, each in self._waiting if each.pattern is not None]

    def define_loaded(self) -> None:
        """Define the events whose functions are loaded now, with their histograms, and report them to the launcher."""
        for number, each in [waiting for waiting in self._waiting if waiting[1].can_be_defined]:
            self._waiting.remove((number, each))
            try:
                self._define(number, each)
            except OSError as error:
                session.note(self._address, error=error.strerror or str(error))

    def _define(self, number: int, each: Definition) -> None:
        probe = define(each.text)[0]
        files = f"events/{GROUP}/h{number}"
        self._defined.append(f"{GROUP}/h{number}")
        with self._space.used():
            explained(partial(tracefs.write, f"{files}/trigger", self._trigger, append=True), self._trigger)
        (histogram,) = probe.event.file_in(global_trace()).triggers.hists
        assert isinstance(histogram, HistTrigger)
        table = histogram.table
        assert isinstance(table, PerThreadHistogram)
        session.note(self._address, values=number, layout=self._layout(table))
        functions = plain_values(each.pattern.found()) if each.pattern is not None else []
        session.note(self._address, pattern=each.text, functions=functions)
        session.note(self._address, attached=len(functions))

    def _layout(self, table: PerThreadHistogram) -> dict[str, Any]:
        """Where the launcher finds what. Offsets and sizes are in bytes, but `keys` and `values` are numbers of words."""
        native = table.native
        offset, _ = self._space.where(native.base)
        return {
            "offset": offset,
            "stride": native.stride,
            "threads": tasks.CAPACITY,
            "entry": native.entry,
            "keys": native.key_words,
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
