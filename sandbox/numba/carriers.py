"""Functions that Numba makes around a user's: loops for NumPy, methods as Python calls them, parts of parallel loops."""

from __future__ import annotations

from sandbox.jit.objects import JitObject
from sandbox.numba import live
from sandbox.numba.mangling import UserName, user_name

_LOOPS = ("__ufunc__", "__gufunc__")
_METHODS = ("ctor", "method", "accessor", "mutator")
_methods: dict[str, UserName] = {}
_new_methods: set[str] = set()
_unknown: set[str] = set()
"""Methods that Numba has compiled and not yet entered anywhere, or has forgotten."""
_loops: dict[str, str] = {}
"""The part of a parallel loop -> the function that it is a part of."""
_versions = [0]


def note(obj: JitObject) -> None:
    """Take note of what `obj` has of them. Objects are given in the order in which they were made."""
    named = {symbol.name: it for symbol in obj.functions if (it := user_name(symbol.name))}
    own = next((it.function for it in named.values() if not it.role and not _is_dynamic(it)), None)
    for symbol, it in named.items():
        if _is_dynamic(it):
            if _member(it) in _METHODS:
                _new_methods.add(symbol)
            elif own is not None:
                _loops.setdefault(_member(it), own)
    _versions[0] += 1


def version() -> int:
    """Another number whenever `carried` may say something else."""
    if _new_methods:
        _methods.update(live.jitclass_carriers(_new_methods))
        _unknown.update(_new_methods - _methods.keys())
        _new_methods.clear()
    return _versions[0]


def look_again() -> bool:
    """Numba has compiled something: whether that may tell what code is part of that could not be told before."""
    if not _unknown:
        return False
    _new_methods.update(_unknown)
    _unknown.clear()
    _versions[0] += 1
    return True


def carried(symbol: str) -> UserName | None:
    """The function whose body, or part of it, `symbol` runs; None if it is not of Numba's own making."""
    it = user_name(symbol)
    if it is None or not _is_dynamic(it):
        return None
    owner = _loops.get(_member(it))
    return UserName(owner, it.role or "loop") if owner else _methods.get(symbol)


def holds_body(symbol: str) -> bool:
    """Whether `symbol` runs a function's whole body for each call from Python, mostly with the body inlined."""
    it = user_name(symbol)
    return it is not None and (symbol in _methods if _is_dynamic(it) else it.role in _LOOPS)


def _is_dynamic(it: UserName) -> bool:
    return it.function.startswith(f"{live.DYNAMIC}.")


def _member(it: UserName) -> str:
    return it.function.removeprefix(f"{live.DYNAMIC}.")
