"""Functions that JIT compilers declare in the perf map of this process, as images called `perf`.

An image is a run of pages: functions that share a page are in one image, since pages are made patchable as a whole.
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from sandbox.images.jit_image import JitImage, patched
from sandbox.images.jit_objects import JitObject
from sandbox.loading.module import modules
from sandbox.memory import mappings
from sandbox.symbols.perfmap import Declared, declarations
from sandbox.symbols.table import Symbol, sorted_symbols, symbol_table

_NAME = "perf"
_NO_FILE = ("/memfd:", "/dev/zero", "[anon:")
"""How paths of mappings begin that are not of files: those of the latter have names of their own."""


class DeclaredImage(JitImage):
    """Functions on neighbouring pages. More may be declared there while the image is in use."""

    name = _NAME
    names = frozenset({_NAME})

    def declare(self, functions: Iterable[Declared]) -> None:
        """Have exactly these functions, which are on the pages of the image. With `text_mutex`; it has been patched."""
        symbols = _symbols(functions)
        if symbols == self.object.functions:
            return
        self.object = self.object._replace(functions=symbols)
        symbol_table.remove(self._key)
        symbol_table.add(self._key, symbols, is_own=True)

    def _make_patchable(self) -> None:
        if any(self.shares_pages_with(other.bounds) for other in _patched()):
            where = f"code of [{self.name}] at {self.bounds[0]:#x} to {self.bounds[1]:#x}"
            raise OSError(errno.EAGAIN, f"new functions were declared in {where} during the scan; attach again")
        super()._make_patchable()

    @property
    def bounds(self) -> tuple[int, int]:
        """Its first address, and the one after its last."""
        return self.object.text[0]

    def shares_pages_with(self, span: tuple[int, int]) -> bool:
        """Whether code in `span` (start, end) is on its pages."""
        low, high = _pages(span)
        return low < self.bounds[1] and self.bounds[0] < high

    def holds(self, line: Declared) -> bool:
        """Whether all of a function is in the image."""
        return self.bounds[0] <= line.address and line.end <= self.bounds[1]


class DeclaredImages:
    """The functions declared in the perf map that are executable code of no module and no library."""

    def __init__(self) -> None:
        self._lines: list[Declared] = []
        """Ascending by address; of lines that overlap, the newest."""
        self._images: list[DeclaredImage] = []

    def images(self) -> list[DeclaredImage]:
        """The present images, ascending by address."""
        with mappings.text_mutex:
            news = declarations.news()
            if news:
                self._lines = _newest([*self._lines, *news])
            if self._lines:
                self._update()
            return [image for image in self._images if image.is_live and image.is_mapped()]

    def _update(self) -> None:
        """Keep those that have been made patchable; rebuild the others if their functions have changed."""
        kept = _patched()
        rest = [line for line in self._there() if not any(image.shares_pages_with(line.span) for image in kept)]
        for image in kept:
            image.declare(line for line in self._lines if image.holds(line))
        made = {(image.bounds, image.functions): image for image in self._images if not image.texts}
        fresh = [_image(run) for run in _runs(rest)]
        known = [made.get((image.bounds, image.functions), image) for image in fresh]
        self._images = sorted([*kept, *known], key=lambda image: image.bounds)

    def _there(self) -> Iterator[Declared]:
        """The lines whose code is mapped executable and belongs to no file or module, ascending."""
        own = [text for module in modules() for text in module.texts]
        spans = [
            (start, end)
            for start, end, permissions, path in mappings.mappings()
            if "x" in permissions and (not path or path.startswith(_NO_FILE))
        ]
        starts = [start for start, _ in spans]
        for line in self._lines:
            at = bisect_right(starts, line.address) - 1
            if at >= 0 and line.end <= spans[at][1] and not any(line.address in text for text in own):
                yield line


def _patched() -> list[DeclaredImage]:
    return [image for image in patched if isinstance(image, DeclaredImage)]


def _newest(lines: Sequence[Declared]) -> list[Declared]:
    """The last of lines that overlap: the code of the others has been replaced."""
    ordered = sorted(enumerate(lines), key=lambda pair: (pair[1].address, pair[0]))
    kept: list[tuple[int, Declared]] = []
    for order, line in ordered:
        while kept and line.address < kept[-1][1].end and kept[-1][0] < order:
            kept.pop()
        if not kept or line.address >= kept[-1][1].end:
            kept.append((order, line))
    return [line for _, line in kept]


def _pages(span: tuple[int, int]) -> tuple[int, int]:
    return span[0] & -mappings.PAGE, (span[1] + mappings.PAGE - 1) & -mappings.PAGE


def _runs(lines: Iterable[Declared]) -> Iterator[list[Declared]]:
    """Ascending lines, those on shared pages together."""
    run: list[Declared] = []
    for line in lines:
        if run and _pages(line.span)[0] >= _pages(run[-1].span)[1]:
            yield run
            run = []
        run.append(line)
    if run:
        yield run


def _image(run: list[Declared]) -> DeclaredImage:
    low, high = _pages(run[0].span)[0], _pages(run[-1].span)[1]
    functions = _symbols(run)
    return DeclaredImage(JitObject(low, functions, frozenset(line.name for line in run), ((low, high),), b""))


def _symbols(lines: Iterable[Declared]) -> tuple[Symbol, ...]:
    return sorted_symbols(Symbol(line.name, line.address, line.size, _NAME) for line in lines)
