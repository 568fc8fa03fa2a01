"""What patterns select."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from sandbox.symbols.table import Symbol


class Skipped(NamedTuple):
    """A matched function that cannot be probed, with the reason."""

    name: str
    reason: str


class Site(NamedTuple):
    """A function that can be probed, and the address of its stub."""

    symbol: Symbol
    address: int


@dataclass
class Match:
    """What patterns select."""

    sites: list[Site] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)

    @property
    def matched(self) -> int:
        """The number of matched functions."""
        return len(self.sites) + len(self.skipped)

    @property
    def addresses(self) -> list[int]:
        """The addresses of the stubs."""
        return [site.address for site in self.sites]
