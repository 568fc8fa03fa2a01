"""Hazard: processes with a sanitizer: its shadow memory takes most of the address space, and all code calls it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from tempfile import mkdtemp

import pytest
from isolation import isolated
from sampled import sampled

import fprobe
from sandbox.memory import mappings, pages

SOURCE = """
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
__attribute__((noinline)) long one(long x) {
  char b[100];
  memset(b, (int)x, sizeof b);
  __asm__ volatile("" :: "r"(b) : "memory");
  return b[x & 63] + x;
}
__attribute__((noinline)) long two(long x) { char *p = malloc(1000); p[x] = 3; long r = p[x] + one(x); free(p); return r; }
static void *run(void *p) { long s = 0; for (long i = 0; i < 100; i++) s += two(i & 63); return (void *)s; }
long threads(void) {
  pthread_t t[4]; long s = 0; void *r;
  for (int i = 0; i < 4; i++) pthread_create(&t[i], 0, run, 0);
  for (int i = 0; i < 4; i++) { pthread_join(t[i], &r); s += (long)r; }
  return s;
}
"""
PROBED = """
import ctypes, os, sys, fprobe, kprobes, sandbox
library = ctypes.CDLL(sys.argv[1])
expected = library.threads()
with fprobe.attach("libsane:*", action=fprobe.Stat()) as probe:
    assert library.threads() == expected
    assert probe.skipped == [] and probe.hits >= 800, probe.skipped
with kprobes.attach("libsane:one", action=kprobes.Count()) as probe:
    kprobes.wait_for_kprobe_optimizer()
    assert library.threads() == expected and probe.hits == 400
module = sandbox.load("define i64 @square(i64 %x) { %r = mul i64 %x, %x ret i64 %r }", name="square")
if pid := os.fork():
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
else:
    with fprobe.attach("square", entry=lambda *_: None, exit=lambda *_: None):
        os._exit(7 if module["square"](3) == 9 else 1)
print("done")
"""


def shared_object(name: str) -> str:
    found = subprocess.run(["gcc", f"-print-file-name=lib{name}.so"], text=True, capture_output=True, check=True)
    path = found.stdout.strip()
    return path if "/" in path else pytest.skip(f"gcc has no lib{name}")


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """The runtime is in the cache: with a sanitizer it takes long to compile."""
    assert run(build()).returncode == 0


def build(*flags: str) -> str:
    path = Path(mkdtemp(prefix="sanitizer-")) / "libsane.so"
    command = ["gcc", "-g", "-O1", *flags, "-shared", "-fPIC", "-pthread", "-o", str(path), "-x", "c", "-"]
    subprocess.run(command, input=SOURCE, text=True, check=True)
    return str(path)


def run(path: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROBED, path]
    return subprocess.run(
        command, env={**os.environ, **environment}, text=True, capture_output=True, timeout=300, check=False
    )


@pytest.mark.stress
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("sanitizer", "name"), sampled([("address", "asan"), ("thread", "tsan"), ("undefined", "ubsan")], 1)
)
def test_programs_with_a_sanitizer_are_probed(sanitizer, name):
    preload = shared_object(name)
    done = run(build(f"-fsanitize={sanitizer}"), LD_PRELOAD=preload, ASAN_OPTIONS="detect_leaks=0")
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("ThreadSanitizer does not start with this machine's address space randomisation")
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


@pytest.mark.stress
@isolated(timeout=60, cold=True)
def test_memory_is_placed_far_from_code_above_shadow_memory():
    """gcc 16's AddressSanitizer has 4 TB below the libraries, too: with other large memory there, code has no space near it."""
    flags = pages.MAP_PRIVATE | pages.MAP_ANONYMOUS | pages.MAP_NORESERVE | pages.MAP_FIXED
    for start, end in ((1 << 44, 0x1000_7FFF_8000), (0x7E80_0000_0000, 0x7EE0_0000_0000)):
        pages.mmap_at(start, end - start, pages.PROT_NONE, flags)
    libc = min(start for start, _end, _permissions, path in mappings.mappings() if "libc.so" in path)
    assert abs(mappings.reserve(8 << 30) - libc) > 1 << 40


@pytest.mark.stress
@isolated(timeout=60, cold=True)
def test_memory_is_placed_far_from_code_though_addresses_for_it_are_taken():
    """As by shadow memory. Near the libraries, memory of gigabytes would keep code from what it refers to."""
    shadow = 1 << 44
    flags = pages.MAP_PRIVATE | pages.MAP_ANONYMOUS | pages.MAP_NORESERVE | pages.MAP_FIXED
    pages.mmap_at(shadow, 1 << 45, pages.PROT_NONE, flags)
    libc = min(start for start, _end, _permissions, path in mappings.mappings() if "libc.so" in path)
    large = mappings.reserve(8 << 30)
    assert abs(large - libc) > 1 << 32 and not shadow <= large < shadow + (1 << 45)
    text = mappings.allocate_text(None, mappings.PAGE, "anywhere")
    text.write(text.base, b"\xb8\x07\x00\x00\x00\xc3")
    assert ctypes.CFUNCTYPE(ctypes.c_int)(text.base)() == 7
    with fprobe.attach("libc:abs", action=fprobe.Stat()) as probe:
        assert ctypes.CDLL("libc.so.6").abs(-3) == 3 and probe.hits == 1
