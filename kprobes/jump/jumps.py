"""The jump of one place: its detour, its target, its bytes, and how they are written while other threads run the code.

Detours and landings live as long as the text they belong to, since a thread may be executing them at any time. A place that
is optimised again reuses its own.
"""

from __future__ import annotations

import ctypes
import itertools
import operator
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ftrace.core.tracer import tracer
from ftrace.hit.poke import BREAKPOINTS, HEADS, STAGES
from ftrace.hit.x86_64.stubs import SITE_SIZE
from kprobes.breakpoint import patching
from kprobes.breakpoint.detours import Detour
from kprobes.fast.return_stubs import call_through, hooked_point, update_fast_returns
from kprobes.hit.runtime import kprobe_runtime
from kprobes.jump.functions import function_at
from kprobes.jump.optinsns import cache_of
from kprobes.jump.safety import Function, Refusal, absorbable, movable, own_refusal
from kprobes.place import State, places
from sandbox.memory.landings import MOST_PAGES
from sandbox.x86_64.encoding import JMP32_SIZE
from sandbox.x86_64.instruction import Flow
from sandbox.x86_64.puns import Window, borrowed, jump_bytes, wider_windows, windows

if TYPE_CHECKING:
    from kprobes.jump.optinsns import OptinsnCache
    from kprobes.place import Place
    from sandbox.x86_64.instruction import Instruction


MOST_BORROWED = 4
LONGEST = 8
"""The longest jump with redundant prefixes, in bytes, including the bytes it borrows."""
_CONTINUES = (Flow.NEXT, Flow.CONDITIONAL)
"""Instructions after whose copies the next copy is run."""
_NO_PLACE = Refusal("no place to land", "every address that a jump can reach, given the bytes after it, is taken")
_NO_MAPPINGS = Refusal("mappings", f"there are {MOST_PAGES} pages for landings; that is the maximum")

Read = Callable[[int, int], bytes]


def live_text(address: int, size: int) -> bytes:
    """The bytes that are in the text now."""
    return ctypes.string_at(address, size)


class Jump:
    """The jump of one place. `code`: the bytes to write, once `aim` has found them. `inner`: offsets in it that are int3.

    `former`: the jump that it replaces; threads may still be executing that one's detours.
    """

    def __init__(self, place: Place, function: Function, cache: OptinsnCache, former: Jump | None = None) -> None:
        assert place.insn is not None
        self.place = place
        self.code = b""
        self.inner: tuple[int, ...] = ()
        self._insn = place.insn
        self._function = function
        self._cache = cache
        self._borrowed = b""
        self._landings: list[tuple[int, int]] = []
        self._hooked = hooked_point(place)
        """The address to which its detours send calls whose return has been hooked."""
        self._detours: dict[int, Detour] = {}
        self._copied = self._first_detour()
        self._former = former

    @property
    def address(self) -> int:
        """Address of the probed instruction."""
        return self.place.address

    @property
    def is_outdated(self) -> bool:
        """Whether it was made before the place had a return stub, so that its detours do not lead there."""
        return self._hooked != hooked_point(self.place)

    @property
    def copy(self) -> int:
        """Address of the copied instruction, after the call of the handlers."""
        return self._detours[self._copied].copies[0]

    @property
    def covered(self) -> bytes:
        """The original bytes under the jump."""
        offset = self.address - self._function.start
        return self._function.code[offset : offset + len(self.code)]

    def withdraw(self) -> None:
        """The code is about to be freed: remove the entries that lead from here to a record."""
        for detour in self.detours:
            for copy in detour.copies:
                kprobe_runtime().table.set(copy, 0)

    def choose_routine(self) -> None:
        """Let the detours call the fastest routine for the place's present children; any of them would be correct."""
        if self._hooked:
            call_through(self.place, self.copy)
        routine = self._cache.routine(self.place, self._function, self._hooked)
        for detour in self._detours.values():
            detour.set_routine(routine)
        update_fast_returns(self.place)

    @property
    def detours(self) -> list[Detour]:
        """Its detours, and those of the jump that it replaces."""
        return [*(self._former.detours if self._former else ()), *self._detours.values()]

    # -- where it goes ------------------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """The address after the jump, including its borrowed bytes; before it is aimed, after a jump without prefixes."""
        return max(self.address + len(self.code) + len(self._borrowed), self.address + JMP32_SIZE)

    def is_aimed(self, read: Read = live_text) -> bool:
        """Whether `code` would still lead to the detour, given the bytes that follow now and those it absorbs."""
        if not self.code or any(_in_use(self.address + offset) for offset in self.inner):
            return False
        return read(self.address + len(self.code), len(self._borrowed)) == self._borrowed

    def aim(self, read: Read = live_text) -> Refusal | None:
        """Find `code`, given the bytes after the instruction as `read` returns them. Returns the rule that forbids a jump."""
        self.code, self._borrowed, self.inner = b"", b"", ()
        length = self._insn.length
        if length >= JMP32_SIZE:
            self._set(Window(0, 0, 0), self._detours[1].entry, length, 1, read)
            return None
        return self._pun(read) or None

    def _pun(self, read: Read) -> Refusal | None:
        refusal = self._borrowing(self._insn.end)
        if refusal is None:
            found = windows(self.address, self._insn.length, self._following(self._insn.end, read, MOST_BORROWED))
            most = max((window.prefixes for window in found), default=0)
            if most and not self._may_reach(most):
                found = [window for window in found if not window.prefixes or self._may_reach(window.prefixes)]
            if self._land(found, [self._insn], read):
                return None
            refusal = _NO_MAPPINGS if self._cache.landings.full else _NO_PLACE
        return None if self._absorb(read) else refusal

    def _absorb(self, read: Read) -> bool:
        """Try again with the following instructions, as long as they may be absorbed."""
        insns = [self._insn]
        while insns[-1].end < self.address + JMP32_SIZE:
            next_insn = absorbable(self._function, self.address, insns[-1].end)
            if next_insn is None or _in_use(next_insn.address):
                return False
            insns.append(next_insn)
            if self._borrowing(next_insn.end) is None:
                choices = wider_windows(
                    self.address, [i.length for i in insns], self._following(next_insn.end, read, 0)
                )
                if self._land(list(choices), insns, read):
                    return True
        return False

    def _first_detour(self) -> int:
        """Make the detour that a jump most likely needs; how many instructions it has copies of.

        Raises OverflowError if something is out of reach.
        """
        copied = self._make_detour([self._insn, *self._lent(self._insn, 0)])
        if not copied:
            self._detours[1] = self._cache.detour(self.place, [self._insn], self._function, self._hooked)
        return copied or 1

    def _make_detour(self, insns: Sequence[Instruction]) -> int:
        """Make one with copies of these, if there is none; their number, or 0 if something is out of reach."""
        if len(insns) not in self._detours:
            try:
                self._detours[len(insns)] = self._cache.detour(self.place, insns, self._function, self._hooked)
            except OverflowError:
                return 0
        return len(insns)

    def _lent(self, last: Instruction, prefixes: int) -> Iterator[Instruction]:
        """The instructions after `last` whose bytes a jump with so many prefixes borrows, as far as their copies may be run.

        A CPU that saw the jump expects one where these bytes are fetched, and loses 20 cycles whenever they are run there.
        """
        end = self.address + prefixes + JMP32_SIZE
        while last.end < end and last.flow in _CONTINUES and not _in_use(last.end):
            following = movable(self._function, last.end)
            if following is None:
                return
            yield following
            last = following

    def _borrowing(self, end: int) -> Refusal | None:
        """The rule that forbids borrowing the bytes of a jump from `end` on, if there is one."""
        found = ftrace_site_in(end, self.address + JMP32_SIZE)
        return Refusal("ftrace location", f"the bytes after the instruction are {found}") if found else None

    def _may_reach(self, prefixes: int) -> bool:
        """Whether a jump with prefixes may borrow the additional bytes: none of them is probed or patched."""
        low, high = self.address + JMP32_SIZE, self.address + prefixes + JMP32_SIZE
        return ftrace_site_in(low, high) is None and not any(_in_use(address) for address in range(low, high))

    def _following(self, end: int, read: Read, least: int) -> bytes:
        wanted = max(borrowed(end - self.address), least)
        return read(end, min(wanted, self.place.text.end - end))

    def _land(self, choices: Sequence[Window], insns: Sequence[Instruction], read: Read) -> bool:
        """Aim at a detour of these instructions, of which the jump absorbs all but the first."""
        alike = itertools.groupby(choices, key=operator.attrgetter("prefixes"))
        return any(self._land_with(prefixes, list(some), insns, read) for prefixes, some in alike)

    def _land_with(self, prefixes: int, choices: list[Window], insns: Sequence[Instruction], read: Read) -> bool:
        copied = self._make_detour([*insns, *self._lent(insns[-1], prefixes)]) or self._make_detour(insns)
        if not copied:
            return False
        own, target = insns[-1].end - self.address, self._detours[copied].entry
        for window in choices:
            for landing, to in self._landings:
                if to == target and window.low <= landing < window.high:
                    self._set(window, landing, own, copied, read)
                    return True
        found = self._cache.landings.take(choices, target)
        if found is None:
            return False
        self._landings.append((found[1], target))
        self._set(*found, own, copied, read)
        return True

    def _set(self, window: Window, target: int, own: int, copied: int, read: Read) -> None:
        self.code = jump_bytes(self.address, own, window.prefixes, target)
        self._copied = copied
        end = self.address + len(self.code)
        self._borrowed = read(end, max(self.address + window.prefixes + JMP32_SIZE - end, 0))
        absorbed = self._detours[copied].offsets[1 : window.absorbed + 1]
        self.inner = tuple(offset for offset in absorbed if offset < JMP32_SIZE)


def prepare_jump(place: Place, former: Jump | None) -> Jump | Refusal:
    """A jump for a place, with its detour; or the rule that forbids one. Raises OSError(ENOMEM).

    `former`: the jump that it will replace, if any.
    """
    assert place.insn is not None
    function = function_at(place.symbol.address, place.symbol.end)
    refusal = own_refusal(function, place.insn)
    if refusal is not None:
        return refusal
    try:
        return Jump(place, function, cache_of(place.text), former)
    except OverflowError as error:
        return Refusal("out of reach", str(error))


def _in_use(address: int) -> bool:
    place = places.get(address)
    return place is not None and place.state is not State.OFF


def ftrace_site_in(low: int, high: int) -> str | None:
    """A description of an ftrace location in [low, high); None if there is none."""
    for block in tracer().table.patched_blocks() if low < high else ():
        index = bisect_left(block.addresses, low - SITE_SIZE + 1)
        if index < len(block.addresses) and block.addresses[index] < high and block.is_live(index):
            return f"the ftrace location {block.addresses[index]:#x}"
    return None


def write_jumps(jumps: Sequence[Jump]) -> None:
    """Turn breakpoints into jumps. `jumps`: by descending address.

    A jump that borrows bytes of another gets its first byte after every core has seen the other one. Threads that arrive
    meanwhile are sent to the copies.
    """
    _poke(jumps, [jump.code for jump in jumps], one_by_one=HEADS)


def restore(jumps: Sequence[Jump]) -> None:
    """Turn jumps into breakpoints. `jumps`: by ascending address, so that a borrower precedes its lender."""
    _poke(jumps, [patching.INT3 + jump.covered[1:] for jump in jumps], one_by_one=BREAKPOINTS)


def _poke(jumps: Sequence[Jump], texts: Sequence[bytes], one_by_one: int) -> None:
    """Write `texts` over the jumps. In the stage `one_by_one`, jumps that share bytes are written one after the other."""
    pokes = patching.Pokes(
        (jump.place.text, jump.address, text, (0, *jump.inner)) for jump, text in zip(jumps, texts, strict=True)
    )
    for stage in STAGES:
        for first, end in _apart(jumps) if stage == one_by_one else [(0, len(jumps))]:
            pokes.run(stage, first, end)
            patching.sync()


def _apart(jumps: Sequence[Jump]) -> Iterator[tuple[int, int]]:
    """Ranges of jumps such that in none of them a jump may have borrowed its neighbour's bytes."""
    first = 0
    for end in range(1, len(jumps)):
        if abs(jumps[end].address - jumps[end - 1].address) < JMP32_SIZE:
            yield first, end
            first = end
    yield first, len(jumps)
