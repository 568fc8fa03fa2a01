"""Numba's own objects for compiled code: dispatchers, their specialisations, methods of jitclasses, calls in their sources.

Nothing here imports Numba: if the program has not imported it, there is no code of Numba's.
"""

from __future__ import annotations

import gc
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sandbox.images.numba.mangling import UserName, user_name

DYNAMIC = "<dynamic>"
"""The module of what Numba itself writes as source: methods of jitclasses as Python calls them, bodies of parallel loops."""
_NUMBERED = re.compile(r"_ZN13_3cdynamic_3e8accessorB\d+v(?P<number>\d+)")


def dispatchers() -> Iterator[Any]:
    """Every dispatcher that is alive: what `@njit`, `@vectorize` and the like have made of functions."""
    kind = getattr(sys.modules.get("numba.core.dispatcher"), "_DispatcherBase", None)
    if kind is not None:  # otherwise Numba is not imported, or is just being imported
        yield from [
            it for it in gc.get_objects() if issubclass(type(it), kind)
        ]  # isinstance() would call proxies' code


def specialisations() -> Iterator[tuple[Any, Any]]:
    """Each dispatcher with each of its compile results."""
    for dispatcher in dispatchers():
        for result in list(getattr(dispatcher, "overloads", {}).values()):
            if getattr(result, "fndesc", None) is not None:
                yield dispatcher, result


def declared() -> Iterator[str]:
    """The names, with their modules, of functions that Numba will compile when they are called."""
    for dispatcher in dispatchers():
        py_func = getattr(dispatcher, "py_func", None)
        if py_func is not None:
            yield f"{py_func.__module__}.{py_func.__qualname__}"


def lifted(symbols: Iterable[str]) -> dict[str, UserName]:
    """Those of these symbols that are parts of functions: a loop of a function in object mode, or an `objmode` block.

    Numba compiles each part as a function of the same name, of which it makes a dispatcher of its own.
    """
    base = getattr(sys.modules.get("numba.core.dispatcher"), "LiftedCode", None)
    if base is None:
        return {}
    waiting = {symbol: it for symbol in symbols if (it := user_name(symbol)) is not None}
    found, whole, compiling = {}, set[str](), dict[str, str]()
    for dispatcher in dispatchers():
        is_part = issubclass(type(dispatcher), base)
        compiled = _compiled(dispatcher) & waiting.keys()
        role = "loop" if is_part and type(dispatcher).__name__ == "LiftedLoop" else "objmode"
        if not is_part:
            whole |= compiled
            continue
        found.update({symbol: UserName(waiting[symbol].function, role) for symbol in compiled})
        if dispatcher._compiling_counter.counter:
            compiling[f"{dispatcher.py_func.__module__}.{dispatcher.py_func.__qualname__}"] = role
    for symbol in waiting.keys() - whole - found.keys():
        if waiting[symbol].function in compiling:
            found[symbol] = UserName(waiting[symbol].function, compiling[waiting[symbol].function])
    return found


def _compiled(dispatcher: Any) -> set[str]:
    """The symbols of a dispatcher's specialisations."""
    results = list(getattr(dispatcher, "overloads", {}).values())
    return {it.fndesc.llvm_func_name for it in results if getattr(it, "fndesc", None) is not None}


def jitclass_carriers(symbols: Iterable[str]) -> dict[str, UserName]:
    """Symbols of `<dynamic>` functions, and which method of which jitclass each one runs."""
    found = dict(_accessors(symbols))
    for dispatcher, result in specialisations():
        if result.fndesc.modname == DYNAMIC:
            named = _method_of(dispatcher.py_func, result.signature)
            if named is not None:
                found[result.fndesc.llvm_func_name] = named
    return found


def _method_of(py_func: Any, signature: Any) -> UserName | None:
    role = py_func.__name__
    kind = signature.return_type if role == "ctor" else signature.args[0] if signature.args else None
    of_class = getattr(kind, "class_type", None)
    if of_class is None:
        return None
    member = "__init__" if role == "ctor" else py_func.__code__.co_names[-1]
    return UserName(f"{_class_name(of_class)}.{member}", role)


def _class_name(of_class: Any) -> str:
    """Module and qualified name of a jitclass, as its methods have them."""
    for dispatcher in of_class.jit_methods.values():
        owner = dispatcher.py_func.__qualname__.rpartition(".")[0]
        return f"{dispatcher.py_func.__module__}.{owner}"
    return str(of_class.class_name)


def _accessors(symbols: Iterable[str]) -> Iterator[tuple[str, UserName]]:
    """Getters: Numba keeps no dispatcher of them, but compiles them in the order of the class's properties."""
    boxing = sys.modules.get("numba.experimental.jitclass.boxing")
    numbered = sorted((int(match["number"]), symbol) for symbol in symbols if (match := _NUMBERED.match(symbol)))
    for kind, boxed in list(getattr(boxing, "_cache_specialized_box", {}).items()):
        tag = f"{kind.class_type.class_name}_23{id(kind.class_type):x}_3c"
        mine = [symbol for _, symbol in numbered if tag in symbol]
        read = [name for name, value in vars(boxed).items() if isinstance(value, property) and value.fget]
        for symbol, name in zip(mine, read, strict=False):
            yield symbol, UserName(f"{_class_name(kind.class_type)}.{name}", "accessor")


def calls_of(matches: Callable[[str], bool]) -> Iterator[tuple[Any, Counter[str]]]:
    """Compile results, each with the number of places in its source that call each specialisation, by its symbol.

    `matches`: of the names of called functions. Code from Numba's cache is not included: the cache does not keep what was called.
    Nor are parallel functions, whose source Numba changes, and calls other than of dispatchers: of methods and overloads.
    """
    for dispatcher, result in specialisations():
        annotation = getattr(result, "type_annotation", None)
        if hasattr(annotation, "calltypes") and not getattr(dispatcher, "targetoptions", {}).get("parallel"):
            called = Counter(_called(annotation, matches))
            if called:
                yield result, called


def _called(annotation: Any, matches: Callable[[str], bool]) -> Iterator[str]:
    from numba.core.types import unliteral

    for expression, signature in list(annotation.calltypes.items()):
        if getattr(expression, "op", None) != "call":
            continue
        callee: Any = getattr(annotation.typemap.get(expression.func.name), "dispatcher", None)
        py_func = getattr(callee, "py_func", None)
        if py_func is not None and matches(f"{py_func.__module__}.{py_func.__qualname__}"):
            for arguments in (signature.args, tuple(map(unliteral, signature.args))):
                if arguments in callee.overloads:
                    yield callee.overloads[arguments].fndesc.llvm_func_name
                    break
