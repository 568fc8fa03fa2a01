"""What generated programs may contain: features of LLVM IR, and types, named as LLVM IR writes them."""

from __future__ import annotations

import enum
from collections.abc import Iterable

INTEGERS = {"i8": 8, "i16": 16, "i32": 32, "i64": 64, "i128": 128}
"""Integer types and their widths in bits."""
FLOATS = ("float", "double", "x86_fp80")
VECTORS = {
    "<4 x i32>": (4, "i32"),
    "<2 x i64>": (2, "i64"),
    "<8 x i32>": (8, "i32"),
    "<16 x i32>": (16, "i32"),
    "<4 x float>": (4, "float"),
    "<2 x double>": (2, "double"),
}
"""Vector types: lanes and the type of a lane."""
STRUCTS = {
    "%pair": ("i64", "i64"),
    "%mixed": ("double", "i32"),
    "%triple": ("i8", "double", "i16"),
    "%floats": ("float", "float"),
}
"""Struct types that travel in registers, and the types of their fields."""
BIG = "%big"
"""A struct that travels in memory: the target of `byval` and `sret` pointers."""
BIG_FIELDS = ("i64", "double", "i16", "<4 x i32>", "i64")
BLOCK_WORDS = 8
"""Every `ptr` points to that many i64 that may be read and written."""
DEFINITIONS = "\n".join(
    f"{name} = type {{ {', '.join(fields)} }}" for name, fields in {**STRUCTS, BIG: BIG_FIELDS}.items()
)


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


def value_types(features: frozenset[Feature]) -> list[str]:
    """The types that values, parameters and results may have; common ones are listed more often."""
    types = ["i8", "i16", "i32", "i32", "i64", "i64"]
    offered = {
        Feature.WIDE: ["i128"],
        Feature.FLOATS: ["float", "double", "double"],
        Feature.X87: ["x86_fp80"],
        Feature.VECTORS: list(VECTORS),
        Feature.STRUCTS: list(STRUCTS),
        Feature.MEMORY: ["ptr", "ptr"],
    }
    floating = {"double": Feature.FLOATS, "float": Feature.FLOATS}
    for feature, additions in offered.items():
        if feature in features:
            types += [kind for kind in additions if _without(kind, features, floating)]
    return types


def _without(kind: str, features: frozenset[Feature], floating: dict[str, Feature]) -> bool:
    """Whether nothing in the type is of a feature that was not asked for."""
    parts = STRUCTS.get(kind) or (VECTORS.get(kind, (0, kind))[1],)
    return all(floating.get(part) in features for part in parts if part in floating)
