"""Addresses in libraries, in histograms (TE-8.5) and filters (TE-6.5): a library is what a module is to the kernel."""

from __future__ import annotations

import re

from isolation import isolated


@isolated
def test_te8_5_te6_5_functions_of_libraries_have_their_names():
    import zlib

    from fprobe.tracefs import tracefs

    tracefs.write("kprobe_events", "p:z libz:deflate strm=%di\n")
    for keys in ("common_stacktrace", "__probe_ip.sym", "__probe_ip.sym-offset", "strm.sym"):
        tracefs.write("events/kprobes/z/trigger", f"hist:keys={keys}", append=True)
    condition = "__probe_ip.function == libz:deflate && __probe_ip.function != libz:inflate"
    tracefs.write("events/kprobes/z/trigger", f"hist:keys=strm.hex if {condition}", append=True)
    zlib.compress(b"x" * 1000)
    sections = tracefs.read("events/kprobes/z/hist").split("# event histogram\n")[1:]
    stack, symbol, with_offset, other, conditional = (text.partition("#\n\n")[2] for text in sections)
    at_entry = r"deflate\+0x[04]/0x[0-9a-f]+ \[libz\.so\.1\]"  # 4: after an endbr64
    assert re.fullmatch(" " * 9 + at_entry, stack.splitlines()[1])
    assert f"] {'deflate [libz.so.1]':<45} }} hitcount: {1:10}\n" in symbol
    assert re.search(r"\] " + at_entry, with_offset)
    address = other.partition("[")[2].partition("]")[0]
    assert f"[{address}] {'0x' + address:<45} }}" in other and f"strm: {address} }}" in conditional
    for text in ("libz:nosuch", "nosuch:deflate", "0x10"):
        try:
            tracefs.write("events/kprobes/z/filter", f"__probe_ip.function == {text}")
        except OSError as refused:
            assert refused.strerror == "Function not found"
        else:
            raise AssertionError(text)
