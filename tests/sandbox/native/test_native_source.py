"""Finding a function's source: one function is parsed, whatever its file looks like."""

from __future__ import annotations

import ast
import gc
import linecache
import tracemalloc
from typing import Any

import pytest

from sandbox import native
from sandbox.native import NativeError
from sandbox.native.front import source
from sandbox.native.front.text import SourceText

FILE = '''@decorate(
1,
)
@decorate
def first(a):
    """A text

that is not indented.
def first(a):
"""
# nor is this
    b = (
a
)
    c = [a,
# inside of brackets
b]
    return b + \\
c

x = 1
class Holder:
    def second(self): return 2

    if x:
        def third():
            return """
x"""
    else:
        pass
def outer():
    @decorate
    def inner(a):
        return a

    # behind it
    return inner
def last(): return """
"""'''


def functions() -> dict[str, Any]:
    name = "<odd source>"
    linecache.cache[name] = (len(FILE), None, FILE.splitlines(keepends=True), name)
    names: dict[str, Any] = {"decorate": lambda given: given if callable(given) else lambda function: function}
    exec(compile(FILE, name, "exec"), names)
    holder = names["Holder"]
    found = [names["first"], holder.second, holder.third, names["outer"], names["outer"](), names["last"]]
    return {function.__name__: function for function in found}


def lines() -> tuple[str, ...]:
    return tuple(linecache.getlines("<odd source>"))


@pytest.mark.parametrize("name", ["first", "second", "third", "outer", "inner", "last"])
def test_one_function_is_found_with_its_positions(name: str) -> None:
    function = functions()[name]
    origin, node = source.find(function, lines())
    whole = next(n for n in ast.walk(ast.parse(FILE)) if isinstance(n, ast.FunctionDef) and n.name == name)
    assert ast.dump(node, include_attributes=True) == ast.dump(whole, include_attributes=True)
    assert origin.text(node.lineno).lstrip().startswith("def ")


def test_a_source_that_has_changed_is_not_taken_for_another() -> None:
    function = functions()["first"]
    changed = ["\n", "\n", *FILE.splitlines(keepends=True)]
    linecache.cache["<odd source>"] = (len(FILE), None, changed, "<odd source>")
    with pytest.raises(NativeError, match="<odd source> has changed since first was loaded from it"):
        source.find(function, lines())
    linecache.cache["<odd source>"] = (1, None, ["x = 1\n"], "<odd source>")
    with pytest.raises(NativeError, match="<odd source> has changed since last was loaded from it"):
        source.find(functions_without_cache("last"), lines())


def functions_without_cache(name: str) -> Any:
    kept = linecache.cache["<odd source>"]
    function = functions()[name]
    linecache.cache["<odd source>"] = kept
    return function


@pytest.mark.stress
def test_generated_text_is_gone_with_its_function() -> None:
    filler = "".join(f"# line {{0}} of {number}, which is of no use but takes memory\n" for number in range(200))

    def made(number: int) -> None:
        text = filler.format(number) + f"def generated(a: i64) -> i64:\n    return a + {number}\n"
        name = f"<generated {number}>"
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        names: dict[str, Any] = {"i64": native.i64}
        exec(compile(text, name, "exec"), names)
        found, _ = source.find(names["generated"], SourceText(names["generated"]).lines)
        assert found.filename == name
        del linecache.cache[name]

    for number in range(100):  # some are remembered
        made(number)
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(100, 300):
            made(number)
        gc.collect()
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < 3_000_000  # 200 of them are twice as much
