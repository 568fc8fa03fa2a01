"""Calls of Numba's functions that probes do not see, because LLVM has inlined them or left them out; sentences about them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from sandbox.images.image import Image
from sandbox.images.numba.images import LOOPS, METHODS, NumbaImage
from sandbox.images.numba.live import DYNAMIC, calls_of
from sandbox.images.numba.mangling import UserName, user_name, with_environment, wrapped_symbol
from sandbox.symbols.names import is_glob

_TOLD = 5
"""Functions that a glob matches and that are named; the others are only counted."""


class Inlined(NamedTuple):
    """Function -> the functions into which its calls have been inlined, both by module and qualified name.

    `whole`: all its calls there. A loop for NumPy into which its own function was inlined is one:
    `{"mine.f": {"mine.f.__ufunc__"}}`. `partly`: calls of other types, or at other places, are left: there are fewer than in the
    caller's source. Places in code that Numba has loaded from its cache are not known.
    """

    whole: dict[str, set[str]]
    partly: dict[str, set[str]]


def inlined(images: Iterable[Image], matches: Callable[[str], bool]) -> Inlined:
    """What has been inlined in `images`; partly, for functions that `matches`."""
    found = list(_in_objects(images))
    whole = _collected((name, into) for name, into, is_whole in found if is_whole)
    some = [(name, into) for name, into, is_whole in found if not is_whole and matches(name)]
    return Inlined(whole, _collected([*some, *_at_places(matches)]))


def _collected(found: Iterable[tuple[str, set[str]]]) -> dict[str, set[str]]:
    collected: dict[str, set[str]] = {}
    for name, into in found:
        collected.setdefault(name, set()).update(into)
    return collected


def _in_objects(images: Iterable[Image]) -> Iterator[tuple[str, set[str], bool]]:
    """Functions whose bodies are not in objects that were made of them; their callers; whether no body of that name is there."""
    numbas = [image for image in images if isinstance(image, NumbaImage)]
    generators = {it.function for image in numbas for it in _named(image) if it.role == "next"}
    for image in numbas:
        callers, there = _callers(image), set(map(str, _named(image)))
        for name in _without_body(image, generators):
            into = {str(caller) for caller in callers if caller.function != name or caller.role not in METHODS}
            if into and not name.startswith(DYNAMIC):
                yield name, into, name not in there


def _at_places(matches: Callable[[str], bool]) -> Iterator[tuple[str, set[str]]]:
    for result, called in calls_of(matches):
        code = _final_code(result)
        for symbol, number in called.items() if code else ():
            callee, caller = user_name(symbol), user_name(result.fndesc.llvm_func_name)
            if callee and caller and len(re.findall(rf'@"?{re.escape(symbol)}"?\(', code)) < number:
                yield str(callee), {str(caller)}


def _final_code(result: Any) -> str:
    """The LLVM code of a specialisation after all passes; '' if Numba does not have it."""
    try:
        return str(result.library._final_module.get_function(result.fndesc.llvm_func_name)).partition("{\n")[2]
    except (AttributeError, NameError):
        return ""


def _named(image: NumbaImage) -> list[UserName]:
    return [it for symbol in image.object.names if (it := user_name(symbol)) is not None]


def _without_body(image: NumbaImage, generators: set[str]) -> Iterator[str]:
    """The functions that the object was made of, and whose bodies it neither has nor calls.

    A function's environment stays when its body is gone. `generators`: functions that have another body, for their steps.
    """
    there = set(_named(image))
    for symbol in filter(None, map(with_environment, image.object.names)):
        it = image.user_name(symbol)
        if it is None:
            continue
        if symbol not in image.object.names:
            yield str(it)
        if it.function in generators and UserName(it.function, "next") not in there:
            yield f"{it.function}.next"


def _callers(image: NumbaImage) -> list[UserName]:
    """The functions for which Numba has made the object: those with a wrapper for Python or C, and loops."""
    found = set()
    for symbol in image.object.functions:
        wrapped = wrapped_symbol(symbol.name)[0]
        it = image.user_name(wrapped or symbol.name)
        if it is not None and (wrapped or it.role in LOOPS):
            found.add(it)
    return sorted(found)


def sentences(images: Sequence[Image], wanted: str, matches: Callable[[str], bool]) -> Iterator[str]:
    """For the functions that `wanted`, a name or glob, `matches` and whose calls are inlined."""
    whole, partly = inlined(images, matches)
    for name, callers in partly.items():
        callers -= whole.get(name, set())
    names = _matching(wanted, matches, whole.keys() | {name for name in partly if partly[name]})
    for name in names[:_TOLD]:
        yield from _sentences(name, whole.get(name, set()), partly.get(name, set()))
    if len(names) > _TOLD:
        yield f"{len(names) - _TOLD:,} more functions of numba:{wanted} are inlined: fprobe.numba.inlined() has them"


def _matching(wanted: str, matches: Callable[[str], bool], names: Iterable[str]) -> list[str]:
    """The names that are meant, without functions of Numba's own unless a glob begins as they do."""
    if not is_glob(wanted):
        return [wanted] if wanted in names else []
    return sorted(
        name for name in names if matches(name) and (wanted.startswith("numba") or not name.startswith("numba."))
    )


def _sentences(name: str, whole: set[str], partly: set[str]) -> Iterator[str]:
    remedy = "see fprobe.numba.install(noinline=True)"
    loops = {caller for caller in whole if caller in {f"{name}.{role}" for role in LOOPS}}
    if loops:
        yield f"{name} is inlined into {_listed(loops)}: a hit is a run of the loop, for any number of elements; {remedy}"
    if whole - loops:
        yield f"{name} is inlined into {_listed(whole - loops)}: these calls are not seen; {remedy}"
    if partly:
        yield f"{name} is inlined into {_listed(partly)} at some places: these calls are not seen; {remedy}"


def _listed(callers: set[str]) -> str:
    named = sorted(callers)
    return ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "")
