"""The filter and notrace hashes of an ftrace_ops, which several ops may share."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ftrace.core.sites.locations import LocationSet

if TYPE_CHECKING:
    from ftrace.core.sites.block import SiteBlock
    from ftrace.core.sites.locations import LocationTable

FILTER, NOTRACE = "filter_hash", "notrace_hash"
"""The names of the two hashes of an OpsHash."""


class ModuleRequest(NamedTuple):
    """`func:mod:module`, kept until a module of that name is loaded."""

    func: str
    module: str

    def __str__(self) -> str:
        return f"{self.func}:mod:{self.module}"


class OpsHash:
    """struct ftrace_ops_hash. An empty filter selects all functions; an empty notrace excludes none."""

    def __init__(self) -> None:
        self.filter_hash = LocationSet()
        self.notrace_hash = LocationSet()
        self.requests: dict[str, list[ModuleRequest]] = {FILTER: [], NOTRACE: []}
        """Cached requests for each of the two hashes, newest first."""
        self.filter_awaits_modules = False
        """Whether there were requests when the filter was last committed. Then an empty filter does not select everything."""

    @property
    def for_everything(self) -> bool:
        """Whether the filter is empty, which means all functions, as ftrace_hash_empty()."""
        return not self.filter_hash and not self.filter_awaits_modules

    def select(self, table: LocationTable) -> dict[SiteBlock, int]:
        """The selected locations that are in the table: for each block of sites a mask, which may be 0.

        Functions of an unloaded module stay in the hashes: they match nothing any more, but a filter for them alone does not
        count as empty.
        """
        wanted = table.everything() if self.for_everything else self.filter_hash
        there = table.patched_blocks()
        without = self.notrace_hash
        return {block: mask & ~without.get(block, 0) for block, mask in wanted.items() if block in there}

    @property
    def state(self) -> tuple[LocationSet, LocationSet, bool]:
        """Both hashes, and `filter_awaits_modules`, for restoring them."""
        return self.filter_hash, self.notrace_hash, self.filter_awaits_modules

    @state.setter
    def state(self, saved: tuple[LocationSet, LocationSet, bool]) -> None:
        self.filter_hash, self.notrace_hash, self.filter_awaits_modules = saved

    def replace(self, which: str, changed: LocationSet, awaits_modules: bool | None = None) -> None:
        """Replace the contents of one hash. `awaits_modules`: None leaves that unchanged."""
        setattr(self, which, changed)
        if awaits_modules is not None:
            self.filter_awaits_modules = awaits_modules

    def clear(self) -> None:
        """Empty both hashes (ftrace_free_filter())."""
        self.state = LocationSet(), LocationSet(), False


global_hash = OpsHash()
"""The hashes of set_ftrace_filter and set_ftrace_notrace."""
