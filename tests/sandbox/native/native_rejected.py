"""Reads `rejected.txt`: snippets that must not compile, each with the exact complaint.

A case is a line `-- title`, the source of a module, and a line `=> line:column message`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from native_machine import define

import sandbox.native

PRELUDE = """
@struct
class Node:
    frame: u64
    prev: ptr["Node"]

@struct
class Inner:
    x: u32

@struct
class Table:
    flag: bool_
    values: array[u64, 4]
    inner: Inner

@struct
class Broken:
    next: ptr["Nowhere"]

class Plain:
    x = 1

LIMIT = 4096
RATIO = 0.5
TABLE = [1, 2, 3]
DICTIONARY = {}
counter = global_var(u64)
memory_get = extern("memory_get", fn[u64, ptr[u8]])
wrong_extern = extern("wrong", ptr["Nowhere"])

def python(x):
    return x

@native
def take(p: ptr[Node]) -> u64:
    return p.frame

@native
def apply(g: fn[u64, u64], a: u64) -> u64:
    return g(a)
"""


class Case(NamedTuple):
    """A snippet and what must be said about it."""

    title: str
    source: str
    complaint: str


def cases() -> list[Case]:
    """All cases of `rejected.txt`."""
    text = Path(__file__).with_name("rejected.txt").read_text()
    found = []
    for part in text.split("-- ")[1:]:
        head, _, rest = part.partition("\n")
        source, _, complaint = rest.partition("=> ")
        found.append(Case(head, source, complaint.strip()))
    return found


@functools.cache
def prelude() -> Mapping[str, Any]:
    """What the snippets can see beside the language; the same one each time."""
    eager = functools.partial(sandbox.native.native, eager=True)
    return MappingProxyType({**define(PRELUDE), "native": eager, "math": math})
