"""The probes of one place, and the native list of them that hits read.

Thousands of events may be at one place: nothing that happens to one of them walks over the others.
"""

from __future__ import annotations

import ctypes
import struct
from typing import TYPE_CHECKING, Any, Protocol

from kprobes.hit.records import PRE_PLAIN, ChildList

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ftrace.core.handlers.kinds import BoundHandler


class PlacedProbe(Protocol):
    """The part of `kprobes.probe.kprobe` that a place and kprobes.fast use."""

    native: Any
    codes: tuple[BoundHandler, ...]
    foreign: bool
    has_fault: int
    flags: int

    @property
    def fast(self) -> object: ...

    @property
    def is_off(self) -> bool: ...

    @property
    def native_address(self) -> int: ...


_HEAD = struct.Struct("<5I4x")
"""A ChildList up to its children: count, foreign, has_post, plain, has_fault."""
assert _HEAD.size == ChildList.offset("children")
_WORD = 8


class Children:
    """The probes of a place, newest first.

    `enabled`: those that are neither disabled nor gone. `has_post`: whether one has a post_handler, enabled or not.
    """

    def __init__(self) -> None:
        self._probes: list[PlacedProbe] = []
        self._natives = bytearray()  # the addresses of their native halves, in the same order
        self.enabled: set[PlacedProbe] = set()
        self._foreign = self._posts = self._faults = self._foreign_faults = 0

    def __len__(self) -> int:
        return len(self._probes)

    def __iter__(self) -> Iterator[PlacedProbe]:
        return iter(self._probes)

    @property
    def only(self) -> PlacedProbe | None:
        """The probe that is alone at the place; None if there are none or several."""
        return self._probes[0] if len(self._probes) == 1 else None

    @property
    def has_post(self) -> bool:
        return self._posts > 0

    @property
    def is_plain(self) -> bool:
        """Whether there is one probe, whose pre_handler is PRE_PLAIN."""
        only = self.only
        return only is not None and bool(only.native.kind & PRE_PLAIN)

    def join(self, p: PlacedProbe) -> None:
        """Add a probe, as the newest."""
        self._probes.insert(0, p)
        self._natives[:0] = p.native_address.to_bytes(_WORD, "little")
        self._count(p, 1)
        self.note(p)

    def leave(self, p: PlacedProbe) -> None:
        """Remove a probe. Hits that have read an older list still use its native half."""
        index = self._probes.index(p)
        del self._probes[index]
        del self._natives[index * _WORD : (index + 1) * _WORD]
        self._count(p, -1)
        self.enabled.discard(p)

    def note(self, p: PlacedProbe) -> None:
        """The flags of one of the probes have changed."""
        (self.enabled.discard if p.is_off else self.enabled.add)(p)

    def _count(self, p: PlacedProbe, sign: int) -> None:
        self._foreign += sign * p.foreign
        self._posts += sign * (p.native.post is not None)
        self._faults += sign * (p.has_fault > 0)
        self._foreign_faults += sign * (p.has_fault > 1)

    def native_list(self) -> Any:
        """A ChildList of the present probes, as memory of its own."""
        has_fault = 2 if self._foreign_faults else int(self._faults > 0)
        head = _HEAD.pack(len(self), self._foreign > 0, self.has_post, self.is_plain, has_fault)
        return ctypes.create_string_buffer(head + (self._natives or bytes(_WORD)))
