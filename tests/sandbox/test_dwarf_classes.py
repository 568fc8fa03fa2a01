"""Which classes of C++ are passed by reference, and other types whose form only debug information gives."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from sampled import in_stress, sampled

from sandbox.abi import convention
from sandbox.abi.signatures import Array, Complex, Integer, Record
from sandbox.symbols.dwarf import DwarfInterface
from sandbox.symbols.dwarf_classes import by_reference
from sandbox.symbols.dwarf_entries import type_die

COMPILERS = [each for each in ("g++", "clang++") if shutil.which(each)]
WHOLLY = {"g++": "-femit-class-debug-always", "clang++": "-fstandalone-debug"}
"""The flag that has each class described where it is used."""
pytestmark = pytest.mark.skipif(not COMPILERS, reason="the classes are in C++")

CLASSES = {
    "Plain": ("struct Plain { int v; };", False),
    "Made": ("struct Made { int v; Made(int); };", False),
    "Ended": ("struct Ended { int v; ~Ended(); };", True),
    "Copied": ("struct Copied { int v; Copied(const Copied &); };", True),
    "Moved": ("struct Moved { int v; Moved(Moved &&); };", True),
    "Assigned": ("struct Assigned { int v; Assigned &operator=(const Assigned &); };", False),
    "MoveAssigned": ("struct MoveAssigned { int v; MoveAssigned &operator=(MoveAssigned &&); };", True),
    "Defaulted": ("struct Defaulted { int v; Defaulted(const Defaulted &) = default; ~Defaulted() = default; };", False),
    "DefaultedLater": (
        "struct DefaultedLater { int v; ~DefaultedLater(); }; inline DefaultedLater::~DefaultedLater() = default;", True
    ),
    "OnlyMoved": ("struct OnlyMoved { OnlyMoved(const OnlyMoved &) = delete; OnlyMoved(OnlyMoved &&) = default; };", False),
    "Stuck": ("struct Stuck { int v; Stuck(const Stuck &) = delete; Stuck(Stuck &&) = delete; };", True),
    "Virtual": ("struct Virtual { int v; virtual void f(); };", True),
    "VirtualBase": ("struct VirtualBase : virtual Plain {};", True),
    "HasEnded": ("struct HasEnded { Ended each[2]; };", True),
    "IsEnded": ("struct IsEnded : private Ended {};", True),
    "PointsToEnded": ("struct PointsToEnded { Ended *each; static Ended one; };", False),
    "Template": ("template <class T> struct Template { T v; template <class U> Template(const Template<U> &); };", False),
    "TemplateCopied": ("template <class T> struct TemplateCopied { T v; TemplateCopied(const TemplateCopied &); };", True),
    "Lent": ("union Lent { int v; float w; Lent(const Lent &); };", True),
}  # fmt: skip


def used(name):
    kind = f"{name}<int>" if name.startswith("Template") else name
    return f'extern "C" long take_{name}({kind} *p) {{ return sizeof *p; }}'


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """From compiler, source and flags to the debug information."""
    directory, known = tmp_path_factory.mktemp("classes"), {}

    def made(compiler, source, *flags):
        key = compiler, source, flags
        if key not in known:
            path = directory / f"{len(known)}.so"
            command = [compiler, "-std=c++17", "-w", "-g", "-O1", "-shared", "-fPIC", "-x", "c++", "-", "-o", path]
            subprocess.run([*command, *flags], input=source.encode(), check=True)
            known[key] = DwarfInterface(path.read_bytes())
        return known[key]

    return made


WHOLE = "\n".join([text for text, _ in CLASSES.values()] + [used(name) for name in CLASSES])


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("name", CLASSES)
def test_classes_that_are_passed_by_reference(compiled, compiler, name):
    pointer = next(compiled(compiler, WHOLE, WHOLLY[compiler]).definition(f"take_{name}").iter_children())
    assert by_reference(type_die(type_die(pointer))) is CLASSES[name][1]


CALLS = """
struct Ended { int v; ~Ended(); }; struct Plain { int v; }; struct Node { Node(Node *, int); int a; };
Node::Node(Node *, int z) : a(z) {} Ended::~Ended() {}
extern "C" {
int by_value(Plain p, int z) { return p.v + z; }
int referred(Ended e, int z) { return e.v + z; }
int unused(Ended, Ended e, int z) { return z; }
Node built(int z) { return Node(nullptr, z); }
}
"""


@pytest.mark.parametrize("compiler", sampled(COMPILERS, 1))
@pytest.mark.parametrize("flag", [in_stress("-O0"), "-O2", "-gdwarf-4"])
def test_the_location_of_a_parameter_agrees(compiled, compiler, flag):
    interface = compiled(compiler, CALLS, flag)
    expected = {"by_value": ["%di", "%si"], "referred": ["+0(%di)", "%si"], "built": ["%di"]}
    for name, places in expected.items():
        found, _ = convention.argument_places(interface.signature(name))
        assert [str(place) for _, place in found] == places


TYPES = """
typedef float four __attribute__((vector_size(16)));
struct Bits { unsigned a : 3; signed b : 5; int c; };
struct __attribute__((packed)) Packed { char a; int b; };
struct Aligned { alignas(32) char a; };
struct Gaps { float a; int : 32; };
struct Owner { int a; int method(int); };
union Either { int a; float b[2]; };
typedef int (Owner::*Method)(int); typedef int Owner::*Data;
extern "C" {
int all(Bits b, Packed p, Aligned a, Gaps g, Either e, four v, _Complex double c, Method m, Data d, __int128 i) { return 0; }
}
"""


@pytest.mark.parametrize("compiler", COMPILERS)
def test_types_have_the_form_that_the_compiler_gives_them(compiled, compiler):
    signature = compiled(compiler, TYPES).signature("all")
    kinds = [parameter.type for parameter in signature.parameters]
    bits, packed, aligned, gaps, either, vector, complex_, method, data, wide = kinds
    assert all(isinstance(kind, Record) for kind in (bits, packed, aligned, gaps, either, method))
    assert bits.form.bits == ((0, 3), (3, 5), (32, 0))
    assert (packed.form.size, packed.form.alignment, packed.form.bits) == (5, 1, ((0, 0), (8, 0)))
    assert (aligned.form.size, aligned.form.alignment) == (32, 32)
    assert gaps.form is None if compiler == "clang++" and gaps.form is None else gaps.form.size == 8
    assert either.form.bits == ((0, 0), (0, 0))
    assert isinstance(vector, Array) and vector.is_vector and vector.count == 4
    assert isinstance(complex_, Complex) and str(complex_.element) == "double"
    assert [name for name, _ in method.fields] == ["ptr", "adj"]
    assert isinstance(data, Integer) and data.bits == 64 and wide.bits == 128


MISSING = """
struct Ended { int v; ~Ended(); };
int lacks(Ended, int z) { return z; }
int has(Ended e, int z) { return e.v + z; }
"""


@pytest.mark.skipif("clang++" not in COMPILERS, reason="gcc describes all parameters")
def test_a_parameter_that_debug_information_lacks_makes_all_uncertain(compiled):
    interface = compiled("clang++", MISSING, "-O0")
    lacks = convention.argument_places(interface.signature("_Z5lacks5Endedi"))[0]
    has = convention.argument_places(interface.signature("_Z3has5Endedi"))[0]
    assert [str(place) for _, place in has] == ["+0(%di)", "%si"]
    assert [place for _, place in lacks] in ([None], [convention.Place(((0, 112, 8),), 4, True), has[1][1]])
