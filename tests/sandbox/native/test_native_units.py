"""Units: what belongs to one, what others see of it, how it meets assembly and external symbols."""

from __future__ import annotations

import ctypes
import io
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile
from native_machine import define, isolated, load_functions

import sandbox
from sandbox.native import NativeError, Unit, array, u8
from sandbox.native.back.compile import compile_unit
from sandbox.native.back.fingerprint import fingerprint
from sandbox.native.back.lowering import ir
from sandbox.native.back.verify import verify_object
from sandbox.native.native_image import NativeImage
from sandbox.native.unit import Assembly

LINKED = """
doubled = extern("asm_double", fn[u64, u64])
word = extern("asm_word", u64)
counter = global_var(u64, 5)
shared = global_var(array[u8, 4], b"ab", name="shared_bytes")
mixed = global_var(array[i16, 3], [-1, 2])

@native
def hidden(a: u64) -> u64:
    return doubled(a) + 1

@native(export=True)
def shown(a: u64) -> u64:
    return a

@native(name="renamed", noinline=True, cc="preserve_most")
def original(a: u64) -> u64:
    return a ^ 1

@native
def entry(a: u64) -> u64:
    global counter
    counter += word
    return hidden(a) + shown(a) + original(a) + cast(u64, shared[1]) + counter

@native
def apply(f: fn[u64, u64], a: u64) -> u64:
    return f(a)

@native
def choose(which: bool_, a: u64) -> u64:
    f = hidden if which else doubled
    return apply(f, a) if f != null else 0

@native
def indirect(address: u64, a: u64) -> u64:
    return cast(fn[u64, u64], address)(a)

@native
def own_address() -> u64:
    return cast(u64, shown)

@native
def signed() -> i64:
    return cast(i64, mixed[0]) + cast(i64, mixed[1]) * 10 + cast(i64, mixed[2])
"""
ASSEMBLY = """.globl asm_double
asm_double:
    lea (%rdi,%rdi), %rax
    ret
.data
.globl asm_word
asm_word: .quad 40
.text"""


@isolated
def test_externs_globals_and_assembly_meet_in_one_unit() -> None:
    names = define(LINKED)
    functions = [names[name] for name in ("entry", "choose", "indirect", "own_address", "signed")]
    loaded = load_functions(*functions, assembly=ASSEMBLY)
    assert loaded.entry(10) == (10 * 2 + 1) + 10 + (10 ^ 1) + ord("b") + 45
    assert loaded.variable("counter").value == 45
    assert bytes(loaded.variable("shared_bytes", array[u8, 4])) == b"ab\0\0"
    assert (loaded.choose(True, 4), loaded.choose(False, 4)) == (9, 8)
    assert loaded.indirect(loaded.own_address(), 77) == 77
    assert loaded.signed() == 19


@isolated
def test_an_absolute_symbol_has_its_value_from_the_process_not_from_the_object() -> None:
    """Images of one object may each have another; an image that uses one of them has its value."""
    text = ".globl asm_number\nasm_number: movl $number, %eax\n ret"
    data = compile_unit(Unit("numbered", assembly=text))
    images = [NativeImage("numbered", data, absolute={"number": value}) for value in (872, 904)]
    images.append(NativeImage("user", data, uses=images[0]))
    assert [image.call("asm_number") for image in images] == [872, 904, 872]


def test_only_entry_points_and_exports_are_visible() -> None:
    names = define(LINKED)
    data = compile_unit(Unit("test", [names["entry"]], assembly=ASSEMBLY))
    table = ELFFile(io.BytesIO(data)).get_section_by_name(".symtab")
    visible = {
        s.name for s in table.iter_symbols() if s["st_info"]["bind"] == "STB_GLOBAL" and s["st_shndx"] != "SHN_UNDEF"
    }
    assert visible == {"entry", "shown", "renamed", "counter", "shared_bytes", "asm_double", "asm_word"}


def test_functions_of_one_name_live_side_by_side() -> None:
    text = "@native\ndef {name}(a: u64) -> u64:\n    return a + {n}\n"
    first, second = (define(text.format(name="same", n=n))["same"] for n in (1, 2))
    both = define("@native\ndef f(a: u64) -> u64:\n    return g(a) * h(a)\n", g=first, h=second)["f"]
    assert "@same.2(" in ir(Unit("test", [both]))
    with pytest.raises(ValueError, match="'same' names two functions or variables of this unit"):
        ir(Unit("test", [first, second]))


BESIDE = """
factorial = extern("factorial", fn[u64, u64])
total = global_var(u64)

@struct
class Pair:
    first: u64
    second: u64

pair = extern("pair", Pair)

@native
def decrement(a: u64) -> u64:
    return a - 1

@native
def entry(a: u64) -> u64:
    global total
    total += pair.first * pair.second + factorial(a)
    return total
"""
LLVM = """
@pair = global %Pair { i64 6, i64 7 }

define i64 @factorial(i64 %n) {
  %end = icmp eq i64 %n, 0
  br i1 %end, label %one, label %more
one:
  ret i64 1
more:
  %before = load i64, ptr @total
  %m = call i64 @decrement(i64 %n)
  %rest = call i64 @factorial(i64 %m)
  %product = mul i64 %n, %rest
  ret i64 %product
}
"""


@isolated
def test_a_unit_may_have_parts_in_llvm_ir() -> None:
    names = define(BESIDE)
    unit = Unit("test", [names["entry"], names["decrement"]], llvm=LLVM)
    image = NativeImage("test", compile_unit(unit))
    assert [image.call("entry", 5), image.call("entry", 3)] == [42 + 120, 42 + 120 + 42 + 6]
    assert image.call("factorial", 4) == 24


LACKING = """
lacking = extern("no_such_function_anywhere", fn[u64, u64])

@native
def entry(a: u64) -> u64:
    return lacking(a) if a != 0 else 0
"""


def test_an_image_that_refers_to_what_nobody_has_is_not_linked() -> None:
    unit = Unit("test", [define(LACKING)["entry"]])
    with pytest.raises(LookupError, match="test refers to no_such_function_anywhere"):
        NativeImage.of(unit)


USES = """
provided = extern("provided_by_an_image", fn[u64, u64])

@native(name="provided_by_an_image", noinline=True)
def provider(a: u64) -> u64:
    return a * 3

@native
def user(a: u64) -> u64:
    return provided(a) + 1
"""


@isolated
def test_an_image_may_use_the_symbols_of_another_one() -> None:
    names = define(USES)
    provider = NativeImage.of(Unit("provider", [names["provider"]]))
    user = Unit("user", [names["user"]])
    with pytest.raises(LookupError, match="user refers to provided_by_an_image"):
        NativeImage.of(user)
    assert NativeImage.of(user, uses=provider).call("user", 5) == 16


NAMES = """
@struct
class Größe:
    i32: u32
    π: u64

größte = global_var(Größe)

@native
def entry(t1: u64, entry: u64, then1: u64, ptr: u32, label: bool_) -> u64:
    i1: u64 = 1 if label else 2
    größte.π = t1
    return t1 + entry * 10 + then1 * 100 + cast(u64, ptr) * 1000 + i1 * 10000 + größte.π

@native(name="change")
def ändern(größe: ptr[Größe]) -> void:
    größe.π = entry(1, 2, 3, 4, True)
"""


@isolated
def test_any_python_name_may_be_used() -> None:
    names = define(NAMES)
    loaded = load_functions(names["entry"], names["ändern"])
    value = names["Größe"].ctypes()
    loaded.change(ctypes.addressof(value))
    assert value.π == 14322
    assert loaded.entry(1, 2, 3, 4, False) == 24322


@isolated
def test_a_function_may_be_declared_before_it_is_known() -> None:
    """Two files that need each other: one of them declares the other's function by its symbol."""
    text = 'later = extern("final", fn[u64, u64])\n@native\ndef first(a: u64) -> u64:\n    return later(a) + 1\n'
    first = define(text)["first"]
    final = define("@native\ndef final(a: u64) -> u64:\n    return a * 2\n")["final"]
    assert load_functions(first, final).first(21) == 43


def test_long_chains_are_compiled_or_refused() -> None:
    tests = "".join(f"    elif a == {i}:\n        return {i * i}\n" for i in range(1, 120))
    text = f"@native\ndef f(a: u64) -> u64:\n    if a == 0:\n        return 0\n{tests}    return 1\n"
    f = define(text)["f"]
    assert load_functions(f).f(119) == 119 * 119
    assert verify_object(compile_unit(Unit("u", [f]))) == []


def test_what_is_nested_beyond_reason_is_refused() -> None:
    text = "@native\ndef f(a: u64) -> u64:\n    if a == 0:\n        return 0\n"
    text += "".join(f"    elif a == {i}:\n        return {i}\n" for i in range(1, 600)) + "    return 1\n"
    with pytest.raises((NativeError, RecursionError), match=r"nested too deeply|during compilation"):
        define(text)["f"].check()


FAULTY = """
@native
def f(a: u64, i: u64) -> u64:
    t: array[u64, 4] = zeroed
    t[i] = a // i + a % i
    return t[0]
"""


@isolated
def test_what_went_wrong_is_counted() -> None:
    loaded = load_functions(define(FAULTY)["f"], checked=True)
    assert [loaded.f(9, 0), loaded.f(9, 1), loaded.f(9, 4), loaded.f(9, 1 << 63)] == [9, 0, 3, 9]
    assert loaded.variable("native.zero_divisions").value == 2
    assert loaded.variable("native.bad_indices").value == 2


COUNTED = """
@struct
class Pair:
    a: u32
    b: u32

LIMIT = {limit}
start = global_var(u64, {start})

@native(inline={inline})
def inner(p: ptr[Pair]) -> u32:
    return p.b + LIMIT if start != 0 else 0

@native
def f(p: ptr[Pair]) -> u32:
    return inner(p)
"""


def made(text: str = COUNTED, **values: Any) -> Any:
    return define(text.format(**{"limit": 1, "start": 2, "inline": False, **values}), __name__="fixed")["f"]


def test_a_fingerprint_changes_with_all_that_matters() -> None:
    """Each definition lies in a file of its own, so keys are compared within one."""
    f = made()
    keys = [fingerprint(Unit("u", [f])), fingerprint(Unit("v", [f])), fingerprint(Unit("u", [f]), 1)]
    keys += [fingerprint(Unit("u", [f], checked=True)), fingerprint(Unit("u", [f], assembly="nop"))]
    keys += [fingerprint(Unit("u", [f], llvm="; nothing")), fingerprint(Unit("u", [f]), "ir")]
    scope = f.__wrapped__.__globals__
    for name, value in (("LIMIT", 2), ("Pair", made().__wrapped__.__globals__["start"]), ("start", 3)):
        scope[name], before = value, scope[name]
        keys.append(fingerprint(Unit("u", [f])))
        scope[name] = before
    assert len(set(keys)) == len(keys)
    scope["unrelated"] = 7
    assert fingerprint(Unit("u", [f])) == keys[0], "what no function names does not matter"


UPGRADED = [
    "sandbox/native/front/operators.py",
    "sandbox/native/back/lower_expressions.py",
    "sandbox/native/intrinsics.py",
    "sandbox/x86_64/decoding.py",
    "llvmlite/_version.py",
]
KEYS_OF_THEIRS = """
import sys
from sandbox.native import native, u64, Unit
from sandbox.native.back import fingerprint

@native(eager=False)
def f(a: u64) -> u64:
    return a

def show_key():
    fingerprint._compiler.cache_clear()
    print(fingerprint.fingerprint(Unit("theirs", [f])))

show_key()
for path in sys.argv[1:]:
    with open(path, "a") as file:
        print("# edited", file=file)
    show_key()
"""


def test_an_upgrade_of_the_compiler_changes_the_keys_of_users_functions(tmp_path: Path) -> None:
    """Their own files have not changed: the cache would give what the old compiler made of them."""
    shutil.copytree(Path(sandbox.__file__).parent, tmp_path / "sandbox", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "llvmlite").mkdir()
    (tmp_path / "llvmlite" / "__init__.py").touch()
    (tmp_path / "llvmlite" / "_version.py").touch()
    (tmp_path / "theirs.py").write_text(KEYS_OF_THEIRS)
    command = [sys.executable, "theirs.py", *UPGRADED]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    keys = done.stdout.split()
    same = [path for path, key, before in zip(UPGRADED, keys[1:], keys, strict=False) if key == before]
    assert len(keys) == len(UPGRADED) + 1 and not same


class Shelf(dict[str, bytes]):
    """An object cache in memory."""

    def put(self, key: str, data: bytes) -> None:
        self[key] = data


def test_a_cached_object_is_not_compiled_again() -> None:
    shelf, f = Shelf(), made()
    data = compile_unit(Unit("u", [f]), cache=shelf)
    assert list(shelf.values()) == [data]
    shelf[next(iter(shelf))] = b"from the cache"
    assert compile_unit(Unit("u", [f]), cache=shelf) == b"from the cache"
    assert compile_unit(Unit("u", [f]), opt=1, cache=shelf) != b"from the cache"


def test_a_unit_knows_only_general_registers() -> None:
    with pytest.raises(ValueError, match="features must be 'no_sse', not 'avx'"):
        Unit("u", features="avx")


def test_assembly_may_be_made_when_the_unit_is_compiled():
    unit = Unit("made", [], assembly=Assembly(".text\n.globl {0}\n{0}: ret\n".format, ("only",)))
    assert "only: ret" in ir(unit)
    assert fingerprint(unit) == fingerprint(Unit("made", [], assembly=unit.assembly_text))
    assert fingerprint(unit) != fingerprint(Unit("made", [], assembly=Assembly(str, ("other",))))
