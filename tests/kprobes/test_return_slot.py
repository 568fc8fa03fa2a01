"""Hazard: functions that move their return address, or their stack: a hooked return would go nowhere."""

from __future__ import annotations

import ctypes
import errno
import subprocess
from pathlib import Path
from tempfile import mkdtemp

import pytest
from isolation import isolated
from return_slots import ACCEPTED, REFUSED, assembled
from sampled import sampled

import fprobe
import kprobes
from sandbox.images import process_text
from sandbox.native import u64
from sandbox.x86_64.kept_registers import keeps
from sandbox.x86_64.return_slot import uses_its_return

counted = fprobe.Array(u64, 1, shared=True)


@kprobes.native
def count(ri, regs):
    counted[0] += 1


@pytest.mark.parametrize(("text", "reason"), sampled(REFUSED.items(), 4))
def test_code_that_uses_its_return_says_how(text, reason):
    assert uses_its_return(assembled(text), 0x1000) == reason


@pytest.mark.parametrize("text", sampled(ACCEPTED, 4))
def test_code_that_only_looks_so_is_accepted(text):
    assert uses_its_return(assembled(text), 0x1000) == ""


@pytest.mark.stress
@isolated(timeout=60)
def test_returns_of_libcs_functions_that_use_their_return_are_refused():
    libc = process_text.library_called("libc")
    by_code = [
        span for span in libc.functions() if uses_its_return(ctypes.string_at(span[0], span[1] - span[0]), span[0])
    ]
    assert len(by_code) < 40
    for start, _end in by_code:
        with pytest.raises(
            OSError, match=r"cannot be probed: it|cannot be probed: .* (switches|may switch|returns)|is not the entry"
        ):
            kprobes.register_kretprobe(kprobes.kretprobe(addr=start, handler=count))


@isolated(timeout=60)
def test_returns_of_libcs_functions_that_switch_stacks_or_return_twice_are_refused():
    for name in ("swapcontext", "setcontext", "getcontext", "longjmp", "vfork", "__sigsetjmp"):
        with pytest.raises(OSError, match=f"{name}.* cannot be probed: ") as caught:
            kprobes.register_kretprobe(kprobes.kretprobe(symbol_name=f"libc:{name}", handler=count))
        assert caught.value.errno == errno.EINVAL


@pytest.mark.stress
@isolated(timeout=60)
def test_every_function_of_libffi_but_those_that_move_their_return_can_have_a_kretprobe():
    called = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int, ctypes.c_double)(lambda a, b: a + b)
    libc = ctypes.CDLL("libc.so.6")
    try:
        ffi = process_text.library_called("libffi")
    except LookupError:
        pytest.skip("ctypes has libffi inside")
    probes, refused = [], []
    for start, _end in ffi.functions():
        rp = kprobes.kretprobe(addr=start, handler=count, maxactive=100)
        try:
            kprobes.register_kretprobe(rp)
        except OSError as error:
            refused.append(str(error))
            continue
        probes.append(rp)
    assert any("may switch stacks" in reason for reason in refused)
    for optimized in (0, 1):
        kprobes.set_kprobes_optimization(optimized)
        kprobes.wait_for_kprobe_optimizer()
        before = counted[0]
        assert called(3, 4.5) == 7.5
        assert libc.labs(ctypes.c_long(-3)) == 3
        assert ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 5)() == 5
        assert counted[0] > before
    kprobes.unregister_kretprobes(probes)


KEPT = {
    # OpenSSL's assembly: the stack pointer in a register that its own routine does not name
    "lea (%rsp), %r11; push %rbp; and $-16, %rsp; call 2f; mov -8(%r11), %rbp; lea (%r11), %rsp; ret; "
    "1: paddd %xmm0, %xmm1; dec %r10; jnz 2f; ret; 2: movups (%rdi), %xmm0; setae %r12b; jmp 1b": "",
    "mov %rsp, %rax; sub $64, %rsp; call 1f; mov %rax, %rsp; ret; 1: vpxor %ymm0, %ymm1, %ymm2; add $1, %rcx; ret": "",
    # routines that change it, by a part, as a result, or without naming it; or of which not all can be followed
    "lea (%rsp), %r11; call 1f; lea (%r11), %rsp; ret; 1: mov $1, %r11b; ret": "lea rsp, [r11]",
    "mov %rsp, %rax; call 1f; mov %rax, %rsp; ret; 1: mul %rcx; ret": "mov rsp, rax",
    "mov %rsp, %rcx; call 1f; mov %rcx, %rsp; ret; 1: pcmpistri $0, %xmm0, %xmm1; ret": "mov rsp, rcx",
    "mov %rsp, %r11; call 1f; mov %r11, %rsp; ret; 1: syscall; ret": "mov rsp, r11",
    "mov %rsp, %r11; call 1f; mov %r11, %rsp; ret; 1: jmp *%rdx": "mov rsp, r11",
    "mov %rsp, %r11; call 1f; mov %r11, %rsp; ret; 1: call 2f; 2: ret": "mov rsp, r11",
    "mov %rsp, %r11; call *%rdx; mov %r11, %rsp; ret": "mov rsp, r11",
}  # fmt: skip


@pytest.mark.parametrize(("text", "refused"), sampled(KEPT.items(), 4))
def test_a_stack_pointer_may_be_kept_in_a_register_that_the_called_routine_leaves_alone(text, refused):
    code, start = assembled(text), 0x1000

    def is_kept(call, register):
        target = int(call.operands, 16) if call.operands.startswith("0x") else 0
        return keeps(lambda at: code[at - start :] if at >= start else b"", target, register)

    reason = uses_its_return(code, start, keeps=is_kept)
    assert f"`{refused}`" in reason if refused else reason == ""
    assert "may switch stacks" in uses_its_return(code, start)


def _encrypted(libcrypto, cipher, data):
    """What AES makes of `data`, and of that anew."""
    written, result = ctypes.c_int(), b""
    context = ctypes.c_void_p(libcrypto.EVP_CIPHER_CTX_new())
    which = ctypes.c_void_p(libcrypto.EVP_get_cipherbyname(cipher))
    for encrypts in (1, 0):
        out = ctypes.create_string_buffer(len(data) + 64)
        assert libcrypto.EVP_CipherInit_ex(context, which, None, bytes(range(64)), bytes(range(16)), encrypts) == 1
        assert libcrypto.EVP_CipherUpdate(context, out, ctypes.byref(written), data, len(data)) == 1
        data = out.raw[: written.value]
        result += data
    libcrypto.EVP_CIPHER_CTX_free(context)
    return result


@pytest.mark.stress
@isolated(timeout=60)
def test_functions_of_libcrypto_that_keep_the_stack_pointer_over_calls_give_the_same_results():
    try:
        libcrypto = ctypes.CDLL("libcrypto.so.3")
    except OSError:
        pytest.skip("no libcrypto of OpenSSL 3")
    for name in ("EVP_CIPHER_CTX_new", "EVP_get_cipherbyname"):
        getattr(libcrypto, name).restype = ctypes.c_void_p
    ciphers = (b"AES-128-CTR", b"AES-256-XTS", b"AES-256-GCM", b"AES-128-OCB", b"AES-192-CBC")
    sizes = (16, 1024, 4095, 10000)
    expected = [_encrypted(libcrypto, cipher, bytes(size)) for cipher in ciphers for size in sizes]
    probes = []
    for start, end in process_text.library_called("libcrypto").functions():
        code = ctypes.string_at(start, end - start)
        restores = b"\x49\x8d\x23\xf3\xc3" in code or b"\x48\x8d\x20" in code  # lea (%r11), %rsp; lea (%rax), %rsp
        if restores and "may switch stacks" in uses_its_return(code, start):
            probes.append(kprobes.kretprobe(addr=start, handler=count, maxactive=100))
            kprobes.register_kretprobe(probes[-1])
    for optimized in (0, 1):
        kprobes.set_kprobes_optimization(optimized)
        kprobes.wait_for_kprobe_optimizer()
        before = counted[0]
        assert [_encrypted(libcrypto, cipher, bytes(size)) for cipher in ciphers for size in sizes] == expected
        assert counted[0] > before or not probes
    kprobes.unregister_kretprobes(probes)


LARGE = """
#include <string.h>
long large(long n) {
  char b[40000];
  memset(b, (int)n, sizeof b);
  long s = 0;
  for (long i = 0; i < n; i++) s += b[i * 7 % 40000];
  __asm__ volatile("" :: "r"(b) : "memory");
  return s;
}
"""


@isolated(timeout=60)
def test_returns_of_functions_whose_frame_is_allocated_page_by_page_are_hooked():
    path = Path(mkdtemp(prefix="return-slot-")) / "liblarge.so"
    flags = ["-O2", "-fstack-clash-protection", "-shared", "-fPIC", "-x", "c", "-"]
    subprocess.run(["gcc", *flags, "-o", str(path)], input=LARGE, text=True, check=True)
    library = ctypes.CDLL(str(path))
    expected = [library.large(n) for n in range(5)]
    with fprobe.attach("liblarge:large", action=fprobe.Stat()) as probe:
        assert [library.large(n) for n in range(5)] == expected
    assert (probe.hits, probe.skipped) == (5, [])
    rp = kprobes.kretprobe(symbol_name="liblarge:large", handler=count)
    kprobes.register_kretprobe(rp)
    assert [library.large(n) for n in range(5)] == expected
    kprobes.unregister_kretprobe(rp)
    assert counted[0] == 5
