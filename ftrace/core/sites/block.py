"""The sites of one module: the probe list that each runs, its stub, and batched changes.

A change: verify the sites -> swap their lists -> write missing stubs -> poke -> synchronise the cores -> read back.
"""

from __future__ import annotations

import ctypes
import errno
import logging
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ftrace.core.glob import PatternKind, bits_of, mask_of, select
from ftrace.core.sites.lists import Stubs
from ftrace.core.sites.refusals import code_refusals, named_refusal
from ftrace.core.sites.trapping import refuse_blocked_traps
from ftrace.core.unwind.unwinding import describe_stubs
from ftrace.hit.poke import STAGES
from ftrace.hit.text_poke import Block, Move
from ftrace.hit.x86_64 import frames, stubs
from sandbox.memory import mappings, pages
from sandbox.process.once import cached_property
from sandbox.symbols.demangling import MANGLED
from sandbox.symbols.perfmap import perf_map
from sandbox.x86_64.encoding import INT3, NOP5, jump
from sandbox.x86_64.stack_movers import StackMovers

if TYPE_CHECKING:
    from ftrace.core.glob import Pattern
    from ftrace.core.sites.lists import ListCache, ListRecord
    from sandbox.loading.module import Module
    from sandbox.symbols.table import Symbol

log = logging.getLogger("ftrace")

Read = Callable[[int, int], bytes]
"""(address, size) -> the text there as it would be without probes."""

Change = Callable[["ListRecord"], "ListRecord"]
"""From a site's present list to its new one."""

_MANY = 64
"""From this number of functions on, all their text is read at once."""
_AT_ONCE = 2048
"""Functions whose code is in memory at the same time while it is examined."""
_SPARSE = 16_384
"""Bytes of text for each function from which on most of it would be read in vain."""
_HEAD = 64
"""Bytes of a function that are read even if it is shorter."""
_STRADDLES = bytes(byte & 7 > 8 - stubs.SITE_SIZE for byte in range(256))
"""Whether a site crosses two aligned words, by the lowest byte of its address."""


class SiteMismatch(OSError):
    """A site holds unexpected bytes: another party has patched it. `index`: its position in the block.

    `found` and `expected`: its bytes. `written`: whether this was found after writing the site; otherwise nothing was written.
    """

    def __init__(self, block: SiteBlock, index: int, found: bytes, written: bool) -> None:
        holds = "was written, but holds" if written else "holds"
        theirs = (
            "a debugger's breakpoint: delete it"
            if found[0] == INT3
            else "another tool has patched it: let it undo that"
        )
        place = f"the entry of {block.names[index]} at {block.addresses[index]:#x}"
        super().__init__(errno.EINVAL, f"{place} {holds} {found.hex(':')} ({theirs} first)")
        self.block = block
        self.index = index
        self.found = found
        self.expected = block.expected(index)
        self.written = written


class SiteBlock:
    """The sites of a module, ascending by address; position i always means the i-th of them."""

    module: Module | None = None
    """The module that contains them, if it is a module of the sandbox."""
    _routines = ("ftrace_exit_full", "ftrace_entry_slow")
    """The routines whose addresses precede the slots, for the stubs."""
    _hooked_to = frames.HOOKED_TO

    def __init__(
        self, name: str, functions: list[Symbol], addresses: array[int], text: mappings.TextMapping, lists: ListCache,
        read: Read, kind: Stubs = Stubs.AT_ENTRY,
    ) -> None:  # fmt: skip
        self.name = name
        """Name of the module or library."""
        self.addresses = addresses
        self.functions = functions
        self.names: list[str] = [symbol.name for symbol in functions]
        self.unpatchable = 0
        """Mask of the sites that cannot be patched."""
        self.unhookable = 0
        """Mask of the sites whose function's return is never hooked: it returns twice, on another stack, or reads its return
        address. Complete for sites that `examine_returns` has been called for.
        """
        self._read = read
        self._examined = 0
        self._returns: dict[int, str] = {}
        self._movers = StackMovers(read)
        """For examined functions: why their returns cannot be hooked; '' if they can."""
        self._runtime = lists.runtime
        self._lists = lists
        self._empty = lists.get((), kind)
        self._text = text
        self._off = False
        self._slots: ctypes.Array[ctypes.c_uint64] | None = None
        self._stub_text: mappings.TextMapping | None = None

    @classmethod
    def of_module(cls, module: Module, lists: ListCache, read: Read) -> SiteBlock:
        """The stubs of a loaded module. `read`: reads its text."""
        kind = Stubs.AFTER_PROLOGUE if module.site_kind == "mcount" else Stubs.AT_ENTRY
        block = cls(module.name, module.site_functions, module.sites, _text_of(module), lists, read, kind)
        block.module = module
        block.unpatchable = block._mask_of(module.scratch_taken)
        block.unhookable = block._mask_of(module.functions_with("returns_twice")) | block.refused_by_name
        if not module.reads_frame:
            block._examined = block.everything
        return block

    def __len__(self) -> int:
        return len(self.addresses)

    def _mask_of(self, names: frozenset[str]) -> int:
        return mask_of([name in names for name in self.names]) if names else 0

    @property
    def refused_by_name(self) -> int:
        """Mask of the sites of functions whose returns are never hooked because of their names."""
        return mask_of([bool(named_refusal(name)) for name in self.names])

    def reason(self, index: int) -> str:
        """Why the site at `index` cannot be patched, or its function's return cannot be hooked; '' if both can."""
        if self.unpatchable >> index & 1:
            return "r10 and r11 are not free at its entry"
        if self._returns.get(index):
            return self._returns[index]
        if self.unhookable >> index & 1:
            return "it returns twice or on another stack, so its return cannot be hooked"
        return ""

    # -- returns that cannot be hooked --------------------------------------------------------------------------

    def examine_returns(self, mask: int) -> None:
        """Find the functions among these sites whose returns cannot be hooked."""
        mask &= ~self._examined
        if not mask:
            return
        reasons = {index: why for index in bits_of(mask) if (why := self._known_refusal(index))}
        rest = [index for index in bits_of(mask) if index not in reasons]
        for at in range(0, len(rest), _AT_ONCE):
            reasons |= self._refused_by_code(rest[at : at + _AT_ONCE])
        self._returns.update(reasons)
        self._examined |= mask
        self.unhookable |= sum(1 << index for index in reasons)

    def _refused_by_code(self, indexes: Sequence[int]) -> dict[int, str]:
        code_at = self._reader_of(indexes)
        functions = [self.functions[index] for index in indexes]
        codes = [code_at(function.address, function.size) for function in functions]
        starts = [function.address for function in functions]
        refusals = code_refusals(self._runtime.image, codes, starts)
        examined = zip(indexes, codes, starts, refusals, strict=True)
        found = {index: why or self._movers.called_by(code, at, *self.bounds) for index, code, at, why in examined}
        return {index: why for index, why in found.items() if why}

    def forget_return(self, index: int) -> None:
        """Its code has changed: examine it again."""
        self._returns.pop(index, None)
        self._examined &= ~(1 << index)
        self.unhookable = self.unhookable & ~(1 << index) | self.refused_by_name & 1 << index

    def _known_refusal(self, index: int) -> str:
        """Why its return cannot be hooked, as far as known without its code; '' if nothing is known against it."""
        return named_refusal(self.names[index])

    def _reader_of(self, indexes: Sequence[int]) -> Read:
        """A function that reads the code of these functions. For many that are close together, all their text is read at once."""
        if len(indexes) < _MANY:
            return self._read
        functions = [self.functions[index] for index in indexes]
        start = min(function.address for function in functions)
        end = min(max(function.address + max(function.size, _HEAD) for function in functions), self._text.end)
        if end - start > _SPARSE * len(functions):
            return self._read
        text = self._read(start, end - start)
        return lambda address, size: text[address - start : address - start + size]

    def is_made(self, _index: int) -> bool:
        """Whether the site is a location already. With compiled stubs it always is."""
        return True

    def is_live(self, _index: int) -> bool:
        """Whether only ftrace may write the site. With compiled stubs that is always so."""
        return True

    def text_of(self, _index: int) -> bytes:
        """The bytes of the site while it has no probes."""
        return NOP5

    @cached_property
    def positions(self) -> dict[str, int]:
        """The position of the first function with each name."""
        return {name: index for index, name in reversed([*enumerate(self.names)])}

    @cached_property
    def _repeated(self) -> frozenset[str]:
        """The names that several functions have."""
        return frozenset(name for name, count in Counter(self.names).items() if count > 1)

    @cached_property
    def _has_mangled(self) -> bool:
        """Whether a name has another form that a pattern may match: in C++ and Rust."""
        return any(name.startswith(MANGLED) for name in self.names)

    def select(self, pattern: Pattern) -> int:
        """The mask of the sites whose function matches. An exact name is looked up, not compared with every other."""
        if (
            pattern.kind is PatternKind.FULL
            and pattern.search not in self._repeated
            and pattern.search in self.positions
        ):
            return 1 << self.positions[pattern.search]
        return select(pattern, self.names) if self._has_mangled else pattern.select(self.names)

    @property
    def everything(self) -> int:
        """The mask of all sites."""
        return (1 << len(self)) - 1

    @property
    def stub_text(self) -> mappings.TextMapping | None:
        """The memory of the stubs, which hooked calls return to; None until a site is patched for the first time."""
        return self._stub_text

    def list_at(self, index: int) -> ListRecord:
        """The list that the site at `index` runs."""
        return self._lists.at(self._slots[index]) if self._slots is not None else self._empty

    def apply(self, mask: int, change: Change) -> None:
        """Give each site in `mask` the list `change(list)`, and patch it accordingly: a jump to its stub, or a NOP.

        Holds the text mutex. If a site holds unexpected bytes, this raises SiteMismatch and changes nothing. The caller has to
        quiesce before it frees anything.
        """
        with mappings.text_mutex:
            self.check(mask)
            if self._relist(change):
                self._write_stubs()
            self._poke()

    def check(self, mask: int) -> None:
        """Raise what `apply` would raise before changing anything."""
        with mappings.text_mutex:
            if self._slots is None:
                self._prepare()
            self._choose(mask)
            self._check_signals(mask)

    def abandon(self, change: Change) -> None:
        """Give each site the list `change(list)` without reading or writing its text, which is not mapped any more."""
        with mappings.text_mutex:
            if self._slots is None:
                return
            live = [index for index, address in enumerate(self._slots) if address != self._empty.address]
            for position, index in enumerate(live):
                self._chosen[position] = index
            self._native.nr_chosen = len(live)
            self._relist(change)

    @property
    def bounds(self) -> tuple[int, int]:
        """The addresses of its text: start and end."""
        return self._text.base, self._text.end

    def is_mapped(self) -> bool:
        """Whether its text is still there. That of a module always is."""
        return True

    def switch(self, on: bool) -> None:
        """Off: make every site a NOP. On: patch the sites that have probes again."""
        with mappings.text_mutex:
            self._off = not on
            if self._slots is not None:
                self._native.off = self._off
                self.check(self.everything)
                self._poke()

    # -- set up -------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Allocate the slots, and memory near the text for all stubs."""
        count = len(self)
        near = (self._text.base, self._text.end)
        where = self._stub_text = mappings.allocate_text(near, count * stubs.STUB_SIZE, f"{self.name}-stubs")
        reach = (min(near[0], where.base), max(near[1], where.end))
        self._pointers = mappings.reserve(16 + count * 8, reach)
        pointers = (ctypes.c_uint64 * 2).from_address(self._pointers)
        pointers[:] = list(map(self._runtime.image.address, self._routines))
        self._slots = (ctypes.c_uint64 * count).from_address(self._pointers + 16)
        self._slots[:] = [self._empty.address] * count
        self._describe(where.base)
        perf_map.add(where.base, where.size, f"stubs [{self.name}]")
        swaps = self._empty.stubs is Stubs.AFTER_PROLOGUE
        place = frames.Stubs(where.base, where.size, swaps, self._hooked_to)
        self._frames = describe_stubs(self._runtime.slab, self.name, place)

    def _template_bytes(self) -> bytes:
        template = self._runtime.template
        return stubs.swapping(template) if self._empty.stubs is Stubs.AFTER_PROLOGUE else template

    def _describe(self, stub_text: int) -> None:
        """Make the native Block, with the arrays that the steps of a change use."""
        count = len(self)
        self._stubs = (ctypes.c_uint64 * count)()
        self._chosen = (ctypes.c_uint32 * count)()
        self._bits = ctypes.create_string_buffer((count + 63) // 64 * 8)
        self._site_array = (ctypes.c_uint64 * count).from_buffer(self.addresses)
        self._template = ctypes.create_string_buffer(self._template_bytes(), stubs.STUB_SIZE)
        at = ctypes.addressof
        self._native = Block.ctypes(
            count=count, sites=at(self._site_array), slots=self._pointers + 16, stubs=at(self._stubs),
            bits=at(self._bits), chosen=at(self._chosen),
            stub_text=stub_text, template=at(self._template), pointers=self._pointers,
            empty=self._empty.address, off=self._off,
        )  # fmt: skip
        self._native_address = ctypes.addressof(self._native)

    def _call(self, function: str, *arguments: int) -> int:
        """Call a function of ftrace.hit.text_poke on this block."""
        return self._runtime.image.call(function, self._native_address, *arguments)

    # -- the steps of a change ----------------------------------------------------------------------------------

    def _choose(self, mask: int) -> None:
        """Choose the sites for the following steps, and verify them."""
        self._bits.raw = mask.to_bytes(len(self._bits), "little")
        index = self._call("choose")
        if index >= 0:
            raise self._mismatch(index, written=False)

    @cached_property
    def trapping(self) -> int:
        """The mask of sites that are patched through breakpoints: those that cross two aligned words."""
        return mask_of(bytes(memoryview(self.addresses).cast("B")[::8]).translate(_STRADDLES))

    def _check_signals(self, mask: int) -> None:
        """Raise OSError(EBUSY) while a thread that may hit a breakpoint blocks SIGTRAP."""
        if mask if self._runtime.force_breakpoints else mask & self.trapping:
            refuse_blocked_traps(self._runtime)

    def expected(self, index: int) -> bytes:
        """The bytes that the site at `index` holds unless another party has written there."""
        if self._off or self.list_at(index) is self._empty:
            return self.text_of(index)
        return self._patched_text(index)

    def _patched_text(self, index: int) -> bytes:
        return jump(self.addresses[index], self._stubs[index])

    def _mismatch(self, index: int, written: bool) -> SiteMismatch:
        found = ctypes.string_at(self.addresses[index], stubs.SITE_SIZE)
        return SiteMismatch(self, index, found, written)

    def _relist(self, change: Change) -> int:
        """Swap the lists of all chosen sites, or of none if one cannot be made. Returns how many sites have no stub yet."""
        moves = (Move.ctypes * len(self._lists))()
        count = self._call("distinct_lists", ctypes.addressof(moves))
        for move in moves[:count]:
            move.new = change(self._lists.at(move.old)).address
        missing = self._call("relist", ctypes.addressof(moves))
        for move in moves[:count]:
            self._lists.moved(move.old, move.new, move.sites)
        return missing

    def _write_stubs(self) -> None:
        assert self._stub_text is not None
        with self._stub_text.writable() as delta:
            self._call("emit_stubs", delta)

    def _poke(self) -> None:
        if not self._call("keep_changed"):
            return
        forced = self._runtime.force_breakpoints
        with self._text.writable() as delta:
            if self._call("poke_words", delta, forced):
                self._poke_with_breakpoints(delta, forced)
            else:
                pages.sync_cores()
        self._rewrite_copied_pages()

    def _rewrite_copied_pages(self) -> None:
        """Write pages that a debugger has written to through the kernel: they are copies, which the alias does not reach."""
        last = -1
        while (index := self._call("read_back")) >= 0:
            if index == last:
                raise self._mismatch(index, written=True)
            last = index
            mappings.write_through_kernel(self.addresses[index], self.expected(index))
            pages.sync_cores()

    def _poke_with_breakpoints(self, delta: int, forced: int) -> None:
        poking, batches = map(self._runtime.image.variable, ("text_poking", "text_poke_batches"))
        poking.value = self._native_address
        batches.value += 1
        try:
            for stage in STAGES:
                self._call("poke_step", delta, stage, forced)
                pages.sync_cores()
        finally:
            poking.value = 0
            batches.value += 1

    def close(self) -> None:
        """Free the stubs and slots of an unloaded module."""
        if self._stub_text is not None:
            self._frames.withdraw()
            self._stub_text.unmap()
            mappings.release(self._pointers, 16 + len(self) * 8)
            self._stub_text = self._slots = None


def _text_of(module: Module) -> mappings.TextMapping:
    """The mapping with the module's sites."""
    first, last = module.sites[0], module.sites[-1]
    for text in module.texts:
        if first in text and last in text:
            return text
    raise ValueError(f"the stubs of module {module.name!r} do not lie in one text mapping")
