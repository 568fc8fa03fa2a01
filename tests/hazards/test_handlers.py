"""HAZARDS 6: what handlers must not disturb: vectors, x87, flags, errno, exceptions, the stack."""

# ruff: noqa: ARG005, E501, PTH116, I001  (the signature of a handler is given; IR is as wide as it is)

from __future__ import annotations

import shutil

import pytest
from isolation import isolated
from programs import basic, load_c

needs_cc = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")

VECTORS = """
define <8 x double> @wide(<8 x double> %a, <8 x double> %b, <4 x double> %c, <2 x double> %d, double %e, float %f, x86_fp80 %g) #0 {
  %s = fadd <8 x double> %a, %b
  %c8 = shufflevector <4 x double> %c, <4 x double> zeroinitializer, <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>
  %t = fadd <8 x double> %s, %c8
  %e1 = insertelement <8 x double> %t, double %e, i32 7
  %fd = fpext float %f to double
  %e2 = insertelement <8 x double> %e1, double %fd, i32 6
  %gd = fptrunc x86_fp80 %g to double
  %e3 = insertelement <8 x double> %e2, double %gd, i32 5
  %d0 = extractelement <2 x double> %d, i32 1
  %e4 = insertelement <8 x double> %e3, double %d0, i32 4
  ret <8 x double> %e4
}
define x86_fp80 @long_double(x86_fp80 %a, x86_fp80 %b) #0 { %r = fmul x86_fp80 %a, %b  ret x86_fp80 %r }
define {x86_fp80, x86_fp80} @complex(x86_fp80 %a) #0 {
  %b = fneg x86_fp80 %a
  %1 = insertvalue {x86_fp80, x86_fp80} undef, x86_fp80 %a, 0
  %2 = insertvalue {x86_fp80, x86_fp80} %1, x86_fp80 %b, 1
  ret {x86_fp80, x86_fp80} %2
}
define {double, double} @pair(double %a) #0 {
  %b = fneg double %a
  %1 = insertvalue {double, double} undef, double %a, 0
  %2 = insertvalue {double, double} %1, double %b, 1
  ret {double, double} %2
}
define i128 @two_words(i64 %a) #0 { %x = zext i64 %a to i128  %y = mul i128 %x, 18446744073709551629  ret i128 %y }
define i64 @check(i64 %n) {
entry:
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %i1, %next ]
  %x = uitofp i64 %i to double
  %xv0 = insertelement <8 x double> undef, double %x, i32 0
  %xv = shufflevector <8 x double> %xv0, <8 x double> undef, <8 x i32> zeroinitializer
  %av = fadd <8 x double> %xv, <double 1.0, double 2.0, double 3.0, double 4.0, double 5.0, double 6.0, double 7.0, double 8.0>
  %bv = fmul <8 x double> %xv, <double 1.0, double 2.0, double 3.0, double 4.0, double 5.0, double 6.0, double 7.0, double 8.0>
  %f = uitofp i64 %i to float
  %g = uitofp i64 %i to x86_fp80
  %w = call <8 x double> @wide(<8 x double> %av, <8 x double> %bv, <4 x double> <double 10.0, double 20.0, double 30.0, double 40.0>, <2 x double> <double 5.0, double 6.0>, double %x, float %f, x86_fp80 %g)
  %c8 = fadd <8 x double> %av, %bv
  %c9 = fadd <8 x double> %c8, <double 10.0, double 20.0, double 30.0, double 40.0, double 0.0, double 0.0, double 0.0, double 0.0>
  %d1 = insertelement <8 x double> %c9, double %x, i32 7
  %d2 = insertelement <8 x double> %d1, double %x, i32 6
  %d3 = insertelement <8 x double> %d2, double %x, i32 5
  %d4 = insertelement <8 x double> %d3, double 6.0, i32 4
  %eq = fcmp oeq <8 x double> %w, %d4
  %bits = bitcast <8 x i1> %eq to i8
  %good1 = icmp eq i8 %bits, -1
  %ld = call x86_fp80 @long_double(x86_fp80 %g, x86_fp80 %g)
  %ldx = fmul x86_fp80 %g, %g
  %good2 = fcmp oeq x86_fp80 %ld, %ldx
  %co = call {x86_fp80, x86_fp80} @complex(x86_fp80 %g)
  %co0 = extractvalue {x86_fp80, x86_fp80} %co, 0
  %co1 = extractvalue {x86_fp80, x86_fp80} %co, 1
  %cos = fadd x86_fp80 %co0, %co1
  %good3a = fcmp oeq x86_fp80 %cos, 0xK00000000000000000000
  %good3b = fcmp oeq x86_fp80 %co0, %g
  %p = call {double, double} @pair(double %x)
  %p0 = extractvalue {double, double} %p, 0
  %p1 = extractvalue {double, double} %p, 1
  %ps = fadd double %p0, %p1
  %good4a = fcmp oeq double %ps, 0.0
  %good4b = fcmp oeq double %p0, %x
  %tw = call i128 @two_words(i64 %i)
  %hi = lshr i128 %tw, 64
  %hi64 = trunc i128 %hi to i64
  %lo64 = trunc i128 %tw to i64
  %lox = mul i64 %i, 13
  %good5a = icmp eq i64 %lo64, %lox
  %good5b = icmp eq i64 %hi64, %i
  %g1 = and i1 %good1, %good2
  %g2 = and i1 %good3a, %good3b
  %g3 = and i1 %good4a, %good4b
  %g4 = and i1 %good5a, %good5b
  %g5 = and i1 %g1, %g2
  %g6 = and i1 %g3, %g4
  %good = and i1 %g5, %g6
  br i1 %good, label %next, label %bad
bad:
  %code = add i64 %i, 1000000
  ret i64 %code
next:
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, %n
  br i1 %more, label %head, label %done
done:
  ret i64 %i1
}
attributes #0 = { noinline }
"""

DIRTY = r"""
#include <errno.h>
#include <string.h>
#include <math.h>
typedef double v8 __attribute__((vector_size(64)));
long dirty(void *fp, unsigned long ip, unsigned long ret, void *regs, void *data) {
    errno = 77;
    /* everything that a function may clobber; rax too: only its low 32 bits are the result */
    asm volatile("pxor %%xmm0,%%xmm0\n\tpcmpeqd %%xmm1,%%xmm1\n\tpxor %%xmm2,%%xmm2\n\tpxor %%xmm3,%%xmm3\n\t"
                 "pxor %%xmm4,%%xmm4\n\tpxor %%xmm5,%%xmm5\n\tpxor %%xmm6,%%xmm6\n\tpxor %%xmm7,%%xmm7\n\t"
                 "pxor %%xmm8,%%xmm8\n\tpxor %%xmm15,%%xmm15\n\tfninit\n\tfld1\n\tfldpi\n\tfstp %%st(0)\n\tfstp %%st(0)\n\t"
                 "mov $0x1111111111111111,%%rcx\n\tmov %%rcx,%%rdx\n\tmov %%rcx,%%rsi\n\tmov %%rcx,%%rdi\n\t"
                 "mov %%rcx,%%r8\n\tmov %%rcx,%%r9\n\tmov %%rcx,%%r10\n\tmov %%rcx,%%r11\n\tstc"
                 ::: "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "cc",
                 "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm15");
    if (__builtin_cpu_supports("avx")) asm volatile(".byte 0xc5,0xfc,0x77" ::: "memory"); /* vzeroall */
    return 0x7777777700000000;
}
void *where(void) { return dirty; }
"""


def foreign(address):
    import ctypes

    return ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 5)(address)


@needs_cc
@isolated(shared=True)
def test_foreign_c_handlers_keep_vector_and_x87_arguments_and_results():
    import fprobe
    import sandbox

    dirty = foreign(load_c(DIRTY)["where"]())
    module = sandbox.load(VECTORS, name="vectors")
    assert module["check"](100) == 100
    with fprobe.attach("[wlcpt]*", entry=dirty, exit=dirty, nr_maxactive=1000) as probe:
        assert module["check"](1000) == 1000
    assert probe.counts.hits == 5001 and probe.counts.missed == 0


@isolated(shared=True)
def test_python_handlers_keep_vector_and_x87_arguments_and_results():
    import fprobe
    import sandbox

    module = sandbox.load(VECTORS, name="vectors")

    def churn(fp, ip, ret, regs, data):
        import math

        math.fsum([math.sin(x) * 1.1 for x in range(20)])
        bytes(1000).replace(b"\0", b"ab")

    with fprobe.attach("[wlcpt]*", entry=churn, exit=churn, nr_maxactive=1000) as probe:
        assert module["check"](200) == 200
    assert probe.counts.hits == 1001 and probe.fp.errors.first is None


@pytest.mark.parametrize("action", ["Count", "Record", "Stat"])
@isolated(shared=True)
def test_native_handlers_touch_no_vector_register(action):
    import fprobe
    import sandbox

    module = sandbox.load(VECTORS, name="vectors")
    with fprobe.attach("*", action=getattr(fprobe, action)(), nr_maxactive=1000) as probe:
        assert module["check"](1000) == 1000
    assert probe.counts.hits == 5001


CONTROL_WORDS = r"""
static unsigned csr(void) { unsigned x; asm volatile("stmxcsr %0" : "=m"(x)); return x; }
static unsigned short cw(void) { unsigned short x; asm volatile("fnstcw %0" : "=m"(x)); return x; }
__attribute__((noipa)) long leaf(long x) { return x + 1; }
long control(long x) {
    unsigned down = 0x3f80, normal = 0x1f80; unsigned short low = 0x27f, usual = 0x37f;
    asm volatile("ldmxcsr %0\n\tfldcw %1" :: "m"(down), "m"(low));
    leaf(x);
    long result = (long)csr() << 16 | cw();
    asm volatile("ldmxcsr %0\n\tfldcw %1" :: "m"(normal), "m"(usual));
    return result;
}
long direction(long x) { /* the flag is clear when a handler runs, whatever the traced code has set */
    long r;
    asm volatile("std\n\tmov %1,%%rdi\n\tsub $128,%%rsp\n\tcall leaf\n\tadd $128,%%rsp\n\tpushfq\n\tpop %0\n\tcld"
                 : "=r"(r) : "r"(x) : "rdi", "rax", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "memory", "cc");
    return r >> 10 & 1;
}
"""


@needs_cc
@isolated(shared=True)
def test_foreign_handlers_keep_mxcsr_and_the_x87_control_word():
    import fprobe

    dirty = foreign(load_c(DIRTY)["where"]())
    module = load_c(CONTROL_WORDS)
    expected = module["control"](1)
    for handlers in (
        {"entry": dirty, "exit": dirty},
        {"entry": lambda *hit: 0, "exit": lambda *hit: None},
        {"action": fprobe.Stat()},
    ):
        with fprobe.attach("leaf", **handlers) as probe:
            assert module["control"](1) == expected
        assert probe.hits == 1


ERRNO = r"""
#include <errno.h>
__attribute__((noipa)) long leaf(long x) { return x + 1; }
long keeps(long value) { errno = value; leaf(1); return errno; }
__attribute__((noipa)) long sets(long value) { errno = value; return 0; }
long sees(long value) { errno = 0; sets(value); return errno; }
"""


@needs_cc
@pytest.mark.parametrize("kind", ["python", "foreign"])
@isolated(shared=True)
def test_errno_is_kept_around_handlers(kind):
    import contextlib
    import ctypes
    import os

    import fprobe

    def clobber(*hit):
        ctypes.CDLL(None).close(-1)
        with contextlib.suppress(OSError):
            os.stat("/nonexistent")

    handler = clobber if kind == "python" else foreign(load_c(DIRTY)["where"]())
    module = load_c(ERRNO)
    with fprobe.attach(["leaf", "sets"], entry=handler, exit=handler) as probe:
        assert module["keeps"](33) == 33
        assert module["sees"](44) == 44
    assert probe.hits == 2 and probe.fp.errors.first is None


@isolated(shared=True)
def test_a_pending_exception_is_kept_around_a_python_handler():
    """Traced code may run with the GIL held and an exception set, in C code called from Python."""
    import ctypes

    import fprobe

    module = basic()
    leaf = ctypes.PyDLL(None, handle=0) and ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(
        module.symbol("leaf").address
    )
    seen = []
    with fprobe.attach("leaf", entry=lambda *hit: seen.append("in") or 0, exit=lambda *hit: seen.append("out")):
        try:
            raise KeyError("before")
        except KeyError:
            assert leaf(1) == 2  # with the GIL
        assert leaf(2) == 3
    assert seen == ["in", "out"] * 2


@isolated(shared=True)
def test_a_python_handler_that_raises_is_kept_counted_and_reported_once():
    import logging

    import fprobe

    records = []
    logging.getLogger("fprobe").addHandler(
        type("Keep", (logging.Handler,), {"emit": lambda self, r: records.append(r)})()
    )
    module = basic()

    def raises(fp, ip, ret, regs, data):
        raise ValueError(f"no good: {regs.di}")

    with fprobe.attach("leaf", entry=raises, exit=raises) as probe:
        assert module["loop"](50) == 50
    assert isinstance(probe.fp.errors.first, ValueError) and probe.fp.errors.count == 100
    assert len(records) == 1 and "raises" in records[0].getMessage()


@isolated(shared=True)
def test_a_python_handler_that_returns_the_wrong_type():
    import fprobe

    module = basic()
    back = []
    with fprobe.attach("leaf", entry=lambda *hit: "yes", exit=lambda *hit: back.append(1)) as probe:
        assert module["leaf"](1) == 2
    assert isinstance(probe.fp.errors.first, TypeError) and "'str'" in str(probe.fp.errors.first)
    assert back == [1]


@pytest.mark.parametrize("error", ["SystemExit", "GeneratorExit", "RecursionError", "MemoryError"])
@isolated(shared=True)
def test_a_python_handler_that_raises_what_is_not_an_exception(error):
    """A KeyboardInterrupt comes again: tests/fprobe/test_inside_handlers.py."""
    import builtins

    import fprobe

    module = basic()

    def raises(*hit):
        raise getattr(builtins, error)

    with fprobe.attach("leaf", entry=raises, exit=raises) as probe:
        assert module["loop"](3) == 3
    assert probe.fp.errors.count == 6


@isolated(shared=True)
def test_a_python_handler_whose_error_cannot_be_reported():
    """Neither a logging handler nor the exception's own __str__ may bring the traced program down."""
    import logging

    import fprobe

    class Silent(logging.Handler):
        def emit(self, record):
            raise OSError("no place to write to")

    class Unprintable(Exception):
        def __str__(self):
            raise RuntimeError("not printable either")

    logging.getLogger("fprobe").addHandler(Silent())
    module = basic()

    def raises(*hit):
        raise Unprintable

    with fprobe.attach("leaf", entry=raises) as probe:
        assert module["loop"](3) == 3
    assert probe.fp.errors.count == 3


@isolated(torn_down=True)
def test_python_handlers_are_disarmed_at_interpreter_exit():
    """Threads may still run probed code while the interpreter is torn down."""
    import threading

    import fprobe

    module = basic()
    fprobe.attach("leaf", entry=lambda *hit: 0, exit=lambda *hit: None).attach()

    def endless():
        while True:
            module["loop"](1000)

    for _ in range(2):
        threading.Thread(target=endless, daemon=True).start()
    # The test ends with the threads running and the probe attached.


@needs_cc
@isolated(shared=True)
def test_python_handlers_run_in_threads_that_python_has_never_seen():
    import fprobe

    module = load_c(
        "#include <pthread.h>\n__attribute__((noipa)) long leaf(long x) { return x + 1; }\n"
        "static void *run(void *n) { long s = 0; for (long i = 0; i < (long)n; i++) s += leaf(i); return (void *)s; }\n"
        "long threads(long n) { pthread_t t[4]; long s = 0; for (int i = 0; i < 4; i++) pthread_create(&t[i], 0, run, (void *)n);\n"
        "  for (int i = 0; i < 4; i++) { void *r; pthread_join(t[i], &r); s += (long)r; } return s; }\n"
    )
    seen = []
    at_once = 2 * 4  # or, on one CPU, there are no more than four nodes
    with fprobe.attach(
        ["leaf", "run"], entry=lambda *_: seen.append(1) or 0, exit=lambda *_: seen.append(2), nr_maxactive=at_once
    ) as probe:
        assert module["threads"](200) == 4 * 200 * 201 // 2
    assert len(seen) == 2 * 804 and probe.counts.hits == 804 and probe.counts.missed == 0


@isolated(shared=True)
def test_native_handlers_with_and_without_registers():
    """The language's handlers: the fast path's kind, and one that reads and writes registers."""
    import ctypes

    import fprobe
    from handlers_native import argument_add, cancel_odd, note_exit, result_double

    module = basic()
    notes = (ctypes.c_uint64 * 3)()
    probe = fprobe.attach("leaf", entry=cancel_odd, exit=note_exit, entry_data_size=8, nr_maxactive=1)
    probe.fp.action = ctypes.addressof(notes)
    with probe:
        assert module["loop"](10) == 10
    assert probe.hits == 10 and probe.counts.missed == 0 and list(notes) == [10, 0 + 20 + 40 + 60 + 80, 5]
    with fprobe.attach("leaf", entry=argument_add, exit=result_double):
        assert module["leaf"](1) == 204


@needs_cc
@isolated(shared=True)
def test_cffi_and_module_functions_are_handlers():
    import ctypes

    import cffi

    import fprobe

    handlers = load_c(
        "long calls;\nint entry(void *fp, unsigned long ip) { calls++; return 0; }\nlong told(void) { return calls; }\n"
    )
    module = basic()
    ffi = cffi.FFI()
    address = handlers.symbol("entry").address
    pointer = ffi.cast("int (*)(void *, uint64_t, uint64_t, void *, void *)", address)
    seen = []
    callback = ffi.callback("int(void *, uint64_t, uint64_t, void *, void *)", lambda *hit: seen.append(1) or 0)
    for handler in (pointer, handlers["entry"], foreign(address)):
        with fprobe.attach("leaf", entry=handler, exit=handler) as probe:
            module["loop"](5)
        assert probe.hits == 5
    with fprobe.attach("leaf", entry=callback):
        module["loop"](5)
    assert handlers["told"]() == 30 and len(seen) == 5
    assert ctypes.sizeof(ctypes.c_long) == 8


@pytest.mark.parametrize("handler", [3, "leaf", b"x", 1.5, (1, 2)])
@isolated(shared=True)
def test_what_cannot_be_a_handler_is_named(handler):
    import fprobe

    basic()
    for where in ("entry", "exit"):
        try:
            fprobe.attach("leaf", **{where: handler}).attach()
        except TypeError as error:
            assert repr(handler) in str(error)
        else:
            raise AssertionError("accepted")
