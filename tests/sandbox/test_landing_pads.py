"""Where exceptions land, by the tables that unwinders read."""

from __future__ import annotations

import ctypes

import pytest
from isolation import isolated

PROGRAM = """
declare i32 @__gcc_personality_v0(...)
define void @calls(i64 %x) noinline { %p = inttoptr i64 %x to ptr  call void %p()  ret void }
define i64 @cleans_up(i64 %x) personality ptr @__gcc_personality_v0 {
  invoke void @calls(i64 %x) to label %first unwind label %pad
first:
  invoke void @calls(i64 %x) to label %second unwind label %other
second:
  ret i64 1
pad:
  %a = landingpad { ptr, i32 } cleanup
  %b = add i64 %x, 77
  call void @calls(i64 %b)
  resume { ptr, i32 } %a
other:
  %c = landingpad { ptr, i32 } cleanup
  call void @calls(i64 5)
  resume { ptr, i32 } %c
}
define i64 @throws_nothing(i64 %x) { ret i64 %x }
"""


@isolated
def test_of_compiled_code():
    from instructions import boundaries

    import sandbox
    from kprobes.jump.functions import function_at
    from sandbox.elf.unwinder import landing_pads

    ctypes.CDLL("libgcc_s.so.1", ctypes.RTLD_GLOBAL)
    module = sandbox.load(PROGRAM, name="throwing")
    symbol = module.symbol("cleans_up")
    pads = landing_pads(symbol.address)
    starts = boundaries(symbol.address, symbol.end)
    calls = [at for at in starts if ctypes.string_at(at, 1) == b"\xe8"]
    assert len(pads) == 2
    assert set(pads) <= set(starts)
    assert all(pad > calls[1] for pad in pads)
    assert function_at(symbol.address, symbol.end).pads == pads
    assert landing_pads(module.symbol("throws_nothing").address) == ()


@isolated(timeout=60)
def test_of_a_library_they_are_instructions_of_their_functions():
    from instructions import boundaries

    from benchmarks.jump_coverage import functions_of
    from sandbox.elf.unwinder import landing_pads

    try:
        ctypes.CDLL("libstdc++.so.6")
    except OSError:
        pytest.skip("no libstdc++ here")
    found = 0
    for start, end in functions_of("libstdc++.so.6")[::7]:
        pads = landing_pads(start)
        inside = {pad for pad in pads if start <= pad < end}
        assert inside <= set(boundaries(start, end)) if inside else True
        found += len(inside)
    assert found > 100


def test_of_a_library_in_c_there_are_none():
    from benchmarks.jump_coverage import functions_of
    from sandbox.elf.unwinder import landing_pads

    ctypes.CDLL("libz.so.1")
    assert {landing_pads(start) for start, _ in functions_of("libz.so.1")} == {()}
