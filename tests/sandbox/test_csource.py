"""C and C++ programs."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from sampled import in_stress

from sandbox import load
from sandbox.compile.codegen import ProgramError
from sandbox.loading import module
from sandbox.loading.linker import LinkError
from sandbox.loading.module import ModuleState
from sandbox.memory import mappings as memory
from sandbox.memory import pages
from sandbox.symbols.table import symbol_table
from sandbox.x86_64.encoding import NOP5

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
needs_cxx = pytest.mark.skipif(not shutil.which("c++"), reason="no C++ compiler")

SOURCE = r"""
#include <complex.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
struct point { int x; double y; };
struct big { long a[3]; char c; };
struct node { struct node *next; int v; };
struct __attribute__((packed)) squeezed { char a; int b; };
struct bits { int a : 3; int b : 5; };
union either { int a; float b; };
enum color { RED, GREEN };
typedef unsigned long word;
static int state;
int counter = 3;
const char banner[] = "hello";
__attribute__((constructor)) static void setup(void) { state = 7; }
int get_state(void) { return state; }
static long helper(long a) { return a * 3; }
long twice(long a) { return helper(a) + helper(a + 1); }
struct point make(int x, double y) { struct point p = { x, y }; return p; }
double sum(struct point p) { return p.x + p.y; }
struct big grow(long a) { struct big b = { { a, a + 1, a + 2 }, 'z' }; return b; }
long shrink(struct big b) { return b.a[2] + b.c; }
int packed(struct squeezed p) { return p.b + p.a; }
int of_union(union either u) { return u.a; }
int of_bits(struct bits b) { return b.a; }
double complex turned(double complex z) { return z * I; }
size_t length(const char *s) { return strlen(s); }
enum color next(enum color c) { return c + 1; }
word mixed(word a, unsigned char b, bool c, float f, long double ld) { return a + b + c + (long)f + (long)ld; }
long added(int n, ...) {
    va_list l; long r = 0;
    va_start(l, n);
    for (int i = 0; i < n; i++) r += va_arg(l, long);
    va_end(l);
    return r;
}
int apply(int (*fn)(int, const char *), int a, struct node *const n) { return fn ? fn(a, "xyz") : n ? n->v : a; }
void bump(void) { counter++; }
int read(int a) { return a + 1000; }
int call_read(int a) { return read(a); }
int outer(int a) { int inner(int b) { return a + b; } volatile int x = 3; return inner(x); }
int eight(int a, int b, int c, int d, int e, int f, int g, int h) { return g - h; }
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("source") / "prog.c"
    path.write_text(SOURCE)
    return path


@pytest.fixture(scope="module")
def program(source):
    loaded = load(source)
    yield loaded
    loaded.unload()


def test_every_function_has_a_stub_which_is_one_nop(program):
    assert program.name == "prog" and program.site_kind == "patchable"
    names = {symbol.name for symbol in program.site_functions}
    assert {"twice", "helper", "setup", "outer", "read"} <= names
    assert {symbol.name for symbol in program.functions} - names == {"__muldc3"}  # of libgcc
    for site, symbol in zip(program.sites, program.site_functions, strict=True):
        assert 0 <= site - symbol.address <= 4
        assert program.texts[0].read(site, 5) == NOP5


def test_stubs_can_be_written_and_what_is_written_runs(program):
    symbol = program.symbol("helper")
    site = program.sites[program.site_functions.index(symbol)]
    program.texts[0].write(site, bytes.fromhex("4889f8c390"))  # mov rax, rdi; ret
    pages.sync_cores()
    assert program["twice"](10) == 21
    program.texts[0].write(site, NOP5)
    pages.sync_cores()
    assert program["twice"](10) == 63


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("get_state", (), 7),
        ("make", (3, 2.5), (3, 2.5)),
        ("sum", ((1, 2.5),), 3.5),
        ("sum", ({"y": 1.5},), 1.5),
        ("grow", (5,), ((5, 6, 7), 122)),
        ("shrink", (((1, 2, 3), 65),), 68),
        ("length", ("hello",), 5),
        ("length", (b"a\0b",), 1),
        ("next", (0,), 1),
        ("mixed", (1, 2, True, 3.5, 4.5), 11),
        ("added", (3, 1, 2, 2**40), 2**40 + 3),
        ("apply", (None, 4, 0), 4),
        ("call_read", (1,), 1001),
        ("outer", (4,), 7),
        ("eight", (0, 0, 0, 0, 0, 0, 70, 7), 63),
        ("bump", (), None),
    ],
)
def test_arguments_and_results_are_those_of_c(program, name, arguments, expected):
    assert program[name](*arguments) == expected


def test_structures_of_ctypes_and_callbacks(program):
    class Node(ctypes.Structure):
        _fields_ = [("next", ctypes.c_void_p), ("v", ctypes.c_int)]

    callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p)(lambda a, s: a * len(s))
    assert program["apply"](callback, 5, None) == 15
    assert program["apply"](0, 5, Node(None, 9)) == 9
    assert program["make"](1, 2.0).y == 2.0


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("length", "size_t length(const char *s)"),
        ("make", "struct point make(int x, double y)"),
        ("apply", "int apply(int (*fn)(int, const char *), int a, struct node *const n)"),
        ("mixed", "word mixed(word a, unsigned char b, _Bool c, float f, long double ld)"),
        ("next", "enum color next(enum color c)"),
        ("added", "long int added(int n, ...)"),
        ("bump", "void bump()"),
    ],
)
def test_signatures_are_written_as_in_c(program, name, written):
    text = re.sub(
        r"\bbool\b", "_Bool", str(program[name].signature)
    )  # the name in C23, which is gcc's default from 15 on
    assert text == written


@pytest.mark.parametrize(
    ("name", "arguments", "error", "message"),
    [
        ("mixed", (-1, 2, 1, 1, 1), OverflowError, r"mixed\(\) argument 1 \(a\): -1 is out of range for word"),
        ("length", (), TypeError, r"length\(\) takes 1 argument, not 0 \(\): size_t length\(const char \*s\)"),
        ("of_union", (1,), TypeError, r"of_union\(\) cannot be called .* union either .* unions by value"),
        ("packed", ((1, 500),), TypeError, r"packed\(\) cannot be called .* struct squeezed .* it is packed"),
        ("of_bits", ((1, 2),), TypeError, r"of_bits\(\) cannot be called .* struct bits .* bit fields"),
        ("turned", (1j,), TypeError, r"turned\(\) cannot be called .* complex double .* complex number"),
    ],
)
def test_what_cannot_be_called_so_says_why(program, name, arguments, error, message):
    with pytest.raises(error, match=message):
        program[name](*arguments)


def test_data_has_addresses(program):
    sizes = {symbol.name: symbol.size for symbol in program.data}
    assert sizes == {"counter": 4, "state": 4, "banner": 6}
    assert ctypes.string_at(symbol_table.lookup("prog:banner")) == b"hello"


def test_nested_functions_have_their_frame_in_r10(program):
    assert {name.partition(".")[0] for name in program.scratch_taken} == {"inner"}


NESTED = "int outer(int n) { int inner(int x) { return x + n; } int (*volatile f)(int) = inner; return f(1); }"


@pytest.mark.parametrize("flags", ["", in_stress("-gz"), in_stress("-gdwarf-4"), "-O2"])
def test_nested_functions_are_found_in_debug_information_of_every_form(tmp_path, flags):
    (tmp_path / "nested.c").write_text(NESTED)
    # It is not run, so that its pointer to a function on the stack does no harm. glibc >= 2.41 has no executable stacks.
    nested = load(tmp_path / "nested.c", name="nested", cflags=["-Wl,-z,noexecstack", *flags.split()])
    found = nested.scratch_taken
    nested.unload()
    assert {name.partition(".")[0] for name in found} == {"inner"}


def test_where_stacks_cannot_be_executable_the_error_says_what_to_do(tmp_path):
    """glibc allows them up to 2.40, though a thread's stack may be made so too late."""
    (tmp_path / "nested.c").write_text(NESTED)
    if tuple(map(int, os.confstr("CS_GNU_LIBC_VERSION").split()[1].split("."))) < (2, 41):
        load(tmp_path / "nested.c", name="nested").unload()
        return
    with pytest.raises(LinkError, match=r"executable stack .*2\.41 .* cflags=\['-Wl,-z,noexecstack'\]"):
        load(tmp_path / "nested.c", name="nested")


def test_debug_information_is_not_read_for_nested_functions_where_there_are_none(tmp_path, monkeypatch):
    (tmp_path / "flat.c").write_text("int f(int x) { return x; } int g(int x) { return f(x); }")
    loaded = load(tmp_path / "flat.c", name="flat")
    monkeypatch.setattr("elftools.elf.elffile.ELFFile", None)
    assert loaded.scratch_taken == frozenset()
    loaded.unload()


def test_constructors_run_between_coming_and_live(source):
    states = []

    def look(event, loaded):
        if loaded.name == "watched" and event is not ModuleState.GOING:
            states.append((event, loaded["get_state"]()))

    module.register_module_notifier(look)
    try:
        load(source, name="watched").unload()
    finally:
        module.unregister_module_notifier(look)
    assert states == [(ModuleState.COMING, 0), (ModuleState.LIVE, 7)]


@pytest.mark.usefixtures("program")
def test_each_load_has_its_own_state(source):
    other = load(source, name="other", cflags=["-O2", "-DUNUSED=1"])
    before = ctypes.c_int.from_address(symbol_table.lookup("prog:counter")).value
    other["bump"]()
    assert ctypes.c_int.from_address(symbol_table.lookup("prog:counter")).value == before
    assert ctypes.c_int.from_address(symbol_table.lookup("other:counter")).value == 4
    other.unload()


def test_unloading_unmaps_and_deletes(source, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = set(Path(tempfile.gettempdir()).glob("fprobe-*"))
    loaded = load(source, name="passing")
    address = loaded["twice"].address
    assert set(Path(tempfile.gettempdir()).glob("fprobe-*")) - before
    loaded.unload()
    gc.collect()
    assert not set(Path(tempfile.gettempdir()).glob("fprobe-*")) - before
    assert not [entry for entry in memory.mappings() if entry[0] <= address < entry[1] or "passing" in entry[3]]


def test_notrace_and_no_stubs(source):
    some = load(source, name="some", notrace=["twice", "helper"])
    none = load(source, name="none", flavour="none")
    assert not {"twice", "helper"} & {symbol.name for symbol in some.site_functions}
    assert len(some.sites) > 10 and some["twice"](1) == 9
    assert none.site_kind == "none" and not len(none.sites) and none["twice"](1) == 9
    some.unload(), none.unload()


@needs_cxx
def test_cxx(tmp_path):
    path = tmp_path / "shapes.cpp"
    path.write_text(
        """
        #include <string>
        #include <stdexcept>
        namespace shapes {
        struct Square { int side; int area() const { return side * side; } };
        int area(const Square &square) { return square.area(); }
        int caught(int n) {
            try { if (n) throw std::runtime_error("no"); } catch (std::exception &e) { return n; }
            return 0;
        }
        struct Guard { int n; ~Guard() { n = 0; } };
        int guarded(Guard guard) { return guard.n; }
        }
        static std::string greeting = "hello";
        extern "C" size_t greeting_length() { return greeting.size(); }
        """
    )
    loaded = load(path)
    assert loaded["_ZN6shapes4areaERKNS_6SquareE"](bytes([5, 0, 0, 0])) == 25
    assert str(loaded["_ZN6shapes4areaERKNS_6SquareE"].signature) == "int area(const Square &square)"
    assert str(loaded["_ZNK6shapes6Square4areaEv"].signature) == "int area(const Square *const this)"
    assert loaded["_ZN6shapes6caughtEi"](4) == 4
    assert loaded["greeting_length"]() == 5
    name = next(symbol.name for symbol in loaded.functions if "shapes7guarded" in symbol.name)
    with pytest.raises(TypeError, match=r"Guard cannot be passed: C\+\+ may pass objects with a constructor"):
        loaded[name]((1,))
    loaded.unload()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("int f( { return 1; }", r"bad.c: does not compile:\n.*bad.c:1:8: error"),
        ("#include <nosuch.h>\n", r"bad.c: does not compile:\n.*nosuch.h"),
    ],
)
def test_a_file_that_does_not_compile(tmp_path, text, message):
    path = tmp_path / "bad.c"
    path.write_text(text)
    with pytest.raises(ProgramError, match=message):
        load(path)
    assert not list(Path(tempfile.gettempdir()).glob("fprobe-*/bad.so"))


def test_missing_symbols_are_named(tmp_path):
    path = tmp_path / "lost.c"
    path.write_text("void nosuch(void); void f(void) { nosuch(); }")
    with pytest.raises(LinkError, match="module 'lost' cannot be opened: undefined symbol: nosuch"):
        load(path)


def test_no_compiler(source, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(ProgramError, match=r"no C compiler found: looked for cc, gcc, clang; set \$CC, or install one"):
        load(source, name="x")
    monkeypatch.setenv("CC", "/nonexistent/cc -m64")
    with pytest.raises(ProgramError, match="the C compiler '/nonexistent/cc' cannot be run: No such file"):
        load(source, name="x")


def test_another_count_of_nops_is_refused(source):
    with pytest.raises(ValueError, match=r"holds .* not 5 bytes of NOP"):
        load(source, name="x", cflags=["-fpatchable-function-entry=3"])


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "nosuch.c")


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_libraries_come_after_the_source_that_needs_them(tmp_path):
    """A linker that drops libraries that nothing has needed yet looks at them in order."""
    (tmp_path / "mine.c").write_text("long mine(long x) { return x + 1; }")
    subprocess.run(["cc", "-fPIC", "-c", "mine.c"], cwd=tmp_path, check=True)
    subprocess.run(["ar", "rc", "libmine.a", "mine.o"], cwd=tmp_path, check=True)
    path = tmp_path / "uses.c"
    path.write_text("long mine(long); long use(long x) { return mine(x) * 2; }")
    module = load(path, name="uses", cflags=[f"-L{tmp_path}", "-lmine", "-O2"])
    try:
        assert module["use"](4) == 10
    finally:
        module.unload()


@pytest.mark.parametrize("option", ["-gsplit-dwarf", "-gdwarf-4 -gsplit-dwarf", "-gsplit-dwarf -O2"])
def test_types_are_known_though_split_debug_information_is_asked_for(option, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "split.c"
    path.write_text("struct pair { int a, b; };\nint total(struct pair p) { return p.a + p.b; }\n")
    made = load(path, cflags=option.split())
    assert made["total"]({"a": 1, "b": 2}) == 3
    assert [each.name for each in tmp_path.iterdir()] == ["split.c"]
    made.unload()


def test_types_are_known_though_the_compiler_is_told_to_split_debug_information(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", "cc -gsplit-dwarf")
    path = tmp_path / "splitcc.c"
    path.write_text("int thrice(int x) { return 3 * x; }\n")
    made = load(path)
    assert made["thrice"](2) == 6
    made.unload()


def on_noexec(monkeypatch, *directories: object) -> None:
    """Let these directories be on a file system that is mounted noexec, as `os.statvfs` tells."""
    real = os.statvfs

    def told(path):
        found = real(path)
        values = list(found[:10])
        values[8] |= os.ST_NOEXEC * (str(path) in map(str, directories))
        return os.statvfs_result((*values, 0))

    monkeypatch.setattr(os, "statvfs", told)


def test_a_program_is_opened_from_another_directory_if_temporary_files_are_on_noexec(tmp_path, monkeypatch):
    """Hazard: dlopen cannot map a file there."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    on_noexec(monkeypatch, tmp_path)
    path = tmp_path / "elsewhere.c"
    path.write_text("int four(void) { return 4; }\n")
    made = load(path)
    assert made["four"]() == 4 and [each.name for each in tmp_path.iterdir()] == ["elsewhere.c"]
    made.unload()


def test_where_every_directory_is_on_noexec_the_error_names_them(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    on_noexec(monkeypatch, tmp_path, "/var/tmp", "/dev/shm", Path.home())
    path = tmp_path / "nowhere.c"
    path.write_text("int four(void) { return 4; }\n")
    with pytest.raises(LinkError, match=f"'nowhere' cannot be opened: {tmp_path}, /var/tmp, .* noexec .* set TMPDIR"):
        load(path)
