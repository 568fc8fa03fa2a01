"""What debuggers see of loaded code."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from isolation import isolated
from llvmlite import binding
from llvmlite.binding import ffi

from sandbox.native.back.compile import compile_ir, target_machine
from sandbox.native.back.module import TRIPLE
from sandbox.symbols import gdbjit
from sandbox.symbols.libraries import libraries

IR = """
define i64 @inner_crash(i64 %a) noinline !dbg !4 {
  %p = inttoptr i64 %a to ptr, !dbg !6
  %v = load i64, ptr %p, !dbg !6
  ret i64 %v, !dbg !6
}
define i64 @outer_crash(i64 %a) !dbg !7 {
  %r = call i64 @inner_crash(i64 %a), !dbg !8
  %s = add i64 %r, 1, !dbg !8
  ret i64 %s, !dbg !8
}
!llvm.dbg.cu = !{!0}
!llvm.module.flags = !{!2, !3}
!0 = distinct !DICompileUnit(language: DW_LANG_C99, file: !1, producer: "x", emissionKind: FullDebug)
!1 = !DIFile(filename: "crash.src", directory: "/nowhere")
!2 = !{i32 2, !"Debug Info Version", i32 3}
!3 = !{i32 2, !"Dwarf Version", i32 4}
!4 = distinct !DISubprogram(name: "inner_crash", scope: !1, file: !1, line: 10, type: !5, unit: !0,
  spFlags: DISPFlagDefinition)
!5 = !DISubroutineType(types: !{null})
!6 = !DILocation(line: 11, column: 3, scope: !4)
!7 = distinct !DISubprogram(name: "outer_crash", scope: !1, file: !1, line: 20, type: !5, unit: !0,
  spFlags: DISPFlagDefinition)
!8 = !DILocation(line: 21, column: 3, scope: !7)
"""


def object_of_one_function() -> bytes:
    return compile_ir(f'target triple = "{TRIPLE}"\ndefine i64 @one() {{ ret i64 1 }}\n')


def engine_with_one_function() -> binding.ExecutionEngine:
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), target_machine())
    engine.add_object_file(binding.ObjectFileRef.from_data(object_of_one_function()))
    engine.finalize_object()
    return engine


def entries() -> list[bytes]:
    """The images in the descriptor, as a debugger would walk to them."""
    interface = gdbjit._find_interface()
    assert interface is not None
    found, entry = [], interface._descriptor.first
    while entry:
        found.append(ctypes.string_at(entry.contents.image, entry.contents.size))
        entry = entry.contents.next
    return found


def test_the_interface_is_in_llvms_library():
    values = gdbjit.static_symbols(
        Path(ffi.lib._name), ["__jit_debug_descriptor", "__jit_debug_register_code", "nosuch"]
    )
    assert set(values) == {"__jit_debug_descriptor", "__jit_debug_register_code"}
    interface = gdbjit._find_interface()
    assert interface is not None and interface._descriptor.version == 1
    library = next(library for library in libraries() if library.name == "libllvmlite.so")
    assert library.base + values["__jit_debug_register_code"] in library


def test_images_come_and_go_in_any_order():
    before = entries()
    first, second, third = (gdbjit.register(name) for name in (b"first", b"second", b"third"))
    assert entries() == [b"third", b"second", b"first", *before]
    second.withdraw()
    assert entries() == [b"third", b"first", *before]
    third.withdraw()
    first.withdraw()
    assert entries() == before


@pytest.mark.stress
@pytest.mark.parametrize("objects", [60, pytest.param(200, marks=pytest.mark.stress)])
@isolated
def test_llvm_and_we_change_the_list_by_turns(objects):
    """Two threads: LLVM shows what it links to debuggers as well, without the GIL, and checks the list when it ends."""
    over = threading.Event()

    def come_and_go():
        while not over.is_set():
            gdbjit.register(b"ours").withdraw()

    first = gdbjit.register(b"first")
    before = entries()
    thread = threading.Thread(target=come_and_go)
    thread.start()
    engines = [engine_with_one_function() for _ in range(objects)]
    over.set()
    thread.join()
    assert len(entries()) == len(before) + 2 * len(engines)  # MCJIT has a module of its own beside the object
    for engine in engines[::2] + engines[1::2]:
        engine.close()
    assert entries() == before
    first.withdraw()


def test_opting_out(monkeypatch):
    monkeypatch.setenv(gdbjit.OPT_OUT, "1")
    before = entries()
    assert gdbjit.register(b"hidden") is None
    assert entries() == before


def test_a_file_without_a_symbol_table_has_no_interface(tmp_path):
    stripped = tmp_path / "stripped"
    shutil.copy(Path(sys.executable).resolve(), stripped)
    assert gdbjit.static_symbols(stripped, ["nosuch_symbol"]) == {}


@pytest.mark.stress
@pytest.mark.skipif(not shutil.which("gdb"), reason="no gdb")
def test_gdb_names_functions_and_lines(tmp_path):
    source = tmp_path / "crash.ll"
    source.write_text(IR)
    script = f"from pathlib import Path; from sandbox import load; load(Path({str(source)!r}))['outer_crash'](8)"
    done = subprocess.run(
        ["gdb", "-nx", "-q", "-batch", "-ex", "run", "-ex", "bt 2", "--args", sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "DEBUGINFOD_URLS": ""},
        check=False,
    )
    assert "SIGSEGV" in done.stdout, done.stdout + done.stderr
    trace = done.stdout[done.stdout.index("#0") :]
    assert "in inner_crash () at /nowhere/crash.src:11" in trace or "inner_crash () at crash.src:11" in trace, trace
    assert "in outer_crash () at /nowhere/crash.src:21" in trace or "outer_crash () at crash.src:21" in trace, trace
