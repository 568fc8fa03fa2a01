"""Functions that do not take their arguments as their source says: values are right or not known, as the places in DWARF tell."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from sandbox.abi import convention
from sandbox.symbols.dwarf import DwarfInterface

COMPILERS = [each for each in ("gcc", "clang") if shutil.which(each)]
pytestmark = pytest.mark.skipif(not COMPILERS, reason="no C compiler")
NOT_KNOWN = "?"

OLD = """
__attribute__((noinline)) double half(a, b, c, d) float a; char b; short c; double d; { return a + b + c + d; }
double whole(float a, int z) { return a + z; }
"""

MICROSOFT = """
struct big { long a, b, c; };
#define MS __attribute__((ms_abi, noinline))
MS int mixed(int a, double b, int c) { return a + (int) b + c; }
MS int after(double a, int b) { return (int) a + b; }
MS int text(const char *s) { return s[0]; }
MS struct big made(int a, double b, int c, int d) { struct big r = {a, c, d}; return r; }
__attribute__((sysv_abi, noinline)) int common(int a, double b, int c) { int old = a; a = c; return old + a + (int) b; }
__int128 wide(__int128 a, int z) { return a + z; }
int above(int a, int b, int c, int d, int e, int f, struct big g, int z) { return a + b + c + d + e + f + g.b + z; }
"""

OF_ONE_FILE = """
#define APART static __attribute__((noinline))
int putchar(int);
struct big { long a, b, c; };
APART int ignored(int a) { putchar(a); return a * 2; }
APART int same(int a) { putchar(a); return 7; }
APART int lacks(int a, int b, int c) { putchar(a); return a + c; }
APART int constant(int a, int b, int c) { putchar(a); return a + b * c; }
APART long moved(int gone, const struct big *p, int z) { putchar(z); return p->b + z; }
APART int all(int a, double b, int z) { putchar(a); return a + (int) b + z; }
__attribute__((noinline)) int outside(int unused, int z) { putchar(z); return z; }
int used(int n, struct big *p) {
    ignored(n), ignored(n + 1);
    int sum = same(n) + same(n + 1) + lacks(n, 2, n) + lacks(n + 1, 3, n) + constant(n, 9, n) + constant(n + 1, 9, n);
    return sum + moved(1, p, n) + moved(2, p, n + 1) + all(n, n, n) + all(n + 1, 2.5, n) + outside(4, n);
}
"""


@pytest.fixture
def places(tmp_path):
    """From compiler, source and flags to a function from a name to the text of its places, that of the result last."""

    def made(compiler, source, *flags):
        command = [compiler, "-shared", "-fPIC", "-g", "-w", *flags, "-xc", "-", "-o", tmp_path / "a.so"]
        subprocess.run(command, input=source, text=True, check=True)
        interface = DwarfInterface((tmp_path / "a.so").read_bytes())

        def of(name):
            signature = interface.signature(name)
            if signature is None:
                return None  # a clone
            found = [place for _, place in convention.argument_places(signature)[0]]
            return " ".join(
                NOT_KNOWN if each is None else str(each) for each in (*found, convention.result_place(signature))
            )

        return of

    return made


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_float_without_a_prototype_is_a_double(tmp_path, compiler):
    (tmp_path / "a.c").write_text(OLD)
    subprocess.run(
        [compiler, "-c", "-g", "-w", "-std=gnu89", tmp_path / "a.c", "-o", tmp_path / "a.o", "-shared"], check=True
    )
    interface = DwarfInterface((tmp_path / "a.o").read_bytes())
    kinds = {name: interface.signature(name).parameters[0].type for name in ("half", "whole")}
    assert {name: (kind.kind, str(kind)) for name, kind in kinds.items()} == {
        "half": ("double", "float"),
        "whole": ("float", "float"),
    }


@pytest.mark.skipif("gcc" not in COMPILERS, reason="clang says it")
@pytest.mark.parametrize("flag", ["-O0", "-O2", "-Og"])
def test_the_convention_of_microsoft_is_noticed(places, flag):
    of = places("gcc", MICROSOFT, flag)
    assert of("mixed") == "? ? ? %ax"
    assert of("after").split()[1:] == ["?", "%ax"]
    assert of("text") == "? %ax"
    assert of("made") == "? ? ? ? ?"
    assert of("common") == "%di %xmm0 %si %ax"
    assert of("wide") == "%di %si %dx %ax %dx"
    assert of("above") == "%di %si %dx %cx %r8 %r9 $stack1 $stack4 %ax"


@pytest.mark.skipif("clang" not in COMPILERS, reason="gcc renames what it changes")
@pytest.mark.parametrize("flag", ["-O1", "-O2", "-gdwarf-4"])
def test_what_clang_leaves_out_is_not_known(places, flag):
    of = places("clang", OF_ONE_FILE, "-O2", flag)
    assert of("ignored").split()[-1] == of("same").split()[-1] == "?"
    assert of("lacks") == "%di ? ? ?"
    assert of("constant").split()[1:] == ["?", "?", "?"]
    assert of("moved") == "? ? ? ?"
    assert of("all").split()[:-1] == ["%di", "%xmm0", "%si"]
    assert of("outside") == "? %si %ax"


CONSTANTS = """
#define APART static __attribute__((noinline))
struct pair { long a, b; };
struct big { long a[5]; };
__attribute__((noinline)) void sink(const volatile void *p) { __asm__ volatile("" :: "r"(p) : "memory"); }
APART void last(int a, signed char b) { sink(&a); sink(&b); }
APART void first(_Bool a, _Bool b) { sink(&a); sink(&b); }
APART void floats(double a, double b, int c) { sink(&a); sink(&b); sink(&c); }
APART void in_pair(int x, struct pair l, int z) { sink(&x); sink(&l); sink(&z); }
APART void half(struct pair l, int z) { sink(&l); sink(&z); }
APART long in_memory(struct big b, int x) { sink(&x); return b.a[3] + b.a[1]; }
APART void twofold(_Complex double c, double z) { sink(&c); sink(&z); }
void used(int n, struct big *p) {
    struct pair both = {4, 5}, one = {n, 6};
    _Complex double c = 2;
    last(n, 124), last(n + 1, 124);
    first(0, n), first(0, n + 1);
    floats(1.5, n, n), floats(1.5, n + 1, n);
    in_pair(n, both, n), in_pair(n + 1, both, n);
    half(one, n), half(one, n + 1);
    sink((void *)(in_memory(*p, n) + in_memory(*p, n + 1)));
    twofold(c, n), twofold(c, n + 1);
}
"""


@pytest.mark.skipif("clang" not in COMPILERS, reason="gcc renames what it changes")
@pytest.mark.parametrize("flag", ["-O1", "-O2", "-O3", "-gdwarf-4"])
def test_constants_and_parts_of_structures_that_clang_passes_otherwise_are_not_known(places, flag):
    of = places("clang", CONSTANTS, "-O2", flag)
    assert of("last").split()[:2] == ["%di", "?"]
    assert of("first").split()[:2] == ["?", "?"]
    assert of("floats").split()[:3] == ["?", "?", "?"]
    assert of("in_pair").split()[:3] == ["%di", "?", "?"]
    assert of("half").split()[:2] == ["?", "?"]
    assert of("in_memory").split()[:2] == ["?", "?"]
    assert of("twofold").split()[:2] == ["?", "?"]


@pytest.mark.skipif("clang" not in COMPILERS, reason="gcc renames what it changes")
def test_after_optimisation_of_the_whole_program_only_exported_functions_are_as_written(places):
    """What is linked with -flto may have been made local, which debug information does not say."""
    hidden = OF_ONE_FILE.replace("APART static", 'APART __attribute__((visibility("hidden")))')
    of = places("clang", hidden, "-O2")
    assert of("lacks") == "%di ? ? ?"
    assert of("same") == "%di ?"
    assert of("outside") == "? %si %ax"


@pytest.mark.parametrize("compiler", COMPILERS)
def test_without_optimisation_all_is_known(places, compiler):
    of = places(compiler, OF_ONE_FILE, "-O0")
    assert of("lacks") == "%di %si %dx %ax"
    assert of("moved") == "%di %si %dx %ax"
    assert of("ignored") == "%di %ax"
    assert of("outside") == "%di %si %ax"


HOLLOW = """
struct gap { int : 32; int : 32; };
union hollow { int : 32; };
int after_struct(struct gap g, int z) { return z; }
int after_union(union hollow g, int z) { return z; }
"""


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_structure_whose_members_are_not_described_may_take_a_register(places, compiler):
    of = places(compiler, HOLLOW, "-O0")
    assert of("after_struct") == of("after_union") == "? ? %ax"
