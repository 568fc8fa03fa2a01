"""Names of symbols as users write them: `symbol`, `module:symbol`, `symbol+offset`. A symbol may have `::`, `/` and `+`."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import EXTENSION_SUFFIXES

_OWNER = re.compile(r"(?<!:)(?<!\[abi):(?!:)")
"""The colon after the name of a module or library. Two colons are a part of a symbol, `ns::f`, as is that of `f[abi:cxx11]`."""
_SIGNS = re.compile(r"[+-]")
_GLOB_SIGNS = frozenset("*?[")


def split_owner(text: str) -> tuple[str, str, str]:
    """What is before the first single colon, that colon, and what is after it; ("", "", `text`) if there is none."""
    found = _OWNER.search(text)
    return (text[: found.start()], ":", text[found.end() :]) if found else ("", "", text)


def is_glob(text: str) -> bool:
    """Whether a name, or an owner, is a pattern for several."""
    return not _GLOB_SIGNS.isdisjoint(text)


def names_owner(text: str) -> bool:
    """Whether it begins with the name of a module or library, or a pattern for these, and a colon."""
    return _OWNER.search(text) is not None


def split_offset(text: str, is_known: Callable[[str], bool], number: Callable[[str], int]) -> tuple[str, int]:
    """The symbol and the offset of `SYMBOL[+|-OFFSET]`, the longest symbol that `is_known`.

    If none is, the text ends its symbol at the first sign, as in the kernel, or at the last if an owner is before it, whose
    name may have one. `number`: reads an offset with its sign. Raises what that raises.
    """
    if is_known(text):
        return text, 0
    signs = [match.start() for match in _SIGNS.finditer(text)]
    for at, offset in _offsets(text, signs, number):
        if is_known(text[:at]):
            return text[:at], offset
    if names_owner(text):
        at, offset = next(_offsets(text, signs, number), (len(text), 0))
        return text[:at], offset
    return (text[: signs[0]], number(text[signs[0] :])) if signs else (text, 0)


def _offsets(text: str, signs: list[int], number: Callable[[str], int]) -> Iterator[tuple[int, int]]:
    """The position and value of what could be the offset, the last first."""
    for at in reversed(signs):
        try:
            yield at, number(text[at:])
        except (OSError, ValueError):
            continue


def name_of_python(name: str) -> str:
    """A sentence for a name such as `zlib.compress`, if its first part is a module of Python; '' for other names."""
    first, dot, rest = name.partition(".")
    if not dot or not all(part.isidentifier() for part in (first, *rest.split("."))) or not _is_module(first):
        return ""
    bare = rest.rpartition(".")[2]
    like = f"libc:*{bare}*" if _is_written_in_python(first) else f"{first}:*{bare}* for the extension module {first}"
    return f"{name} is a name of Python, and probes are on native functions: give LIBRARY:FUNCTION, such as {like}"


def _is_module(name: str) -> bool:
    try:
        return name in sys.modules or name in sys.stdlib_module_names or importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _is_written_in_python(name: str) -> bool:
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return False
    if found is None or not found.has_location:
        return found is not None and found.origin == "frozen"
    return not str(found.origin).endswith(tuple(EXTENSION_SUFFIXES))
