"""The cell magic of IPython and Jupyter: `%load_ext fprobe`, then `%%fprobe PATTERN...` above a cell."""

from __future__ import annotations

import getopt
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from html import escape
from pathlib import Path
from typing import Any

from fprobe.actions import Stat
from fprobe.attachment import attach
from fprobe.calls.stack_memory import PythonPlace, StackCounts
from fprobe.calls.stacks import StackCalls, Stacks, piece_offsets
from fprobe.registration import functions_of
from fprobe.report.flame import Stack, flame_page
from fprobe.report.tables import StatRow, stat_lines
from sandbox.memory import mappings
from sandbox.symbols.file_names import short_name
from sandbox.symbols.libraries import library_at
from sandbox.symbols.table import symbol_table
from sandbox.x86_64.tsc import ticks_per_ns

_USAGE = "%%fprobe [--no-stacks] [-o FILE.html] PATTERN..., such as %%fprobe 'libz:deflate*'"
_ROW, _ABOVE, _TALLEST = 18, 170, 700
"""Pixels of the flame graph: of a row, of what is above the graph, and of the whole at most."""


def load_ipython_extension(shell: Any) -> None:
    """Called by `%load_ext fprobe`: the cell magic `%%fprobe` counts and times what a cell calls.

    `shell`: the InteractiveShell.
    """

    def run_cell_probed(line: str, cell: str) -> None:
        """Run the cell with probes on the functions that PATTERN names: a table, and a flame graph of their callers.

        %%fprobe [--no-stacks] [-o FILE.html] PATTERN...

        --no-stacks: only the table, which is counted natively. -o: write the flame graph to a file, too.
        """
        from IPython.core.error import UsageError
        from IPython.display import display

        try:
            options, patterns = getopt.gnu_getopt(shlex.split(line), "o:", ["no-stacks"])
        except (getopt.GetoptError, ValueError) as error:
            raise UsageError(f"{error}; give {_USAGE}") from None
        if not patterns:
            raise UsageError(f"no pattern is given; give {_USAGE}")
        output = dict(options).get("-o")
        if output is not None and ("--no-stacks", "") in options:
            raise UsageError("-o writes the flame graph, which --no-stacks leaves out: give one of them")
        try:
            report = _probed(shell, cell, patterns, with_stacks=("--no-stacks", "") not in options)
        except OSError as error:
            raise UsageError(f"{' '.join(patterns)}: {error.strerror}") from None
        if output is not None:
            Path(output).write_text(report.page, encoding="utf-8", errors="replace")
        display(report)

    shell.register_magic_function(run_cell_probed, "cell", "fprobe")


class CellReport:
    """What a cell has called. In a notebook a table and a flame graph, elsewhere the table."""

    def __init__(self, patterns: Sequence[str], rows: Sequence[StatRow], stacks: Sequence[Stack]) -> None:
        self._patterns, self._rows, self._stacks = patterns, rows, stacks

    @property
    def page(self) -> str:
        """The flame graph, as the text of an HTML file."""
        return flame_page(self._stacks, "This cell", self._patterns)

    def __repr__(self) -> str:
        return (
            "\n".join(stat_lines(self._rows, "function")) or f"the cell calls no function of {' '.join(self._patterns)}"
        )

    def _repr_html_(self) -> str:
        table = f"<pre>{escape(repr(self))}</pre>"
        if not self._stacks:
            return table
        height = min(_ABOVE + _ROW * (1 + max(len(each.frames) for each in self._stacks)), _TALLEST)
        style = f"width: 100%; height: {height}px; border: 0"
        return f'{table}<iframe srcdoc="{escape(self.page)}" style="{style}"></iframe>'


def _probed(shell: Any, cell: str, patterns: Sequence[str], *, with_stacks: bool) -> CellReport:
    """Run the cell. Raises OSError, before that, if a pattern names nothing that can be probed."""
    found: list[Stack] = []
    with ExitStack() as attached:
        tables = [Stat(self_time=True) for _ in patterns]
        probes = [
            attached.enter_context(attach(each, action=table)) for each, table in zip(patterns, tables, strict=True)
        ]
        if with_stacks:  # one probe, also of functions that several patterns name
            addresses = [place.ip for probe in probes for place in functions_of(probe.fp).each()]
            attached.enter_context(_collected([*dict.fromkeys(addresses)], found))
        shell.run_cell(cell)
    functions = {ip: stat for table in tables for ip, stat in table.functions().items() if stat.hits}
    rows = [StatRow(_name(ip), stat) for ip, stat in functions.items()]
    return CellReport(patterns, sorted(rows, key=lambda row: -row.stat.total_ns), found)


@contextmanager
def _collected(addresses: Sequence[int], found: list[Stack]) -> Iterator[None]:
    """Collect the stacks of the calls inside the block, in `found` at its end."""
    size = piece_offsets()[1]
    start = mappings.reserve(size)
    stacks = Stacks(start)
    try:
        with attach(addresses, action=StackCalls(stacks)):
            yield
        rate = ticks_per_ns()
        found += sorted(
            Stack(tuple(map(_name, _inside(each))), each.calls, round(each.weight / rate))
            for each in stacks.memory().stacks()
        )
    finally:
        stacks.end()
        mappings.release(start, size)


def _inside(stack: StackCounts) -> Sequence[int | PythonPlace]:
    """The stack from the cell on, without what IPython calls before that; the whole of another thread's."""
    frames = stack.frames
    ours = [at for at, frame in enumerate(frames) if isinstance(frame, PythonPlace) and frame.filename == __file__]
    if not ours:
        return frames
    below = ours[-1] + 1
    cells = [at for at, frame in enumerate(frames[below:], below) if str(frame).startswith("<module>")]
    return frames[cells[0] if cells else below :]


def _name(frame: int | PythonPlace) -> str:
    if isinstance(frame, PythonPlace):
        return str(frame)
    found = symbol_table.locate(frame)
    if found is None and (library := library_at(frame)) is not None:
        found = library.locate(frame)
    return f"{found.symbol.readable} [{short_name(found.symbol.module)}]" if found is not None else f"{frame:#x}"
