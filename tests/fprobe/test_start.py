"""What the first probe of a process imports."""

from __future__ import annotations

from isolation import run_source

SOURCE = """
import ctypes, sys, fprobe
libz = ctypes.CDLL("libz.so.1")
with fprobe.attach("libz:crc32", action=fprobe.Stat()) as probe:
    libz.crc32(0, None, 0)
print(probe.hits, *(name for name in sys.modules if name.startswith("kprobes")))
"""


def test_a_probe_on_a_library_imports_no_kprobes():
    done = run_source(SOURCE)
    assert (done.stdout, done.stderr) == ("1\n", "")


HEAVY = """
import sandbox, sys
sandbox.IMPORTED += 10**10  # whatever was edited just now
import llvmlite.binding
before = set(sys.modules)
import ctypes, fprobe
ctypes.CDLL("libz.so.1")
fprobe.attach("libz:*", action=fprobe.Stat()).attach()
heavy = {"ast", "capstone", "html", "inspect", "sysconfig"}
if sys.version_info < (3, 14):  # from then on logging imports it, by traceback and _colorize
    heavy.add("dataclasses")
heavy |= {"sandbox.abi.signatures", "sandbox.compile.stubs", "sandbox.images.numba.mangling", "sandbox.loading.calls"}
print(sorted(heavy & (set(sys.modules) - before)))
"""


def test_a_probe_on_a_library_does_not_import_what_it_does_not_use():
    for _ in range(2):  # the second process finds the runtime in the cache
        done = run_source(HEAVY)
    assert (done.stdout, done.stderr) == ("[]\n", "")
