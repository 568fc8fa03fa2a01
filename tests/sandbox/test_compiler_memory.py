"""Compiling keeps no memory: a program may define events, filters and handlers for as long as it runs."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable

import pytest
from sampled import in_stress

from sandbox.compile.codegen import emit
from sandbox.native.back.compile import compile_ir

IR = "define i64 @f(i64 %a) {\n  %b = add i64 %a, 1\n  ret i64 %b\n}\n"
OF_PASS_BUILDER = 8 << 10
"""Bytes that LLVM may keep of a module: llvmlite keeps a pass builder's callbacks, some 1.5 KiB."""
_SIZES = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


class _MallInfo(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_size_t) for name in _SIZES)


def _in_use() -> int:
    """Bytes of the heap that are in use."""
    gc.collect()
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _MallInfo
    info = mallinfo()
    return int(info.uordblks + info.hblkhd)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="the C library cannot tell what is in use")
@pytest.mark.parametrize(
    "make",
    [lambda: compile_ir(IR), in_stress(lambda: emit(IR, 1)), in_stress(lambda: emit(IR, 3))],
    ids=["native", "program", "program-3"],
)
def test_a_compiled_module_leaves_no_memory_in_use(make: Callable[[], bytes]) -> None:
    for _ in range(3):
        make()
    before, times = _in_use(), 20
    for _ in range(times):
        make()
    assert (_in_use() - before) / times < OF_PASS_BUILDER
