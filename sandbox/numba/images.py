"""Objects of Numba as images: their functions under the names that users gave."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sandbox.images.jit import JitImage
from sandbox.jit.objects import JitObject
from sandbox.numba import carriers
from sandbox.numba.mangling import UserName, user_name
from sandbox.symbols.table import Symbol, sorted_symbols

_MARKS = ("_ZN08NumbaEnv", "__ufunc__.", "__gufunc__.", ".kernel.")


def is_numbas(obj: JitObject) -> bool:
    """Whether Numba has compiled an object from Python functions."""
    return any(name.startswith(_MARKS) for name in obj.names)


class NumbaImage(JitImage):
    """An object of Numba: bodies of functions, and the loops and methods into which bodies were inlined.

    What holds the body of a function in its place has the function's name, too.
    """

    name = "numba"
    names = frozenset({"numba"})

    def __init__(self, obj: JitObject) -> None:
        super().__init__(obj)
        carriers.note(obj)
        self._functions: tuple[int, tuple[Symbol, ...]] = (-1, ())

    @property
    def functions(self) -> Sequence[Symbol]:
        known = carriers.version()
        if self._functions[0] != known:
            self._functions = known, sorted_symbols(self._named())
        return self._functions[1]

    def _named(self) -> Iterator[Symbol]:
        for symbol in self.object.functions:
            named = self.user_name(symbol.name)
            if named is None:
                continue
            yield symbol._replace(name=str(named), module=self.name)
            if carriers.holds_body(symbol.name) and not self._refers_to(named.function):
                yield symbol._replace(name=named.function, module=self.name)

    def user_name(self, symbol: str) -> UserName | None:
        """What one of the object's symbols is to its author; None for wrappers and the like."""
        return carriers.carried(symbol) or user_name(symbol)

    def _refers_to(self, function: str) -> bool:
        """Whether the object has, or calls, the body of `function`: then that is what is hit."""
        return UserName(function) in {user_name(name) for name in self.object.names}
