"""Objects of Numba as images: their functions under the names that users gave.

A *carrier* is a function that Numba makes around a user's: a loop for NumPy, a method as Python calls it, a parallel loop's part;
also a wrapper in which LLVM has left out the call of a body that has no effects and always the same result.
A *lifted* part is compiled as a function of the user's name: a loop of a function in object mode, an `objmode` block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sandbox.images.jit_image import JitImage
from sandbox.images.jit_objects import JitObject, references
from sandbox.images.numba import live
from sandbox.images.numba.mangling import UserName, argument_types, user_name, wrapped_symbol
from sandbox.process.once import cached_property
from sandbox.symbols.table import Symbol, sorted_symbols

_MARKS = ("_ZN08NumbaEnv", "__ufunc__.", "__gufunc__.", ".kernel.")
LOOPS = ("__ufunc__", "__gufunc__")
METHODS = ("ctor", "method", "accessor", "mutator")
_methods: dict[str, UserName] = {}
_new_methods: set[str] = set()
_unknown: set[str] = set()
"""Methods that Numba has compiled and not yet entered anywhere, or has forgotten."""
_loops: dict[str, str] = {}
"""The part of a parallel loop -> the function that it is a part of."""
_lifted: dict[str, UserName] = {}
_maybe_lifted: set[str] = set()
"""Symbols of new objects, which may be parts of functions."""
_versions = [0]


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
        _note_carriers(obj)
        self._functions: tuple[int, tuple[Symbol, ...]] = (-1, ())

    @property
    def functions(self) -> Sequence[Symbol]:
        known = _carriers_version()
        if self._functions[0] != known:
            self._functions = known, sorted_symbols(self._named())
        return self._functions[1]

    def _named(self) -> Iterator[Symbol]:
        for symbol in self.object.functions:
            named = self.user_name(symbol.name)
            if named is None:
                yield from self._in_place_of_body(symbol)
                continue
            yield symbol._replace(name=str(named), module=self.name)
            if _holds_body(symbol.name) and not self._refers_to(named.function):
                yield symbol._replace(name=named.function, module=self.name)

    def _in_place_of_body(self, symbol: Symbol) -> Iterator[Symbol]:
        if symbol.name not in self._without_body:
            return
        wrapped, role = wrapped_symbol(symbol.name)
        named = self.user_name(wrapped)
        if named is not None:
            body = named.function if _holds_body(wrapped) else str(named)
            yield symbol._replace(name=f"{body}.{role}", module=self.name)
            yield symbol._replace(name=body, module=self.name)

    @cached_property
    def _without_body(self) -> frozenset[str]:
        """The wrappers that do not call what they wrap: only there are calls from Python, or C, seen."""
        wrapped = [(each, wrapped_symbol(each.name)[0]) for each in self.object.functions]
        return frozenset(
            wrapper.name
            for wrapper, body in wrapped
            if body in self.object.names and body not in references(self.object, wrapper)
        )

    def argument_types(self, function: Symbol) -> str:
        """See `Image`."""
        return next((found for name in self._names_at(function.address) if (found := argument_types(name))), "")

    def _names_at(self, address: int) -> list[str]:
        return [symbol.name for symbol in self.object.functions if symbol.address == address and user_name(symbol.name)]

    def user_name(self, symbol: str) -> UserName | None:
        """The Python function that one of the object's symbols belongs to; None for wrappers and the like."""
        return _carried(symbol) or user_name(symbol)

    def _refers_to(self, function: str) -> bool:
        """Whether the object has, or calls, the body of `function`: then the body is probed."""
        return UserName(function) in {user_name(name) for name in self.object.names}


def _note_carriers(obj: JitObject) -> None:
    """Take note of what `obj` has of them. Objects are given in the order in which they were made."""
    named = {symbol.name: it for symbol in obj.functions if (it := user_name(symbol.name))}
    own = next((it.function for it in named.values() if not it.role and not _is_dynamic(it)), None)
    for symbol, it in named.items():
        if _is_dynamic(it):
            if _member(it) in METHODS:
                _new_methods.add(symbol)
            elif own is not None:
                _loops.setdefault(_member(it), own)
        elif not it.role:
            _maybe_lifted.add(symbol)
    _versions[0] += 1


def _carriers_version() -> int:
    """Another number whenever `_carried` may say something else."""
    if _maybe_lifted:
        _lifted.update(live.lifted(_maybe_lifted))
        _maybe_lifted.clear()
    if _new_methods:
        _methods.update(live.jitclass_carriers(_new_methods))
        _unknown.update(_new_methods - _methods.keys())
        _new_methods.clear()
    return _versions[0]


def retry_unknown_carriers() -> bool:
    """Numba has compiled something. Returns whether the owner of code that had none may be known now."""
    if not _unknown:
        return False
    _new_methods.update(_unknown)
    _unknown.clear()
    _versions[0] += 1
    return True


def _carried(symbol: str) -> UserName | None:
    """The function whose body, or part of it, `symbol` runs; None if it is not of Numba's own making."""
    it = user_name(symbol)
    if it is None or not _is_dynamic(it):
        return _lifted.get(symbol)
    owner = _loops.get(_member(it))
    return UserName(owner, it.role or "loop") if owner else _methods.get(symbol)


def _holds_body(symbol: str) -> bool:
    """Whether `symbol` runs a function's whole body for each call from Python, mostly with the body inlined."""
    it = user_name(symbol)
    return it is not None and (symbol in _methods if _is_dynamic(it) else it.role in LOOPS)


def _is_dynamic(it: UserName) -> bool:
    return it.function.startswith(f"{live.DYNAMIC}.")


def _member(it: UserName) -> str:
    return it.function.removeprefix(f"{live.DYNAMIC}.")
