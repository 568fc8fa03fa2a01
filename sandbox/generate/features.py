"""What generated programs may contain."""

from __future__ import annotations

import enum
from collections.abc import Iterable


class Feature(str, enum.Enum):
    """One thing that a generated program may contain; integer arithmetic and direct calls always are."""

    BRANCHES = "branches"
    SWITCH = "switch"
    LOOPS = "loops"
    RECURSION = "recursion"
    INDIRECT = "indirect"  # calls through constant tables of function pointers
    MANY_ARGUMENTS = "many-arguments"  # seven to twelve of them
    FLOATS = "floats"  # float and double
    X87 = "x87"  # x86_fp80: arguments on the stack, result in st(0)
    VECTORS = "vectors"  # 128, 256 and 512 bits
    WIDE = "wide"  # i128: two registers
    STRUCTS = "structs"  # as arguments and results, in registers
    BYVAL = "byval"  # struct arguments in memory
    SRET = "sret"  # struct results in memory
    VARARGS = "varargs"
    TAIL_CALLS = "tail-calls"  # musttail: to others, to oneself, to and fro, through tables
    FASTCC = "fastcc"
    LOCAL = "local"  # internal linkage
    MEMORY = "memory"  # pointers into the frames of callers
    GLOBALS = "globals"  # constant data
    NOTRACE = "notrace"  # functions that must not be probed

    def __str__(self) -> str:
        return self.value


ALL = frozenset(Feature)


def chosen(names: Iterable[Feature | str] | None) -> frozenset[Feature]:
    """The features called `names`; all of them for None. Raises ValueError naming one that there is not."""
    return ALL if names is None else frozenset(_feature(name) for name in names)


def _feature(name: Feature | str) -> Feature:
    try:
        return Feature(name)
    except ValueError:
        known = ", ".join(feature.value for feature in Feature)
        raise ValueError(f"no feature {name!r}; there are: {known}") from None
