"""Landings of punned jumps: five or fourteen bytes that lead to the detour, on pages placed in the jumps' windows.

Pages that exist are used first. Pages for small windows, which have little choice, share memory: several addresses show the
same page of the file, at most one landing at each of its bytes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

from sandbox.memory import mappings as memory
from sandbox.memory.address_space import address_space
from sandbox.memory.mappings import PAGE
from sandbox.memory.scattered import ScatteredText
from sandbox.x86_64.encoding import JMP32_SIZE, jump

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sandbox.memory.address_space import AddressSpace
    from sandbox.x86_64.puns import Window

FAR_SIZE = 14
_FAR_JUMP = bytes.fromhex("ff2500000000")
MOST_PAGES = 40_000
"""How many pages there may be in all, of the 65,530 mappings that Linux allows a process by default."""
_TRIED = 8
_SHARED = 24
_WIDE = PAGE


def _run(used: int, low: int, high: int, size: int) -> int | None:
    """The lowest offset in [low, high) of `size` bytes that are free by the bit mask `used`; they end within the page."""
    high = min(high, PAGE - size + 1)
    if low >= high:
        return None
    starts = ~(used >> low) & (1 << high - low + size - 1) - 1
    covered = 1
    while covered < size and starts:
        step = min(covered, size - covered)
        starts &= starts >> step
        covered += step
    return low + (starts & -starts).bit_length() - 1 if starts else None


_texts: dict[str, tuple[ScatteredText, list[LandingSpace]]] = {}
"""The pages of all spaces with the same name, and these spaces: each text takes a descriptor, and there may be many spaces."""


class LandingSpace:
    """The landings of one text mapping. `keep_open` opens their pages for writing, until its owner's batch ends."""

    _in_all = 0
    """Pages of all spaces."""

    def __init__(self, name: str, keep_open: Callable[[ScatteredText], None]) -> None:
        with memory.text_mutex:
            if name not in _texts:
                _texts[name] = ScatteredText(f"{name}-landings"), []
            self.text, users = _texts[name]
            users.append(self)
        self._name = name
        self._keep_open = keep_open
        self._used: dict[int, int] = {}
        self._pages: list[int] = []
        self._wide: list[int] = []
        self._shared: list[int] = []
        self._gaps: AddressSpace | None = None
        self.count = 0

    def __len__(self) -> int:
        """The number of its pages that are mapped."""
        return len(self._pages)

    def refresh(self) -> None:
        """Look at the address space again, since others may have mapped something."""
        self._gaps = None

    @property
    def gaps(self) -> AddressSpace:
        """The free space."""
        if self._gaps is None:
            self._gaps = address_space()
        return self._gaps

    @property
    def full(self) -> bool:
        """Whether there may be no more pages, in all spaces together."""
        return LandingSpace._in_all >= MOST_PAGES

    def take(self, windows: Sequence[Window], target: int) -> tuple[Window, int] | None:
        """Write a landing that leads to `target` into one of the windows; the window and its address. None if none fits."""
        for choose, candidates in ((self._on_page, self._with_page), (self._on_new_page, self._with_gap)):
            for window in candidates(windows):
                size = _size(window, target)
                address = choose(window, size)
                if address is not None:
                    self._write(address, size, target)
                    return window, address
        return None

    def _with_page(self, windows: Sequence[Window]) -> Iterator[Window]:
        """The windows that contain an existing page, as few do."""
        narrow, wide = self._pages, self._wide
        for window in windows:
            _prefixes, low, high, _absorbed = window
            pages = wide if high - low > _WIDE else narrow
            last = bisect_left(pages, high)
            if last and pages[last - 1] >= low & -PAGE:
                yield window

    def _with_gap(self, windows: Sequence[Window]) -> Iterator[Window]:
        """The windows in which a page may be placed, or a landing across its end; fast for a window within a page."""
        free = self.gaps.free
        for window in windows:
            _prefixes, low, high, _absorbed = window
            first = low & -PAGE
            if first != (high + FAR_SIZE) & -PAGE or free(first):
                yield window

    def _write(self, address: int, size: int, target: int) -> None:
        code = jump(address, target) if size == JMP32_SIZE else _FAR_JUMP + target.to_bytes(8, "little")
        for start, end in _by_page(address, address + size):
            page = self.text.page_at(start)
            assert page is not None
            self._used[page] |= (1 << end - start) - 1 << start % PAGE
        self._keep_open(self.text)
        self.text.store(address, code)
        self.count += 1

    def _on_page(self, window: Window, size: int) -> int | None:
        """Space on an existing page."""
        _prefixes, low, high, _absorbed = window
        pages = self._wide if high - low > _WIDE else self._pages
        first, last = bisect_left(pages, low & -PAGE), bisect_left(pages, high)
        for page in reversed(pages[max(first, last - _TRIED) : last]):
            number = self.text.page_at(page)
            assert number is not None
            offset = _run(self._used[number], max(low - page, 0), min(high - page, PAGE), size)
            if offset is not None:
                return page + offset
        return None

    def _on_new_page(self, window: Window, size: int) -> int | None:
        """Space on a page that has become free."""
        if self.full:
            return None
        if window.high - window.low > _WIDE:
            return self._on_wide(window)
        page = window.low & -PAGE
        while page < window.high:
            low, high = max(window.low - page, 0), min(window.high - page, PAGE)
            if self.gaps.free(page):
                number, offset = self._shareable(low, high, size)
                if offset is not None and self._place(page, number):
                    return page + offset
            page += PAGE
        return self._across(window, size)

    def _on_wide(self, window: Window) -> int | None:
        page = self.gaps.first_free(window.low, window.high)
        while page is not None:
            if self._place(page, self._fresh()):
                insort(self._wide, page)
                return page
            page = self.gaps.first_free(page + PAGE, window.high)
        return None

    def _shareable(self, low: int, high: int, size: int) -> tuple[int, int | None]:
        """A file page that is free at these offsets: one that is shared already, or a new one."""
        for number in self._shared[-_SHARED:]:
            offset = _run(self._used[number], low, high, size)
            if offset is not None:
                return number, offset
        if _run(0, low, high, size) is None:
            return 0, None
        self._shared.append(self._fresh())
        return self._shared[-1], _run(0, low, high, size)

    def _across(self, window: Window, size: int) -> int | None:
        """A landing over the end of a page, where there is no other choice."""
        end = (window.high + size - 2) & -PAGE
        for address in range(max(window.low, window.high - size, end - size + 1), min(window.high, end)):
            if self._free_bytes(address, size) and self._place_both(end - PAGE, end):
                return address
        return None

    def _page_at(self, address: int) -> int | None:
        """The number of the page at an address, if it is one of this space's."""
        number = self.text.page_at(address)
        return number if number in self._used else None

    def _free_bytes(self, address: int, size: int) -> bool:
        for at in range(address, address + size):
            page = self._page_at(at)
            if page is None and not self.gaps.free(at & -PAGE):
                return False
            if page is not None and self._used[page] >> at % PAGE & 1:
                return False
        return True

    def _place_both(self, first: int, second: int) -> bool:
        return all(self._page_at(page) is not None or self._place(page, self._fresh()) for page in (first, second))

    def _fresh(self) -> int:
        number = self.text.new_page()
        self._used[number] = 0
        return number

    def _place(self, page: int, number: int) -> bool:
        """Map a file page at an address; False if somebody else was there first."""
        self.gaps.take(page)
        try:
            self.text.place(page, number)
        except FileExistsError:
            return False
        insort(self._pages, page)
        LandingSpace._in_all += 1
        return True

    def close(self) -> None:
        """Free everything; no thread can be in the text any more."""
        with memory.text_mutex:
            LandingSpace._in_all -= len(self._pages)
            self.text.remove(self._pages, self._used)
            users = _texts[self._name][1]
            users.remove(self)
            if not users:
                del _texts[self._name]
                self.text.unmap()


def _by_page(start: int, end: int) -> Sequence[tuple[int, int]]:
    """[start, end), which is less than a page, page by page."""
    stop = (start | PAGE - 1) + 1
    return ((start, end),) if end <= stop else ((start, stop), (stop, end))


def _size(window: Window, target: int) -> int:
    """The size of a landing: that of a rel32 jump if `target` is in reach from all of the window."""
    near = target - memory.REACH < window.low and window.high < target + memory.REACH
    return JMP32_SIZE if near else FAR_SIZE
