"""The example of the specification is a program."""

from __future__ import annotations

import ctypes
import linecache
import re
from pathlib import Path
from typing import Any

from native_machine import isolated, load_functions

from sandbox.native.back.verify import verify_object

TEXT = Path(__file__).parents[3].joinpath("docs", "native.md").read_text()


@isolated
def test_the_example_counts() -> None:
    code, *_others = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    linecache.cache["<docs/native.md>"] = (len(code), None, code.splitlines(keepends=True), "<docs/native.md>")
    names: dict[str, Any] = {}
    exec(compile(code, "<docs/native.md>", "exec"), names)
    assert verify_object(names["object_code"]) == []
    loaded, stat = load_functions(names["count"]), names["Stat"].ctypes()
    for size in (1, 1, 2, 700, 1 << 63):
        loaded.count(ctypes.addressof(stat), size)
    found = {i: hits for i, hits in enumerate(stat.by_size) if hits}
    assert (stat.hits, found) == (5, {0: 2, 1: 1, 9: 1, 63: 1})


def test_the_specification_names_every_word_of_the_language() -> None:
    import sandbox.native
    from sandbox.native.intrinsics import TABLE

    words = {name for name in TABLE if not name.startswith("atomic_")} | {"atomic_add", "atomic_cas"}
    words |= {str(word) for word in sandbox.native.__all__ if word[0] in "uif" and word[1:].isdecimal()}
    assert {word for word in words if not re.search(rf"\b{word}\b", TEXT)} == set()
