"""A trace.dat as Parquet."""

from __future__ import annotations

from fprobe.export.columns.parquet import ParquetFile, Sink
from fprobe.export.trace_dat_reader import Trace


class Known:
    """What a trace.dat says of its records."""

    def __init__(self, trace: Trace) -> None:
        self.formats = trace.formats
        self.name = trace.symbols.name
        self.comm = trace.comm


def convert(trace: Trace, path: str) -> int:
    """Write the records of a trace. Returns the rows that a full disk has cost.

    Times are those of the trace's clock: a trace.dat does not say what the wall clock was. Raises OSError as ParquetFile;
    ValueError for a damaged trace, of which what precedes the damage is in the file.
    """
    names = [each.name for each in trace.instances]
    clock = trace.instances[0].clock if trace.instances else "local"
    file = ParquetFile(
        Sink(path), Known(trace), clock=clock, page_size=trace.page_size, instances=names, anchored=False
    )
    try:
        for number, instance in enumerate(trace.instances):
            for slot, page in trace.pages(instance):
                file.add(slot, page, number)
    finally:
        file.finish()
    return file.unwritten
