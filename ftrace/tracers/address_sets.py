"""Native tables of sets of numbers, of which each can be replaced while hits look into it."""

from __future__ import annotations

from collections.abc import Collection

from ftrace.hit.address_table import AddressTable
from ftrace.runtime import runtime


class AddressSets:
    """The tables in use, by the names of their sets, and those that were replaced."""

    def __init__(self) -> None:
        self._in_use: dict[str, AddressTable] = {}
        self._replaced: list[AddressTable] = []

    def replace(self, which: str, members: Collection[int]) -> int:
        """The address of a new native table for one set; 0 if it is empty. The table of before lives on."""
        if before := self._in_use.pop(which, None):
            self._replaced.append(before)
        if not members:
            return 0
        published: list[int] = []
        table = self._in_use[which] = AddressTable(runtime().image, published.append)
        for member in members:
            if member:  # the table marks its free places with 0
                table.set(member, 1)
        return published[-1]

    def forget_replaced(self) -> None:
        """Free the tables that were replaced, unless a hit may still be looking into one."""
        if runtime().quiesce():
            self._replaced.clear()
