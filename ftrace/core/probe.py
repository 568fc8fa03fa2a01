"""The native half of an ftrace_ops: the record that trampolines read, and its line of counters in every task."""

from __future__ import annotations

import ctypes
import errno
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from ftrace.core.summary import table
from ftrace.hit.records import Member, Probe
from sandbox.memory.pages import PAGE
from sandbox.threads import tasks
from sandbox.threads.counters import Line

if TYPE_CHECKING:
    from ftrace.core.counter_file import CounterFile
    from sandbox.native.native_image import NativeImage


class Counts(NamedTuple):
    """The counts of a probe, over all threads. `missed_*` are misses by cause; their sum is nmissed."""

    hits: int = 0
    missed_recursion: int = 0
    missed_nodes: int = 0
    missed_busy: int = 0
    missed_depth: int = 0
    missed_context: int = 0
    missed_interpreter: int = 0
    missed_task: int = 0

    @property
    def missed(self) -> int:
        """Hits that no handler was called for, whatever the cause."""
        return sum(self) - self.hits

    def __repr__(self) -> str:
        causes = "".join(f", {name}={value}" for name, value in self._asdict().items() if value and name != "hits")
        return f"Counts(hits={self.hits}{causes})"

    def _repr_html_(self) -> str:
        return table((name, value) for name, value in self._asdict().items() if value or name == "hits")


class CounterLines:
    """Which of the counter lines are taken. A line is reused when no call refers to its probe any more."""

    def __init__(self, image: NativeImage, file: CounterFile) -> None:
        self.image = image
        self._file = file
        self._free: list[int] = []
        self._used = 0

    @property
    def in_use(self) -> int:
        """How many are taken."""
        return self._used - len(self._free)

    def take(self) -> int:
        """The offset in a Task of a line that is zero in all tasks. Raises OSError(ENOSPC) if there is none left."""
        if self._free:
            return self._free.pop()
        if self._used == tasks.COUNTER_LINES:
            raise OSError(
                errno.ENOSPC, f"{tasks.COUNTER_LINES} probes are registered, the maximum; unregister one first"
            )
        self._used += 1
        number = (self._used - 1 + tasks.FIRST_LINE) % tasks.COUNTER_LINES
        pages = self.image.variable("counter_pages")
        pages.value = max(pages.value, number * tasks.Counters.size // PAGE + 1)
        return tasks.COUNTERS + number * tasks.Counters.size

    def give(self, offset: int) -> None:
        """Zero the line everywhere and make it available."""
        if self._file.readable:
            for row in range(self._rows):
                self._file.clear(row, _number(offset))
        else:
            self.image.call("clear_counters", offset)
        self._free.append(offset)

    def total(self, offset: int) -> Line:
        """The lines at `offset` of all tasks ever claimed, added up. Reads allocate nothing for tasks without counters."""
        if self._file.readable:
            lines = (self._file.line(row, _number(offset)) for row in range(self._rows))
            return Line(*map(sum, zip(Line(), *lines, strict=True)))
        total = tasks.Counters.ctypes()
        self.image.call("sum_counters", offset, ctypes.addressof(total))
        return Line(total.tally, *(getattr(total, cause) for cause in Line._fields[1:]))

    @property
    def _rows(self) -> int:
        return int(self.image.variable("tasks_claimed_high").value)


def _number(offset: int) -> int:
    return (offset - tasks.COUNTERS) // tasks.Counters.size


live_probes: weakref.WeakSet[NativeProbe] = weakref.WeakSet()
"""All probes whose records are in memory, wherever they are registered."""


class NativeProbe:
    """A Probe record in native memory. `native`: its ctypes view. `address`: its address. `keep`: objects that it refers to."""

    header = 0
    """Bytes before its entry data that are its own too: those of the node, unless the list has other probes."""

    def __init__(self, lines: CounterLines, keep: Any = None, **values: Any) -> None:
        self._lines = lines
        self.keep = keep
        self._memory = ctypes.create_string_buffer(Probe.size + 64)
        self.address = (ctypes.addressof(self._memory) + 63) & -64
        self.member = bytes(Member.ctypes(self.address, self.header))
        """What ListRecord gives to fill_list: thousands of lists may hold this probe."""
        live_probes.add(self)
        self.native: Any = Probe.ctypes.from_address(self.address)
        self.native.__init__(**values)
        self.native.counters = lines.take()
        self.native.entry_cookie = self.native.entry_cookie or self.address
        self.native.exit_cookie = self.native.exit_cookie or self.address

    def counts(self) -> Counts:
        """The sum over all threads, at this moment."""
        total = self._lines.total(self.native.counters)
        return Counts(*total, missed_task=self.native.missed_task)

    def change_flags(self, on: int = 0, off: int = 0) -> None:
        """Set and clear flags atomically. Call `ListCache.flags_changed` afterwards."""
        self._lines.image.call("probe_set_flags", self.address, on, off)

    def free(self) -> None:
        """Give the counter line back. No list and no shadow stack may refer to the probe."""
        self._lines.give(self.native.counters)
