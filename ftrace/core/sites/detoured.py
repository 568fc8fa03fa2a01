"""Functions of an image without stubs, as ftrace locations that are made when a probe needs them.

A location has a detour, a stub that its calls return to, and the bytes of its patched site. It keeps them as long as the image
is loaded.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ftrace.core.sites.block import Change, Read, SiteMismatch, log
from ftrace.core.sites.detour_space import DetourSpace
from ftrace.core.sites.entry_plans import Choice, Mechanism, Patch, choices, only_breakpoint, patch_of
from ftrace.core.sites.image_block import ImageBlock
from ftrace.core.sites.lists import Stubs
from ftrace.core.sites.refusals import runs_python
from ftrace.core.sites.signal_masks import keep_traps_unblocked
from ftrace.hit.x86_64.entry_detour import ENTRY
from ftrace.hit.x86_64.entry_writing import Stubs as NativeStubs
from ftrace.hit.x86_64.preserving_stub import SLOT_RESTORED, preserving_stub
from ftrace.hit.x86_64.stubs import SITE_SIZE, STUB_SIZE, TO_BODY_BY_CALL
from sandbox.memory import mappings
from sandbox.memory.address_space import read_once
from sandbox.native.x86_64.entry_bytes import REACH, Entries
from sandbox.process import hooks
from sandbox.x86_64.encoding import INT3, NOP5, displacement

if TYPE_CHECKING:
    from ftrace.core.sites.lists import ListCache
    from sandbox.images.image import Image
    from sandbox.native.x86_64.entry_bytes import EntryInstructions
    from sandbox.symbols.table import Symbol

_SCANNED = 4096
"""Bytes of a function that are scanned for jumps into its entry."""

_BREAKPOINT_RISK = "a call while SIGTRAP is blocked, as in a signal's handler that blocks all signals, ends the process"
Free = Callable[[int, int], int]
"""(address, size) -> how many of these bytes a patch at `address` may use, given other kinds of probes."""


class DetouredBlock(ImageBlock):
    """The functions of an image in one mapping of text, ascending by address.

    `mechanisms`: how each existing location is patched, by its position in the block. `refusals`: why others cannot be patched.
    """

    _routines = ("ftrace_exit_preserving", "ftrace_entry_preserving_all")
    _hooked_to = SLOT_RESTORED

    def __init__(
        self,
        image: Image,
        functions: list[Symbol],
        text: mappings.TextMapping,
        lists: ListCache,
        read: Read,
        free: Free,
        starts: Sequence[int],
    ) -> None:
        super().__init__(image, functions, text, lists, Stubs.PRESERVING, read)
        self.mechanisms: dict[int, Mechanism] = {}
        self.refusals: dict[int, str] = {}
        self._refused_as: dict[int, bytes] = {}
        """The first bytes of those."""
        self._retreated: set[int] = set()
        self._restored: set[int] = set()
        """Locations whose patch another tool has replaced by the code of the file: it had patched the entry before."""
        self._trapping = 0
        self._leads: dict[int, dict[int, int]] = {}
        """For locations whose patch has breakpoints: where threads that reach one continue, by its address.

        The runtime's table has them while the location is patched: afterwards a breakpoint there is another probe's.
        """
        self._warned: set[int] = set()
        self._new: list[int] = []
        self._free = free
        self._starts = array("Q", starts)
        """Where functions begin: those of the block, and those that follow one of them and are in another block, or none."""
        count = len(functions)
        self._originals = (ctypes.c_uint64 * count)()
        self._patched = (ctypes.c_uint64 * count)()
        self._owned = (ctypes.c_uint8 * count)()
        self._inner = (ctypes.c_uint8 * count)()
        self._bodies = (ctypes.c_uint64 * count)()
        self._space = DetourSpace(text, self._runtime)
        hooks.own_code.add(self._space.__contains__)

    def covers(self, image: Image, address: int) -> bool:
        if image is not self.image or address in image.stubs:
            return False
        index = bisect_left(self.addresses, address)
        return index < len(self) and self.addresses[index] == address

    # -- making locations -----------------------------------------------------------------------------------------

    def make(self, indexes: Iterable[int]) -> None:
        indexes = list(indexes)
        again = {index for index in self._retreated if not self.is_live(index)} | self._changed(indexes)
        todo = [i for i in indexes if (i not in self.mechanisms and not self._is_refused(i)) or i in again]
        if not todo:
            return
        with mappings.text_mutex, read_once():
            if self._slots is None:
                self._prepare()
            entries = self._entries_of(todo)
            self._text.prepare(self.addresses[index] for index in todo)
            with self._space.open(entries):
                try:
                    for position, index in enumerate(todo):
                        self._make(index, entries[position])
                finally:
                    self._write_new_stubs()

    def _changed(self, indexes: Sequence[int]) -> set[int]:
        """Those of the locations that are not patched whose text is not what it was: a party has patched or restored it."""
        idle = [index for index in indexes if index in self.mechanisms and not self.is_live(index)]
        code_at = self._reader_of(idle)
        changed = {index for index in idle if code_at(self.addresses[index], SITE_SIZE) != self.text_of(index)}
        changed |= self._restored.intersection(idle)
        self._restored -= changed
        for index in changed:
            self._trapping &= ~(1 << index)
            self.forget_return(index)
        return changed

    def _is_refused(self, index: int) -> bool:
        """Whether it has been refused as it is now: the text may have been another party's, such as a debugger's breakpoint."""
        before = self._refused_as.get(index)
        if before is None or before == self._read(self.addresses[index], len(before)):
            return before is not None
        del self._refused_as[index], self.refusals[index]
        self.unpatchable &= ~(1 << index)
        return False

    def _refuse(self, index: int, entry: EntryInstructions, why: str) -> None:
        self.refusals[index], self._refused_as[index] = why, entry.code[:SITE_SIZE]
        self.unpatchable |= 1 << index
        self.mechanisms.pop(index, None)
        self._leads.pop(index, None)
        self._retreated.discard(index)

    def _entries_of(self, indexes: Sequence[int], most: int = _SCANNED) -> Entries:
        read, addresses = self._reader_of(indexes), [self.addresses[index] for index in indexes]
        return Entries(self._runtime.image, [self._code_of(index, most, read) for index in indexes], addresses)

    def _make(self, index: int, entry: EntryInstructions) -> None:
        if entry.code[0] == INT3 and self.image.code_in_file(entry.address, 1) != INT3.to_bytes(1, "little"):
            self._refuse(
                index, entry, "it begins with a breakpoint of another tool, such as a debugger: delete it first"
            )
            return
        try:
            self._find_mechanism(index, entry)
        except (ValueError, OverflowError) as error:
            self._refuse(index, entry, f"its first instruction cannot be moved: {error}")

    def _find_mechanism(self, index: int, entry: EntryInstructions) -> None:
        made: dict[int, tuple[int, list[int]]] = {}
        for choice in choices(entry, self._free(entry.address, self._space_after(index))):
            if choice.mechanism is Mechanism.BREAKPOINT and runs_python(self.name):
                break
            copied = choice.copied
            if copied not in made:
                made[copied] = self._detour_for(index, entry, choice)
            detour, copies = made[copied]
            if self._use(index, choice, entry, detour, copies[: len(choice.lengths)]):
                return
        self._refuse(index, entry, "only a breakpoint fits, and the C library runs with SIGTRAP blocked at times")

    def _code_of(self, index: int, most: int, read: Read) -> bytes:
        """The function's first bytes: at most `most`, but at least as many as its first instructions may have."""
        function = self.functions[index]
        least = min(REACH + 15, self._text.end - function.address)
        return read(function.address, max(min(function.size, most), least))

    def _detour_for(self, index: int, entry: EntryInstructions, choice: Choice) -> tuple[int, list[int]]:
        with contextlib.suppress(ValueError, OverflowError):
            return self._detour(index, entry, choice.copied)
        return self._detour(index, entry, len(choice.lengths))

    def _detour(self, index: int, entry: EntryInstructions, copied: int) -> tuple[int, list[int]]:
        return self._space.detour(entry, copied, self._stub_address(index), self._slot_address(index))

    def _use(self, index: int, choice: Choice, entry: EntryInstructions, detour: int, copies: list[int]) -> bool:
        """Use `choice` for a site if a target for its jump is found. Returns whether it was."""
        original = entry.code[:SITE_SIZE]
        patch = self._aimed(choice, entry.address, original, detour + ENTRY)
        if patch is None:
            return False
        self._originals[index] = int.from_bytes(original, "little")
        self._lead(index, choice, detour + ENTRY, copies)
        self._set_patch(index, patch)
        return True

    def _aimed(self, choice: Choice, address: int, original: bytes, target: int) -> Patch | None:
        if choice.mechanism in (Mechanism.JUMP, Mechanism.BREAKPOINT):
            return patch_of(choice, address, original, None, target)
        landed = self._space.land(choice.windows, target)
        return patch_of(choice, address, original, *landed) if landed else None

    def _lead(self, index: int, choice: Choice, entry: int, copies: list[int]) -> None:
        """Lead threads that arrive at the site, or at a breakpoint in it, to `entry` or to a copy; and returns to the body."""
        at = self.addresses[index]
        leads = {at: entry} if choice.mechanism is Mechanism.BREAKPOINT else {}
        for length, copy in zip(choice.lengths, copies[1:], strict=False):
            at += length
            leads[at] = copy
        self._leads.pop(index, None)
        if leads:
            self._leads[index] = leads
        self._bodies[index], self._stubs[index] = copies[0], entry
        if index in self.mechanisms:
            self._change_stub(index, copies[0])
        else:
            self._new.append(index)
        self.mechanisms[index] = choice.mechanism
        self._retreated.discard(index)

    def _set_patch(self, index: int, patch: Patch) -> None:
        self._patched[index] = int.from_bytes(patch.code, "little")
        self._owned[index], self._inner[index] = patch.owned, patch.inner
        straddles = (self.addresses[index] & 7) + patch.owned > 8
        if straddles or patch.inner or self.mechanisms[index] is Mechanism.BREAKPOINT:
            self._trapping |= 1 << index

    def _space_after(self, index: int) -> int:
        """How many bytes from the site on belong to no other function; at most REACH."""
        address = self.addresses[index]
        after = bisect_right(self._starts, address)
        following = self._starts[after] if after < len(self._starts) else self._text.end
        return min(following - address, REACH)

    def _stub_address(self, index: int) -> int:
        assert self._stub_text is not None
        return self._stub_text.base + index * STUB_SIZE

    def _slot_address(self, index: int) -> int:
        return int(self._pointers) + 16 + 8 * index

    def _change_stub(self, index: int, body: int) -> None:
        """Give an existing stub another body."""
        assert self._stub_text is not None
        to_body = self._stub_address(index) + TO_BODY_BY_CALL
        self._space.write_word(self._stub_text, to_body, displacement(body, to_body + 4))

    def _write_new_stubs(self) -> None:
        """Write the stubs that the calls of new locations return to."""
        assert self._stub_text is not None
        at, new = ctypes.addressof, (ctypes.c_uint32 * len(self._new))(*self._new)
        self._new.clear()
        code = preserving_stub(0, 0, 0)
        template = ctypes.create_string_buffer(code[:8] + bytes(2) + code[10:], STUB_SIZE)
        stubs = NativeStubs.ctypes(
            base=self._stub_text.base, delta=self._space.delta(self._stub_text), sites=at(self._site_array),
            bodies=at(self._bodies), slots=self._slot_address(0), exit=self._pointers, template=at(template),
        )  # fmt: skip
        self._runtime.image.call("write_preserving_stubs", at(stubs), at(new), len(new))

    def owned_at(self, index: int) -> int:
        """How many bytes a location's patch changes."""
        return int(self._owned[index])

    def entry_at(self, index: int) -> int:
        """The address that a location's patch leads to."""
        return int(self._stubs[index])

    # -- detours taken back ----------------------------------------------------------------------------------------

    def reaching(self, address: int) -> int | None:
        """The location whose patch or borrowed bytes, after the first byte, include `address`; None if there is none."""
        for index in self.near(address):
            if 0 < address - self.addresses[index] < REACH and self.mechanisms[index] is not Mechanism.BREAKPOINT:
                return index
        return None

    def near(self, address: int) -> list[int]:
        """The existing locations whose patch may involve the byte at `address`."""
        low, high = bisect_left(self.addresses, address - REACH + 1), bisect_right(self.addresses, address)
        return [index for index in range(low, high) if index in self.mechanisms]

    def retreat(self, index: int) -> None:
        """Patch the site with a breakpoint from now on: another probe needs its further bytes. With the lock."""
        entries = self._entries_of([index], 0)
        choice, original = only_breakpoint(entries[0]), self.text_of(index)
        patch = patch_of(choice, self.addresses[index], original, None, 0)
        former = self._leads.get(index, {})
        with mappings.text_mutex, self._space.open(entries):
            detour, copies = self._detour(index, entries[0], 1)
            self._lead(index, choice, detour + ENTRY, copies)
            self._patched[index] = int.from_bytes(patch.code, "little")
        if self.is_live(index):
            self._publish(self._leads[index])
            self._poke_alone(index)
            self._withdraw(former.keys() - self._leads[index])
        self._set_patch(index, patch)
        self._retreated.add(index)

    def _poke_alone(self, index: int) -> None:
        """Write the bytes that the site at `index` should hold, through breakpoints, without verifying it."""
        self._chosen[0], self._native.nr_chosen = index, 1
        with self._text.writable() as delta:
            self._poke_with_breakpoints(delta, 1)
        self._rewrite_copied_pages()

    # -- breakpoints in patched sites -------------------------------------------------------------------------------

    def _publish(self, leads: Mapping[int, int]) -> None:
        """Lead threads that reach breakpoints at these addresses on."""
        for address, to in leads.items():
            self._runtime.detours.set(address, to)

    def _withdraw(self, addresses: Iterable[int]) -> None:
        """There are no breakpoints of this block at these addresses any more."""
        for address in addresses:
            self._runtime.detours.set(address, 0)

    def _poke(self) -> None:
        chosen = self._leads.keys() & self._chosen[: self._native.nr_chosen] if self._leads else set[int]()
        live = {index for index in chosen if self.is_live(index)}
        if any(self.mechanisms[index] is Mechanism.BREAKPOINT for index in live) and not keep_traps_unblocked():
            self._warn_of_breakpoints(live)
        for index in live:
            self._publish(self._leads[index])
        super()._poke()
        for index in chosen - live:
            self._withdraw(self._leads[index])

    def _warn_of_breakpoints(self, live: Iterable[int]) -> None:
        """Say once of each function that a call of it can end the process, for want of space for a jump."""
        entries = {index for index in live if self.mechanisms[index] is Mechanism.BREAKPOINT} - self._warned
        self._warned |= entries
        if entries:
            first = self.names[min(entries)]
            names = first if len(entries) == 1 else f"{first} and {len(entries) - 1:,} more"
            log.warning("a breakpoint patches %s [%s], since no jump fits: %s", names, self.name, _BREAKPOINT_RISK)

    def abandon(self, change: Change) -> None:
        live = [index for index in self._leads if self.is_live(index)]
        super().abandon(change)
        for index in live:
            self._withdraw(self._leads[index])

    # -- text that another tool has restored ------------------------------------------------------------------------

    def _choose(self, mask: int) -> None:
        while True:
            try:
                return super()._choose(mask)
            except SiteMismatch as mismatch:
                if not self._is_restored(mismatch.index, mismatch.found):
                    raise

    def _is_restored(self, index: int, found: bytes) -> bool:
        """Whether a patched site holds the code of the file. Then nothing has to be undone, and its probes have no hits."""
        address = self.addresses[index]
        if not self.is_live(index) or found != self.image.code_in_file(address, SITE_SIZE):
            return False
        where = f"{self.names[index]} [{self.name}] at {address:#x}"
        log.warning("another tool has undone the patch of %s: calls since then are not counted", where)
        self._originals[index] = self._patched[index] = int.from_bytes(found, "little")
        self._restored.add(index)
        return True

    def _relist(self, change: Change) -> int:
        for index in self._restored:
            if self._bits.raw[index >> 3] >> (index & 7) & 1:
                old = self.list_at(index)
                if len(change(old).probes) > len(old.probes):
                    why = f"another tool has undone the patch of {self.names[index]}: detach the probes on it first"
                    raise OSError(errno.EBUSY, why)
        return super()._relist(change)

    # -- overrides of SiteBlock -------------------------------------------------------------------------------------

    def reason(self, index: int) -> str:
        return self.refusals.get(index) or super().reason(index)

    def is_made(self, index: int) -> bool:
        return index in self.mechanisms

    def text_of(self, index: int) -> bytes:
        return int(self._originals[index]).to_bytes(SITE_SIZE, "little") if index in self.mechanisms else NOP5

    def _patched_text(self, index: int) -> bytes:
        return int(self._patched[index]).to_bytes(SITE_SIZE, "little")

    def _write_stubs(self) -> None:
        """Nothing to do: stubs are written when a location is made."""

    def _describe(self, stub_text: int) -> None:
        super()._describe(stub_text)
        at, native = ctypes.addressof, self._native
        native.originals, native.patched = at(self._originals), at(self._patched)
        native.owned, native.inner, native.bodies = at(self._owned), at(self._inner), at(self._bodies)

    @property
    def trapping(self) -> int:
        return self._trapping

    @property
    def everything(self) -> int:
        return sum(1 << index for index in self.mechanisms)

    def close(self) -> None:
        super().close()
        hooks.own_code.remove(self._space.__contains__)
        self._space.close()
