"""The code of JIT compilers, as images: every object that the GDB JIT interface lists and that is not this package's.

Objects of Numba are called `numba`, and their functions as their authors called them; all others are called `jit`.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sandbox.images.image import Image
from sandbox.images.jit_objects import JitObject
from sandbox.memory import mappings
from sandbox.memory.pages import read
from sandbox.process import hooks
from sandbox.symbols.table import Symbol, symbol_table

if TYPE_CHECKING:
    from sandbox.memory.mappings import TextMapping


patched: list[JitImage] = []
"""The present images whose text has been made patchable."""


class JitImage(Image):
    """An object that a JIT compiler has placed. Its text is put on a memory file, where it runs, when it is first patched."""

    name = "jit"
    names = frozenset({"jit"})

    def __init__(self, obj: JitObject) -> None:
        self.object = obj
        self.stubs = obj.stubs
        self.texts: tuple[TextMapping, ...] = ()
        self._is_live = True

    @property
    def functions(self) -> Sequence[Symbol]:
        return self.object.functions

    @property
    def is_live(self) -> bool:
        return self._is_live

    def __contains__(self, address: object) -> bool:
        return address in self.object

    def is_mapped(self) -> bool:
        """Whether the first byte of each of its ranges is still there: a compiler may unmap its code without notice."""
        try:
            return all(read(start, 1) for start, _ in self.object.text)
        except OSError:
            return False

    def text_at(self, address: int) -> TextMapping:
        if address not in self or not self._is_live:
            raise OSError(errno.EINVAL, f"{address:#x} is not in the text of [{self.name}], or that has been unmapped")
        hooks.before_patching()
        with mappings.text_mutex:
            if not self.texts:
                self._make_patchable()
        return next(text for text in self.texts if address in text)

    def _make_patchable(self) -> None:
        from sandbox.loading.loaded_code import remap

        for start, end in self.object.text:
            _check_finished(start, end, self.name)
        self.texts = remap(self.object.text, self.name)
        patched.append(self)
        symbol_table.add(self._key, self.functions, is_own=True)

    @property
    def _key(self) -> str:
        """The name under which its symbols are registered; several images share one name."""
        return f"{self.name}@{self.object.entry:#x}"

    def leave(self) -> None:
        """The code is about to be unmapped, or has been: it must not be patched any more."""
        with mappings.text_mutex:
            was_live, self._is_live = self._is_live, False
            if self in patched:
                patched.remove(self)
            if was_live and self.texts:
                symbol_table.remove(self._key)

    def forget_texts(self) -> None:
        """Give the writable views of its text back."""
        with mappings.text_mutex:
            texts, self.texts = self.texts, ()
            for text in texts:
                text.forget()


def _check_finished(start: int, end: int, name: str) -> None:
    """Raise OSError(EINVAL) unless all of the range is executable, and not writable or shared: its compiler may write there.

    The pages that take the place of writable ones would not be writable.
    """
    where = f"code of [{name}] at {start:#x} to {end:#x}"
    at = start
    for low, high, permissions, _path in mappings.mappings():
        if low <= at < high and at < end:
            if "w" in permissions:
                raise OSError(
                    errno.EINVAL, f"{where} is writable; it can be probed once its compiler has made it read-only"
                )
            if "s" in permissions:
                raise OSError(
                    errno.EINVAL, f"{where} is shared memory: its compiler may write there at another address"
                )
            at = high if "x" in permissions else at
    if at < end:
        raise OSError(errno.EINVAL, f"{where} is no longer mapped executable")
