"""The functions of an image without stubs, as ftrace locations that are made when they are asked for.

A location that has been made has a detour, a stub that its calls return into, and what its site holds when it is patched.
It keeps them for as long as the image is there.
"""

from __future__ import annotations

import ctypes
from array import array
from typing import TYPE_CHECKING

from ftrace.sites.block import NEVER_HOOKED, SiteBlock
from ftrace.sites.detour_room import DetourRoom
from ftrace.sites.entries import Choice, Patch, Way, choices, patch_of
from ftrace.x86_64.entry_detour import ENTRY
from ftrace.x86_64.keeping_stub import ROOM_MADE, keeping_stub
from ftrace.x86_64.stubs import SITE_SIZE, SLOT, STUB_SIZE, TO_BODY_BY_CALL
from sandbox.memory import mappings
from sandbox.x86_64.encoding import NOP5, displacement

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ftrace.sites.lists import ListCache
    from sandbox.images.image import Image
    from sandbox.symbols.table import Symbol

_SCANNED = 4096
"""Bytes of a function that are looked through for jumps into its entry."""


class DetouredBlock(SiteBlock):
    """The functions of an image that lie in one mapping of text, ascending by address.

    `ways`: how each location that has been made is patched, by its place in the block; `refusals`: why others cannot be.
    """

    _routines = ("ftrace_exit_keeping_all", "ftrace_entry_keeping_all")
    _hooked_to = ROOM_MADE

    def __init__(self, image: Image, functions: list[Symbol], text: mappings.TextMapping, lists: ListCache) -> None:
        addresses = array("Q", [function.address for function in functions])
        super().__init__(image.name, functions, addresses, text, lists)
        self.image = image
        self.ways: dict[int, Way] = {}
        self.refusals: dict[int, str] = {}
        self.unhookable = self._mask_of(NEVER_HOOKED)
        count = len(functions)
        self._originals = (ctypes.c_uint64 * count)()
        self._patched = (ctypes.c_uint64 * count)()
        self._inner = (ctypes.c_uint8 * count)()
        self._bodies = (ctypes.c_uint64 * count)()
        self._room = DetourRoom(text, self._runtime.image.address("ftrace_entry_keeping_all"))

    def covers(self, image: Image, address: int) -> bool:
        """Whether the function of `image` at `address` is one of these."""
        return image is self.image and address in self._text

    # -- making locations -----------------------------------------------------------------------------------------

    def make(self, indexes: Iterable[int]) -> None:
        """Make those of the locations that are not yet, as far as they can be; nothing is patched. With the lock."""
        todo = [index for index in indexes if index not in self.ways and index not in self.refusals]
        if not todo:
            return
        with mappings.text_mutex:
            if self._slots is None:
                self._prepare()
            with self._room.open():
                for index in todo:
                    self._make(index)

    def _make(self, index: int) -> None:
        try:
            self._find_way(index)
        except (ValueError, OverflowError) as error:
            self.refusals[index] = f"its first instruction cannot be moved: {error}"
            self.unpatchable |= 1 << index

    def _find_way(self, index: int) -> None:
        function = self.functions[index]
        end = min(function.end, function.address + _SCANNED, self._text.end)
        code = ctypes.string_at(
            function.address, max(end - function.address, min(16, self._text.end - function.address))
        )
        stub = self._stub_address(index)
        for choice in choices(code, function.address, self._usable(index)):
            detour, (_, copies) = self._room.detour(choice.insns, stub)
            patch = self._aimed(choice, code[:SITE_SIZE], detour + ENTRY)
            if patch is not None:
                break
        else:
            raise ValueError("no way fits")
        self._settle(index, choice, patch, detour, copies, code)

    def _aimed(self, choice: Choice, original: bytes, target: int) -> Patch | None:
        if choice.way in (Way.JUMP, Way.BREAKPOINT):
            return patch_of(choice, original, None, target)
        landed = self._room.land(choice.windows, target)
        return patch_of(choice, original, *landed) if landed else None

    def _settle(self, index: int, choice: Choice, patch: Patch, detour: int, copies: list[int], code: bytes) -> None:
        """Everything that a patched site needs is there from now on."""
        address, table = self.addresses[index], self._runtime.detours
        self._originals[index] = int.from_bytes(code[:SITE_SIZE], "little")
        self._patched[index] = int.from_bytes(patch.code, "little")
        self._inner[index] = patch.inner
        self._bodies[index] = copies[0]
        self._write_stub(index, copies[0])
        if choice.way is Way.BREAKPOINT:
            table.set(address, detour + ENTRY)
        for insn, copy in zip(choice.insns[1:], copies[1:], strict=True):
            table.set(insn.address, copy)
        self._stubs[index] = detour + ENTRY
        self.ways[index] = choice.way

    def _usable(self, index: int) -> int:
        """How many bytes from the site on are not another function's."""
        following = self.addresses[index + 1] if index + 1 < len(self) else self._text.end
        return following - self.addresses[index]

    def _stub_address(self, index: int) -> int:
        assert self._stub_text is not None
        return self._stub_text.base + index * STUB_SIZE

    def _write_stub(self, index: int, body: int) -> None:
        """Where its calls return to."""
        where = self._stub_address(index)
        code = bytearray(keeping_stub(where, self.addresses[index], self._pointers))
        code[8:10] = bytes(2)
        to_body = where + TO_BODY_BY_CALL
        code[TO_BODY_BY_CALL : TO_BODY_BY_CALL + 4] = displacement(body, to_body + 4)
        code[SLOT : SLOT + 8] = (self._pointers + 16 + 8 * index).to_bytes(8, "little")
        assert self._stub_text is not None
        self._room.write(self._stub_text, where, bytes(code))

    def _write_stubs(self) -> None:
        """They are written when a location is made."""

    def _describe(self, stub_text: int) -> None:
        super()._describe(stub_text)
        at, native = ctypes.addressof, self._native
        native.originals, native.patched = at(self._originals), at(self._patched)
        native.inner, native.bodies = at(self._inner), at(self._bodies)

    # -- what a SiteBlock asks --------------------------------------------------------------------------------------

    def reason(self, index: int) -> str:
        return self.refusals.get(index) or super().reason(index)

    def is_made(self, index: int) -> bool:
        return index in self.ways

    def text_of(self, index: int) -> bytes:
        return self._originals[index].to_bytes(SITE_SIZE, "little") if index in self.ways else NOP5

    def _patched_text(self, index: int) -> bytes:
        return int(self._patched[index]).to_bytes(SITE_SIZE, "little")

    @property
    def everything(self) -> int:
        return sum(1 << index for index in self.ways)

    def close(self) -> None:
        super().close()
        self._room.close()
