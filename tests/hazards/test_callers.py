"""Hazard: functions that look at their return address, to know their caller. A hooked return shows them a stub."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import textwrap
from pathlib import Path
from tempfile import mkdtemp

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "fprobe/cli"))

from command import forked
from isolation import TESTS, isolated, run_source
from sampled import in_stress, sampled

import fprobe
import kprobes
import sandbox
from sandbox.native import u64

PATHS = f"{TESTS}:{Path(__file__).parent}"
READS = "reads its own return address"
TAILS = """
#define _GNU_SOURCE
#include <dlfcn.h>
void *next(const char *name) { return dlsym(RTLD_NEXT, name); }
void *opened(const char *name, int never) { return never ? 0 : dlopen(name, RTLD_NOW); }
int plain(int x) { return x + 1; }
__attribute__((visibility("hidden"))) void *site(void) { return __builtin_return_address(0); }
void *exported(void) { return __builtin_return_address(0); }
void *near(int never) { return never ? 0 : site(); }
void *through(int never) { return never ? 0 : exported(); }
int calls(const char *name) { return dlsym(RTLD_NEXT, name) != 0; }
int found(void) { return next("getpid") != 0 && opened("libplugged.so", 0) != 0; }
"""
SOURCE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <setjmp.h>
int own = 5;
int next(void) { return dlsym(RTLD_NEXT, "getpid") != 0; }
int next_version(void) { return dlvsym(RTLD_NEXT, "memcpy", "GLIBC_2.14") != 0; }
int in_own_scope(void) { return dlsym(RTLD_DEFAULT, "own") == &own; }
int by_runpath(void) { return dlopen("libplugged.so", RTLD_NOW) != 0; }
int in_namespace(void) { return dlmopen(LM_ID_NEWLM, "libplugged.so", RTLD_NOW) != 0; }

void *caller(void) { return __builtin_return_address(0); }
__attribute__((optimize("no-omit-frame-pointer", "O0"))) void *framed(void) { void *to = __builtin_return_address(0); return to; }
long seven(long a, long b, long c, long d, long e, long f, long g) { return a + 2 * g; }
long vectors(int n, ...) {
  __builtin_va_list l; __builtin_va_start(l, n); double s = 0;
  while (n--) s += __builtin_va_arg(l, double); return s; }
long aligned(long n) { _Alignas(64) volatile char room[256]; room[n] = 3; return room[n] + ((long)room & 63); }

static jmp_buf out;
void leave(void) { longjmp(out, 1); }
int opens_and_leaves(const char *path) { return setjmp(out) ? 1 : dlopen(path, RTLD_NOW) != 0; }
int uses_the_stack(void) { volatile char room[4096]; for (int i = 0; i < 4096; i++) room[i] = 1; return room[9]; }
"""
OTHER = "int plugged(int x) { return x + 1; }\n"
LEAVES = "void leave(void);\n__attribute__((constructor)) static void begin(void) { leave(); }\n"
OPENS = """
#include <dlfcn.h>
#include <stdlib.h>
__attribute__((constructor)) static void begin(void) { dlopen(getenv("INNER"), RTLD_NOW); }
int outside(int x) { return x + 2; }
"""


def build(directory: Path, name: str, source: str, *flags: str) -> Path:
    path = directory / f"lib{name}.so"
    command = [
        "gcc",
        "-O2",
        "-fno-optimize-sibling-calls",
        "-shared",
        "-fPIC",
        "-o",
        str(path),
        "-x",
        "c",
        "-",
        "-x",
        "none",
    ]
    subprocess.run([*command, *flags], input=source, text=True, check=True)
    return path


def files() -> Path:
    directory = Path(mkdtemp(prefix="callers-"))
    (directory / "plug").mkdir()
    build(directory / "plug", "plugged", OTHER)
    build(directory, "caller", SOURCE, "-Wl,-rpath,$ORIGIN/plug")
    build(directory, "leaves", LEAVES, str(directory / "libcaller.so"))
    build(directory, "outside", OPENS)
    return directory


@pytest.fixture(scope="module")
def built() -> Path:
    return files()


def launched(built: Path, words: list[str], source: str, code: int = 0) -> str:
    done = forked(["run", *words, "-c", textwrap.dedent(source)], 100, built)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


LOOKS = """
    import ctypes
    library = ctypes.CDLL("./libcaller.so")
    print([getattr(library, name)() for name in
        ("next", "next_version", "in_own_scope", "by_runpath", "in_namespace")])
"""


@pytest.mark.parametrize(
    "pattern", sampled(["libnever:x", "libcaller:*", "libplugged:*", "libc:dl*sym", "libc:dl*open"], 1)
)
def test_the_loader_finds_a_programs_libraries_and_symbols_by_their_caller(built, pattern):
    code = 0 if pattern.endswith(":*") else 1  # nothing is probed
    assert "[1, 1, 1, 1, 1]" in launched(built, ["--stat", pattern], LOOKS, code)


def test_a_library_is_probed_before_dlopen_and_dlmopen_return(built):
    out = launched(
        built,
        ["--stat", "libplugged:*"],
        """
        import ctypes
        library = ctypes.CDLL("./libcaller.so")
        assert library.by_runpath()
        found = ctypes.CDLL("plug/libplugged.so")
        assert [found.plugged(n) for n in range(7)] == list(range(1, 8))
        """,
    )
    assert " 7  plugged" in out


@pytest.mark.stress
def test_a_library_is_probed_though_longjmp_has_left_the_dlopen_of_another(built):
    out = launched(
        built,
        ["--stat", "libplugged:*"],
        """
        import ctypes
        library = ctypes.CDLL("./libcaller.so", mode=ctypes.RTLD_GLOBAL)
        assert library.opens_and_leaves(b"./libleaves.so") == 1
        assert library.uses_the_stack() == 1  # of Python 3.14, a frame that leaves it as it was may lie there
        def deep(n):
            return deep(n - 1) + 0 if n else ctypes.CDLL("plug/libplugged.so").plugged(1)
        assert list(map(deep, (9,))) == [2]
        """,
    )
    assert " 1  plugged" in out


@pytest.mark.stress
def test_a_library_whose_constructor_loads_another_is_probed_and_so_is_the_other(built):
    out = launched(
        built,
        ["--stat", "libplugged:*", "--stat", "liboutside:outside"],
        """
        import ctypes, os
        os.environ["INNER"] = os.path.abspath("plug/libplugged.so")
        assert ctypes.CDLL("./liboutside.so").outside(1) == 3
        assert ctypes.CDLL("plug/libplugged.so").plugged(1) == 2
        """,
    )
    assert " 1  plugged" in out and " 1  outside" in out


@pytest.mark.stress
def test_threads_that_load_libraries_with_and_without_the_gil_do_not_wait_for_each_other(built):
    out = launched(
        built,
        ["--stat", "libnever:x", "--stat", "libplugged:*"],
        """
        import ctypes, threading
        names = ["plug/libplugged.so".encode(), b"./libcaller.so"]
        def load(libc):
            libc.dlopen.restype = ctypes.c_void_p
            libc.dlclose.argtypes = [ctypes.c_void_p]
            for n in range(60):
                handle = libc.dlopen(names[n & 1], 2)
                assert handle and libc.dlclose(handle) == 0
        kinds = [ctypes.CDLL(None), ctypes.PyDLL(None)] * 2
        threads = [threading.Thread(target=load, args=(kind,)) for kind in kinds]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        print("all done")
        """,
    )
    assert "all done" in out


@isolated(timeout=100)
def test_exit_handlers_are_refused_where_a_library_reads_its_return_address():
    library = ctypes.CDLL(str(files() / "libcaller.so"))
    with fprobe.attach("libcaller:*", action=fprobe.Stat()) as probe:
        skipped = {each.name.partition(" ")[0]: each.reason for each in probe.skipped}
        assert {name for name, reason in skipped.items() if READS in reason} == {"caller", "framed"}
        assert library.seven(1, 2, 3, 4, 5, 6, 7) == 15 and library.aligned(9) == 3
        assert library.vectors(2, ctypes.c_double(1), ctypes.c_double(2)) == 3
    for name in ("caller", "framed"):
        with pytest.raises(OSError, match=f"{name}.* cannot be probed: it {READS}"):
            kprobes.register_kretprobe(kprobes.kretprobe(symbol_name=f"libcaller:{name}", handler=nothing))


@kprobes.native
def nothing(ri, regs):
    counted[0] += 1


counted = fprobe.Array(u64, 1, shared=True)


@isolated(timeout=100)
def test_a_function_with_entry_probes_reads_its_true_return_address():
    library = ctypes.CDLL(str(files() / "libcaller.so"))
    for name in ("caller", "framed"):
        function = getattr(library, name)
        function.restype = ctypes.c_void_p
        before = function()
        with fprobe.attach(f"libcaller:{name}", action=fprobe.Count()) as fp:
            assert function() == before
            with kprobes.attach(f"libcaller:{name}", action=kprobes.Count()) as kp:
                assert function() == before
                kprobes.wait_for_kprobe_optimizer()
                assert function() == before
        assert (fp.hits, kp.hits) == (3, 2)


@pytest.mark.stress
@pytest.mark.parametrize(
    "flags", sampled([["-fplt"], ["-fno-plt"], ["-fplt", "-fcf-protection=full", "-Wl,-z,lazy"]], 1)
)
def test_exit_handlers_are_refused_where_a_tail_call_leads_to_dlsym_or_dlopen(built, flags):
    build(built, "tails", TAILS, "-foptimize-sibling-calls", "-Wl,-rpath,$ORIGIN/plug", *flags)
    out = launched(
        built,
        ["--stat", "libtails:*"],
        """
        import ctypes
        print("found", ctypes.CDLL("./libtails.so").found(), ctypes.CDLL("./libtails.so").calls(b"getpid"))
        """,
    )
    assert "found 1 1" in out
    assert {line.split()[3] for line in out.splitlines() if "which reads the return address" in line} == {
        "next",
        "opened",
    }
    assert " 1  calls" in out


FILLING = "".join(f"int filling_{number}(int x) {{ return x * {number} + 1; }}\n" for number in range(40))
JUMPS = r"""
#define FAR __attribute__((noinline, noipa))
FAR void *reads(void) { return __builtin_return_address(0); }
FAR void *filler(int x) { __asm__ volatile("" :: "r"(x)); return __builtin_return_address(0); }
FAR void *once(void) { return reads(); }
FAR void *twice(void) { return once(); }
FAR void *in_a_circle(int n);
FAR void *circle(int n) { return n & 1 ? in_a_circle(n - 1) : twice(); }
FAR void *in_a_circle(int n) { return n ? circle(n - 1) : 0; }
FAR void *by_table(int n) {
  switch (n) { case 0: return reads(); case 1: return once(); case 2: return filler(3); case 3: return twice();
               case 4: return in_a_circle(1); default: return 0; } }
__asm__(".globl if_zero\n.type if_zero, @function\nif_zero: test %edi, %edi\nje reads@PLT\nxor %eax, %eax\nret\n"
        ".size if_zero, .-if_zero\n");
void *if_zero(int);
static FAR void *hidden(void) { return __builtin_return_address(0); }
__asm__(".globl by_address\n.type by_address, @function\nby_address: lea hidden(%rip), %r11\nmov %r11, %rax\njmp *%rax\n"
        ".size by_address, .-by_address\n");
void *by_address(int);
FAR void *chosen(int n) { void *(*to)(void) = n ? twice : reads; return to(); }
FAR void *by_slot(void) { void *(*to)(void) = reads; __asm__ volatile("" : "+r"(to)); return to(); }
FAR void *given(void *(*to)(void)) { return to(); }
FAR int other_jump(int n) { int (*to)(int) = n ? &filling_2 : &filling_3; return to(n); }
int looks(void) {
  char *of[] = {once(), twice(), circle(0), by_table(0), by_table(1), by_table(3), if_zero(0),
                by_address(0), chosen(0), chosen(1), by_slot()};
  int found = other_jump(0) + other_jump(1) - 4 + (int)(long)!hidden() + !given(reads);
  for (int i = 0; i < 11; i++) found += of[i] > (char *)looks && of[i] < (char *)looks + 600;
  return found; }
"""


@pytest.mark.parametrize("pattern", ["*", in_stress("[!r]*"), in_stress("[otcib]*")])
@isolated(timeout=100)
def test_exit_handlers_are_refused_where_jumps_lead_to_a_reader_over_others(pattern):
    """Of many functions, of many without the reader, and of a few."""
    path = build(Path(mkdtemp(prefix="callers-")), "jumps", FILLING + JUMPS, "-foptimize-sibling-calls")
    library = ctypes.CDLL(str(path))
    assert library.looks() == 11
    with fprobe.attach([f"libjumps:{pattern}", "libjumps:filling_1"], action=fprobe.Stat()) as probe:
        assert library.looks() == 11, probe.skipped
        skipped = {each.name.partition(" ")[0] for each in probe.skipped} - {"reads", "filler", "hidden"}
    expected = {"once", "twice", "circle", "in_a_circle", "by_table", "if_zero", "by_address", "chosen", "by_slot"}
    assert skipped == expected, skipped ^ expected


@pytest.mark.stress
@pytest.mark.parametrize("flags", sampled([["-O0"], ["-O1"], ["-O2", "-fno-omit-frame-pointer"]], 1))
def test_return_addresses_that_are_only_noted_by_a_tracer_are_no_reason(flags):
    path = build(Path(mkdtemp(prefix="callers-")), "traced", TRACED, "-finstrument-functions", *flags)
    done = run_source(f"import test_callers; test_callers.check_traced({str(path)!r})", timeout=60, PYTHONPATH=PATHS)
    assert done.returncode == 0, done.stderr


def check_traced(path):
    library = ctypes.CDLL(path)
    with fprobe.attach("libtraced:*", action=fprobe.Stat()) as probe:
        assert library.traced(1) == 2
        refused = {each.name.partition(" ")[0] for each in probe.skipped if READS in each.reason}
    assert refused == {"caller"} and probe.hits >= 1, probe.skipped


TRACED = """
static void *seen;
#define NO __attribute__((no_instrument_function))
NO void __cyg_profile_func_enter(void *fn, void *site) { seen = site; }
NO void __cyg_profile_func_exit(void *fn, void *site) { seen = site; }
void __tsan_func_entry(void *site);
int traced(int x) { return x + 1; }
void *caller(void) { return __builtin_return_address(0); }
"""


IR = """
declare ptr @llvm.returnaddress(i32)
declare ptr @llvm.addressofreturnaddress.p0()
define ptr @where() noinline { %to = call ptr @llvm.returnaddress(i32 0) ret ptr %to }
define ptr @beside() noinline { %at = call ptr @llvm.addressofreturnaddress.p0() %to = load ptr, ptr %at ret ptr %to }
define ptr @calls() noinline { %to = call ptr @where() ret ptr %to }
define i64 @plain(i64 %x) noinline { %y = add i64 %x, 1 ret i64 %y }
"""


@isolated(timeout=100)
def test_exit_handlers_are_refused_where_jit_code_reads_its_return_address():
    from llvmlite import binding

    sandbox.load("define i64 @unused() { ret i64 1 }", name="unused")  # initialises LLVM
    machine = binding.Target.from_default_triple().create_target_machine()
    engine = binding.create_mcjit_compiler(binding.parse_assembly(IR), machine)
    engine.finalize_object()
    calls = ctypes.CFUNCTYPE(ctypes.c_void_p)(engine.get_function_address("calls"))
    before = calls()
    with fprobe.attach("jit:*", action=fprobe.Stat()) as probe:
        assert {each.name.partition(" ")[0] for each in probe.skipped if READS in each.reason} == {"where", "beside"}
        assert calls() == before
    with fprobe.attach("jit:where", action=fprobe.Count()) as probe:
        assert calls() == before and probe.hits == 1


@isolated(timeout=100)
def test_exit_handlers_are_refused_where_a_c_program_reads_its_return_address():
    path = Path(mkdtemp(prefix="callers-")) / "told.c"
    path.write_text("void *who(void) { return __builtin_return_address(0); }\nvoid *calls(void) { return who(); }\n")
    module = sandbox.load(path)
    before = module["calls"]()
    with fprobe.attach("*", action=fprobe.Stat()) as probe:
        assert [READS in each.reason for each in probe.skipped] == [True]
        assert module["calls"]() == before and probe.hits == 1
    with fprobe.attach("who", action=fprobe.Count()) as probe:
        assert module["calls"]() == before and probe.hits == 1
