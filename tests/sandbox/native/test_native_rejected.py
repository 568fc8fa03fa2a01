"""No wrong program is accepted, and each is refused with the sentence that is written in `rejected.txt`."""

from __future__ import annotations

import linecache
import os
import subprocess
import sys
from typing import Any

import pytest
from native_machine import define
from native_model import model
from native_rejected import Case, cases, prelude
from sampled import in_stress

from sandbox.native import (
    NativeError,
    Unit,
    array,
    bool_,
    const,
    extern,
    fn,
    global_var,
    i8,
    native,
    ptr,
    struct,
    u8,
    u64,
    void,
)

CASES = cases()


def test_the_corpus_is_large_and_has_no_doubles() -> None:
    assert len(CASES) >= 250
    assert len({case.title for case in CASES}) == len({case.source for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=[case.title for case in CASES])
def test_refused_at_its_line_and_column_with_carets_under_the_construct(case: Case) -> None:
    with pytest.raises(NativeError) as caught:
        define(case.source, **prelude())
    error = caught.value
    assert f"{error.lineno}:{error.offset} {error.msg}" == case.complaint
    assert error.text is not None and error.text.rstrip("\n") == case.source.splitlines()[(error.lineno or 0) - 1]
    _, source, carets = error.render().split("\n")
    marked = source[carets.index("^") : len(carets)]
    assert set(carets.strip()) == {"^"} and marked.strip() == marked != ""


def test_the_rendering_has_place_line_and_caret() -> None:
    with pytest.raises(NativeError) as caught:
        define("@native\ndef f(größe: u64, b: i64) -> u64:\n\treturn größe + b * 1\n", **prelude())
    place, source, carets = caught.value.render().split("\n")
    assert place.endswith(
        ":3:17: error: + needs two values of one type, not u64 and i64: write cast(u64, b * 1), or cast the other"
    )
    assert (source, carets) == ("    \treturn größe + b * 1", "    \t               ^^^^^")


def test_what_is_defined_further_down_may_be_used() -> None:
    names = define(
        "@native\ndef f(a: u64) -> u64:\n    return g(a)\n\n@native\ndef g(a: u64) -> u64:\n    return a\n", **prelude()
    )
    assert model(names["f"])(3) == 3


def test_a_name_that_never_comes_is_an_error_at_the_first_use() -> None:
    source = "@native\ndef f(a: u64) -> u64:\n    return g(a)\n\ndef later():\n    g = 1\n"
    with pytest.raises(NativeError, match="unknown name 'g'"):
        define(source, **prelude())["f"].check()


def test_functions_without_source_are_refused() -> None:
    namespace: dict[str, Any] = {"native": native}
    exec("@native\ndef f() -> None: pass", namespace)
    with pytest.raises(NativeError, match=r"the source of f, .* cannot be found: define it in a file"):
        namespace["f"].check()


@pytest.mark.parametrize("text", ["", "def g():\n    pass\n", "def f():\n    return 7\n", "x = 1\n"])
def test_text_that_has_the_name_of_a_functions_text_by_chance_is_not_its_source(monkeypatch, text) -> None:
    """As Python 3.13 keeps what -c is given under the name that exec() uses, too."""
    monkeypatch.setitem(linecache.cache, "<string>", (len(text), None, text.splitlines(True), "<string>"))
    test_functions_without_source_are_refused()


def test_a_function_whose_text_is_kept_needs_no_file(monkeypatch) -> None:
    text = "\n@native\ndef f(a: u64) -> u64:\n    return a + 1\n"
    monkeypatch.setitem(linecache.cache, "<kept>", (len(text), None, text.splitlines(True), "<kept>"))
    namespace = {**prelude()}
    exec(compile(text, "<kept>", "exec"), namespace)
    assert model(namespace["f"])(3) == 4


SHELL = """import fprobe
@fprobe.native
def entry(fp, ip, ret, regs, data):
    return

print(fprobe.attach("libz:crc32", entry=entry).attach())
"""


@pytest.mark.parametrize(
    "words", [["-c", SHELL], in_stress(["-i", "-q"]), in_stress(["-"])], ids=["-c", "shell", "standard input"]
)
def test_handlers_without_a_file_work_where_python_keeps_their_text(words) -> None:
    ran = subprocess.run(
        [sys.executable, *words],
        input=SHELL,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "TERM": "dumb"},
    )
    if sys.version_info >= (3, 13) and words != ["-"]:
        assert "registered" in ran.stdout, ran.stderr
    else:
        assert (
            "entry, which native code is compiled from, cannot be found: define it in a file (Python 3.13 and"
            in ran.stderr
        )


@struct
class Empty:
    pass_: u8


DECLARATIONS = [
    (lambda: const(u8, 256), OverflowError, "256 does not fit u8 (0 to 255)"),
    (lambda: const(i8, -129), OverflowError, "-129 does not fit i8 (-128 to 127)"),
    (lambda: const(u8, 1.5), TypeError, "const takes an integer type and an int, not u8 and 1.5"),
    (lambda: const(ptr[u8], 1), TypeError, "const takes an integer type and an int, not ptr[u8] and 1"),
    (lambda: global_var(u8, 300), OverflowError, "300 does not fit u8 (0 to 255)"),
    (lambda: global_var(array[u8, 2], b"abc"), OverflowError, "initial has 3 values; array[u8, 2] holds 2"),
    (lambda: global_var(array[u8, 2], 1), TypeError, "initial is 1; array[u8, 2] takes bytes or a list of ints"),
    (
        lambda: global_var(array[u8, 2], ["a"]),
        TypeError,
        "initial is ('a',); array[u8, 2] takes bytes or a list of ints",
    ),
    (lambda: global_var(u8, 1.5), TypeError, "initial is 1.5; u8 takes an int"),
    (lambda: global_var(bool_, 2), OverflowError, "2 does not fit bool (0 to 1)"),
    (lambda: global_var(u64, [1]), TypeError, "initial is (1,); u64 takes an int"),
    (lambda: global_var(ptr[u8], 1), TypeError, "initial is 1; ptr[u8] can only start as zero: leave initial out"),
    (lambda: global_var(int), TypeError, "int has no width: write i64, u64, u32, ..."),
    (lambda: extern("f", 3), TypeError, "3 is not a type of the native language"),
    (lambda: array[u8], TypeError, "array takes an element type and a length: array[u64, 16]"),
    (lambda: array[u8, True], TypeError, "the length of an array must be a positive integer, not True"),
    (lambda: array[void, 3], TypeError, "an array's element cannot be void"),
    (lambda: fn[Empty], TypeError, "a result must be an integer, a bool, a pointer or void, not Empty"),
    (lambda: fn[void, void], TypeError, "a parameter must be an integer, a bool or a pointer, not void"),
    (lambda: ptr[ptr], TypeError, "ptr needs type arguments: write ptr[...]"),
    (lambda: native(3), TypeError, "@native takes a function written in Python, not 3"),
    (lambda: native(inline=True, noinline=True), ValueError, "inline and noinline are both True: choose one"),
    (lambda: native(cc="fast"), ValueError, "cc must be one of c, preserve_most, preserve_all, not 'fast'"),
    (lambda: native(inline=1), TypeError, "inline must be True or False, not 1"),
    (lambda: Unit("u", [len]), TypeError, "a unit takes @native functions, not <built-in function len>"),
    (lambda: struct(Empty), TypeError, "@struct takes a class, not <struct Empty>"),
    (lambda: struct(type("S", (), {})), TypeError, "struct S declares no fields: write `name: type` lines"),
    (lambda: Empty.offset("x"), AttributeError, "Empty has no field 'x'; it has pass_"),
]


@pytest.mark.parametrize(("declare", "kind", "message"), DECLARATIONS, ids=[str(d[2]) for d in DECLARATIONS])
def test_declarations_say_what_is_wrong(declare: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught:
        declare()
    assert str(caught.value) == message


STRUCTS = [
    ("class S:\n    a: int", "field 'a' of struct S: int has no width: write i64, u64, u32, ..."),
    ("class S:\n    a: Nowhere", "field 'a' of struct S: name 'Nowhere' is not defined"),
    ("class S:\n    a: void", "field 'a' of struct S cannot be void: use a pointer"),
    ("class S:\n    a: S", "field 'a' of struct S cannot be S: use a pointer"),
    ("class S:\n    a: array[S, 2]", "field 'a' of struct S cannot be array[S, 2]: use a pointer"),
    ("class S:\n    a: u8 = 1", "field 'a' of struct S has a value: remove it, fields start as zero"),
    ("class S(int):\n    a: u8", "struct S has a base class: declare its fields here instead"),
]


@pytest.mark.parametrize(("source", "message"), STRUCTS, ids=[s[1] for s in STRUCTS])
def test_structs_say_what_is_wrong(source: str, message: str) -> None:
    with pytest.raises((TypeError, NameError)) as caught:
        define(f"@struct\n{source}\nS.fields\n")
    assert str(caught.value) == message
