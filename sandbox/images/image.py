"""Images: code of any origin, under a name; and the interface of the sources that list them.

Modules of the sandbox are images; so are shared libraries (sandbox.images.library_images) and the code of JIT compilers, if a
source for it is registered.
"""

from __future__ import annotations

import abc
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import TYPE_CHECKING

from sandbox.symbols.file_names import in_events

if TYPE_CHECKING:
    from sandbox.loading.module import Module
    from sandbox.memory.mappings import TextMapping
    from sandbox.symbols.table import Symbol


class Image(abc.ABC):
    """Code in this process.

    `name`: as it is shown, in brackets, and as the functions' `module`. `names`: what it may be called before the colon of a
    pattern. `module`: the sandbox's, if it is one.
    """

    name: str
    names: frozenset[str]
    module: Module | None = None
    only_by: str = ""
    """A pattern for names of images means it only if it contains this: a part of its name, for what this package runs on."""
    is_own: bool = False
    """Whether this package has brought it into the process, and not the program."""
    stubs: frozenset[int] = frozenset()
    """Addresses of its functions that begin with a stub, where r10 and r11 are free; those of modules are in `module.sites`."""

    @property
    @abc.abstractmethod
    def functions(self) -> Sequence[Symbol]:
        """The functions, ascending by address; one with several names occurs under each of them.

        Raises OSError if a file that has to be read cannot be.
        """

    @property
    def written(self) -> str:
        """A name that means this image only, as lines of events can have it."""
        plain = in_events(self.name)
        return plain if plain in self.names else self.name

    @property
    def is_searched(self) -> bool:
        """Whether it has very many functions, so that `named` and `around` find few of them without reading all."""
        return False

    @property
    def edition(self) -> int:
        """Another number when it has got more functions."""
        return len(self.functions)

    def chosen(self, choose: Callable[[Sequence[str]], Sequence[int]], question: str) -> Sequence[Symbol]:
        """The members of `functions` whose names `choose` gives, by their places in a list of names. Raises as `functions`.

        What has the same `question` chooses the same names.
        """
        functions = self.functions
        return [functions[place] for place in choose([function.name for function in functions])]

    def named(self, name: str) -> Sequence[Symbol]:
        """The members of `functions` with that name. Raises as `functions`."""
        return [function for function in self.functions if function.name == name]

    def like(self, name: str, most: int) -> Iterable[str]:
        """Names of `functions` that may be like `name`; of very many, at most that many. Raises as `functions`."""
        return (function.name for function in self.functions)

    def beginning_at(self, addresses: Set[int]) -> Sequence[Symbol]:
        """The members of `functions` that begin at these addresses, under all their names. Raises as `functions`."""
        return [function for function in self.functions if function.address in addresses]

    def next_starts(self, addresses: Iterable[int], reach: int) -> list[int]:
        """Where the first of `functions` begins that is after each address; left out if it is `reach` bytes away or more."""
        starts = [function.address for function in self.functions]
        found = (starts[bisect_right(starts, address) :][:1] for address in addresses)
        return [each[0] for each in found if each]

    def suggestions(self) -> Iterator[str]:
        """Names that are suggested for an unknown function; obtained faster than `functions`.

        Raises OSError if a file that has to be read cannot be.
        """
        return (function.name for function in self.functions)

    @property
    def no_names(self) -> str:
        """Why the names of its functions are not known, as a sentence; '' if they are."""
        return ""

    @property
    @abc.abstractmethod
    def is_live(self) -> bool:
        """Whether the code is still there."""

    @abc.abstractmethod
    def __contains__(self, address: object) -> bool:
        """Whether `address` is in its code."""

    @abc.abstractmethod
    def text_at(self, address: int) -> TextMapping:
        """The mapping through which the code at `address` can be patched; made so by the first caller.

        Raises OSError(EINVAL) if it cannot be.
        """

    def code_in_file(self, address: int, size: int) -> bytes:
        """What the file that the code was loaded from has there; b"" if that is not known. Raises OSError as `functions`."""
        return b""

    def is_in(self, folder: str) -> bool:
        """Whether its file is in `folder`: a path, the end of one, or a glob for these."""
        return False

    def meant(self, function: Symbol) -> Symbol:
        """The function that is executed by a call of `function`, one of `functions`: another one if it is an IFUNC."""
        return function

    def unversioned(self, name: str) -> str:
        """`name` for a `name@@VERSION` that is among `functions`; other names and patterns unchanged."""
        return name

    def argument_types(self, function: Symbol) -> str:
        """The types that distinguish `function` from others of its name, such as specialisations; '' if there are none."""
        return ""

    def other_than_function(self, function: Symbol) -> str:
        """Why what begins at `function` is not a function, as a sentence; '' if it is one."""
        return ""


class Source(abc.ABC):
    """A source of images.

    `is_named`: its images are matched only by patterns that name them (`libz:inflate*`), not by a bare `inflate*`.
    """

    is_named: bool

    @abc.abstractmethod
    def images(self) -> Sequence[Image]:
        """The present images: each call returns the same objects as long as their code exists."""

    def may_compile(self, owner: str, matches: Callable[[str], bool]) -> bool:
        """Whether a function of `owner`, the part of a pattern before the colon, may be compiled later whose name `matches`."""
        return False

    def inlined_calls(self, owner: str, wanted: str, matches: Callable[[str], bool], with_globs: bool) -> Iterator[str]:
        """Sentences about functions of `owner` whose calls have been inlined. `wanted`: a name, or with `with_globs` a glob."""
        return iter(())
