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
