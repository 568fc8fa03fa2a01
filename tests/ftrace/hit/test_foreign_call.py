"""HAZARDS 6: what Python and C handlers find in the vector registers, and what they leave there for the function."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
from isolation import isolated
from programs import load_c
from sampled import in_stress

from ftrace.hit import assembly
from sandbox.x86_64.save_area import SaveArea

FLAGS = Path("/proc/cpuinfo").read_text().split()
pytestmark = [
    pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler"),
    pytest.mark.skipif("avx" not in FLAGS or "xgetbv1" not in FLAGS, reason="the CPU does not tell what is in use"),
]

SOURCE = r"""
__attribute__((noipa)) long leaf(long x) { return x + 1; }
static unsigned in_use(void) {
    unsigned found;
    asm volatile("mov $1, %%ecx\n\txgetbv" : "=a"(found) :: "rcx", "rdx");
    return found;
}
#define BOTH(op) op(0) op(1) op(2) op(3) op(4) op(5) op(6) op(7)
#define LOAD(n) "vmovups 32*" #n "(%0), %%ymm" #n "\n\t"
#define STORE(n) "vmovups %%ymm" #n ", 32*" #n "(%1)\n\t"
/* Only one word of the registers 0 to 7 is not zero; whether all of them come through a call. */
long keeps(long word) {
    unsigned long before[32] = {0}, after[32];
    before[word] = 1;
    asm volatile(BOTH(LOAD) "push %1\n\tsub $128, %%rsp\n\tcall leaf\n\tadd $128, %%rsp\n\tpop %1\n\t" BOTH(STORE) "vzeroupper"
                 :: "r"(before), "b"(after) : "memory", "cc", "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11",
                 "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",
                 "xmm13", "xmm14", "xmm15");
    for (int i = 0; i < 32; i++) if (after[i] != before[i]) return i + 1;
    return 0;
}
long in_use_after(void) { asm volatile("vzeroupper" ::: "memory"); leaf(1); return in_use(); }
static long seen;
int look(void *fp, unsigned long ip, unsigned long ret, void *regs, void *data) {
    seen = in_use();
    asm volatile("vpxor %xmm0, %xmm0, %xmm0\n\tvpxor %xmm1, %xmm1, %xmm1\n\tvpxor %xmm7, %xmm7, %xmm7");
    return 0;
}
void *looking(void) { return look; }
long found(void) { return seen; }
static volatile long double number = 2.5L;
long x87(void) { number = number * number; return in_use(); }
#define ALL(op) BOTH(op) op(8) op(9) op(10) op(11) op(12) op(13) op(14) op(15)
#define SET(n) "movq %[value], %%xmm" #n "\n\taddq $1, %[value]\n\t"
#define SUM(n) "movq %%xmm" #n ", %[word]\n\taddq %[word], %[sum]\n\t"
/* x87 is not in use afterwards, as XGETBV says: fninit alone leaves it so on some CPUs, and in use on others. */
static char initial[1024] __attribute__((aligned(64)));
static void leave_x87(void) { asm volatile("xrstor %0" :: "m"(initial), "a"(1), "d"(0)); }
/* In the middle of a function, where only xmm registers are in use: what is wrong after a probe. */
long middle(void) {
    unsigned usual = 0x1f80, csr; unsigned short status, control;
    unsigned long value = 1, word, sum = 0;
    leave_x87();
    asm volatile("vzeroupper\n\tldmxcsr %[usual]\n\t" ALL(SET)
                 ".globl in_the_middle\nin_the_middle: nopl 0(%%rax, %%rax)\n\tnopl 0(%%rax, %%rax)\n\t"
                 "stmxcsr %[csr]\n\tfnstsw %[status]\n\tfnstcw %[control]\n\t" ALL(SUM)
                 : [csr] "=m"(csr), [status] "=m"(status), [control] "=m"(control), [value] "+r"(value), [word] "=&r"(word),
                   [sum] "+r"(sum) : [usual] "m"(usual)
                 : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",
                   "xmm13", "xmm14", "xmm15");
    return (csr != usual) | (status != 0) << 1 | (control != 0x37f) << 2 | (sum != 16 * 17 / 2) << 3;
}
/* All vector registers, `width` bytes of each of the first 16, and the masks: loaded, probed and stored again. */
#define HIGH(op) op(16) op(17) op(18) op(19) op(20) op(21) op(22) op(23) op(24) op(25) op(26) op(27) op(28) op(29) op(30) op(31)
#define FROM_X(n) "vmovups 64*" #n "(%0), %%xmm" #n "\n\t"
#define FROM_Y(n) "vmovups 64*" #n "(%0), %%ymm" #n "\n\t"
#define FROM_Z(n) "vmovups 64*" #n "(%0), %%zmm" #n "\n\t"
#define TO_Y(n) "vmovups %%ymm" #n ", 64*" #n "(%0)\n\t"
#define TO_Z(n) "vmovups %%zmm" #n ", 64*" #n "(%0)\n\t"
#define FROM_K(n) "kmovq 2048+8*" #n "(%0), %%k" #n "\n\t"
#define TO_K(n) "kmovq %%k" #n ", 2048+8*" #n "(%0)\n\t"
#define LOW_CHANGED "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", \
    "xmm13", "xmm14", "xmm15", "memory"
static char registers[2112] __attribute__((aligned(64)));
void *all_registers(void) { return registers; }
__attribute__((naked, noinline)) void probed(void) { asm("nopl 0(%rax, %rax)\n\tnopl 0(%rax, %rax)\n\tret"); }
long whole(long width, long masks) {
    leave_x87();
    asm volatile("vzeroupper");
    if (masks) asm volatile(HIGH(FROM_Z) BOTH(FROM_K) :: "r"(registers) : LOW_CHANGED);
    if (width == 16) asm volatile(ALL(FROM_X) "call probed" :: "r"(registers) : LOW_CHANGED);
    else if (width == 32) asm volatile(ALL(FROM_Y) "call probed" :: "r"(registers) : LOW_CHANGED);
    else asm volatile(ALL(FROM_Z) "call probed" :: "r"(registers) : LOW_CHANGED);
    if (masks) asm volatile(ALL(TO_Z) HIGH(TO_Z) BOTH(TO_K) "vzeroupper" :: "r"(registers) : LOW_CHANGED);
    else asm volatile(ALL(TO_Y) "vzeroupper" :: "r"(registers) : LOW_CHANGED);
    return 0;
}
/* What a handler leaves behind at worst. */
static char junk[2112] = {[0 ... 2111] = 0x5a};
void overwrite(long masks) {
    asm volatile(ALL(FROM_Y) "fld1\n\tfstp %%st(0)" :: "r"(junk) : LOW_CHANGED, "st");
    if (masks) asm volatile(ALL(FROM_Z) HIGH(FROM_Z) BOTH(FROM_K) :: "r"(junk) : LOW_CHANGED);
}
extern char in_the_middle[];
void *where(void) { return in_the_middle; }
"""
X87, AVX = 1, 4
WITH_MASKS = pytest.mark.skipif("avx512bw" not in FLAGS, reason="the CPU has no wide mask registers")


def nothing(*hit):
    return None


def foreign(address):
    return ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 5)(address)


@isolated(shared=True)
def test_what_is_above_the_xmm_registers_is_kept_around_handlers():
    import fprobe

    module = load_c(SOURCE)
    look = foreign(module["looking"]())
    for handler in (look, nothing):
        for ends in ({"entry": handler}, {"exit": handler}):
            with fprobe.attach("leaf", **ends) as probe:
                assert [module["keeps"](word) for word in range(32)] == [0] * 32
            assert probe.hits == 32


@isolated(shared=True)
def test_a_handler_finds_nothing_above_the_xmm_registers():
    """Its own instructions that use xmm registers would be slow."""
    import fprobe

    module = load_c(SOURCE)
    look = foreign(module["looking"]())
    for ends in ({"entry": look}, {"exit": look}):
        with fprobe.attach("leaf", **ends):
            assert module["keeps"](3) == 0
        assert module["found"]() & AVX == 0


@isolated(shared=True)
def test_registers_that_were_not_in_use_are_not_in_use_after_a_handler():
    """The function's instructions that use xmm registers would be slow from then on."""
    import fprobe

    module = load_c(SOURCE)
    assert module["in_use_after"]() & AVX == 0
    with fprobe.attach("leaf", entry=nothing, exit=nothing) as probe:
        assert module["in_use_after"]() & AVX == 0
    assert probe.hits == 1


@isolated(shared=True)
def test_an_x87_unit_that_is_in_use_but_empty_needs_no_complete_saving():
    """One long double, in the whole life of a thread, must not make every handler after it slow."""
    import fprobe
    from ftrace.core.runtime import runtime

    module = load_c(SOURCE)
    assert module["x87"]() & X87
    apart = []

    def note(*hit):
        apart.append((runtime().image.call("saved_vectors") & 15) * 16)

    with fprobe.attach("leaf", entry=note, exit=note):
        assert module["leaf"](1) == 2
    assert apart == [64, 64]


@isolated(shared=True)
def test_a_probe_in_the_middle_of_a_function_keeps_what_is_in_use_there():
    """All xmm registers and mxcsr, and an x87 unit that is not in use."""
    import kprobes

    module = load_c(SOURCE)
    libm = ctypes.CDLL("libm.so.6")
    libm.sqrtl.restype, libm.sqrtl.argtypes = ctypes.c_longdouble, [ctypes.c_longdouble]
    seen = []

    def rounding(p, regs):
        seen.append((libm.sqrtl(len(seen) + 2.0), (len(seen) + 1.0) / 3))
        return 0

    probe = kprobes.kprobe(addr=module["where"](), pre_handler=rounding)
    kprobes.register_kprobe(probe)
    kprobes.wait_for_kprobe_optimizer()
    assert [module["middle"]() for _ in range(3)] == [0, 0, 0]
    kprobes.unregister_kprobe(probe)
    assert len(seen) == 3


@pytest.mark.parametrize("width", [16, in_stress(32), in_stress(pytest.param(64, marks=WITH_MASKS))])
@pytest.mark.parametrize("masks", [0, pytest.param(1, marks=WITH_MASKS)])
@isolated(shared=True)
def test_every_register_and_mask_is_kept_around_a_handler_in_the_middle_of_a_function(width, masks):
    """Registers 0 to 15 as wide as they are in use; the handler leaves junk in all that the CPU has."""
    import kprobes

    module = load_c(SOURCE)
    number, size = (32, 64) if masks else (16, 32)
    memory = (ctypes.c_ubyte * 2112).from_address(module["all_registers"]())
    given = [bytes((7 * n + i + 1) % 255 + 1 for i in range(min(width, size) if n < 16 else 64)) for n in range(32)]
    for n, value in enumerate(given):
        ctypes.memmove(ctypes.byref(memory, 64 * n), value.ljust(64, b"\xee" if masks == 0 else b"\0"), 64)
    memory[2048:] = range(100, 164)
    before = bytes(memory)

    def handler(p, regs):
        module["overwrite"]("avx512bw" in FLAGS)
        return 0

    probe = kprobes.kprobe(addr=module["probed"].address + 5, pre_handler=handler)
    kprobes.register_kprobe(probe)
    kprobes.wait_for_kprobe_optimizer()
    module["whole"](width, masks)
    kprobes.unregister_kprobe(probe)
    for n in range(number):
        expected = given[n][:size].ljust(size, b"\0")
        assert bytes(memory[64 * n : 64 * n + size]) == expected, n
    if masks:
        assert bytes(memory[2048:]) == before[2048:]
    assert probe.nmissed == 0


@pytest.mark.parametrize(("mask", "register"), [(0x3, "xmm"), (0x7, "ymm"), (0xE7, "zmm")])
def test_there_is_text_for_every_kind_of_cpu(mask, register, tmp_path):
    area = SaveArea("xsavec", mask, 2816, True)
    assert area.register == register
    source = tmp_path / "trampolines.s"
    source.write_text(assembly.text(area))
    subprocess.run(["cc", "-c", "-o", tmp_path / "trampolines.o", source], check=True)
