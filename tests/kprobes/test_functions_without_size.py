"""Hazard: functions whose symbols have no size, and which no unwind table describes: the C runtime's, and those of assembly."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from tempfile import mkdtemp

import pytest
from isolation import isolated

import fprobe
import kprobes
import sandbox
from sandbox.elf.extents import Extents
from sandbox.images.process_text import symbol_named

ASSEMBLY = """
.text
.globl first, second, inside, last
.type first, @function
.type second, @function
.type inside, @function
.type last, @function
first: push %rbx
    mov %rdi, %rbx
    lea 5(%rbx), %rax
    pop %rbx
    ret
second: mov %rdi, %rax
inside: add $1, %rax
    ret
.size second, . - second
last: lea 9(%rdi), %rax
    ret
"""
IR = """
module asm ".text"
module asm ".globl bare"
module asm ".type bare, @function"
module asm "bare: movq %rdi, %rax"
module asm "addq $7, %rax"
module asm "ret"
declare i64 @bare(i64)
define i64 @through(i64 %x) noinline { %r = call i64 @bare(i64 %x) ret i64 %r }
"""


def build(name: str, language: str, source: str, *flags: str) -> Path:
    path = Path(mkdtemp(prefix="no-size-")) / f"lib{name}.so"
    command = ["gcc", "-O2", "-shared", "-fPIC", *flags, "-o", str(path), "-x", language, "-"]
    subprocess.run(command, input=source, text=True, check=True)
    return path


def test_a_function_without_a_size_ends_where_the_next_begins_or_its_section_ends():
    extents = Extents(lambda: [(0x10, 0), (0x20, 8), (0x24, 0), (0x30, 0)], [(0x10, 0x40), (0x40, 0x50)])
    assert [extents.end(start) for start in (0x10, 0x24, 0x30, 0x48, 0x60)] == [0x20, 0x24, 0x40, 0x50, 0x60]


@isolated(timeout=60)
def test_every_function_of_a_library_can_be_probed():
    library = ctypes.CDLL(str(build("plain", "c", "int plain_one(int x) { return x + 1; }")))
    with kprobes.attach("libplain:*", action=kprobes.Count()) as probe:
        assert library.plain_one(1) == 2
        assert [each for each in probe.skipped if "first byte" in each.reason] == []
        assert len(probe.probes) > 1 and probe.hits == 1


@isolated(timeout=60)
def test_assembly_without_sizes_is_probed_at_its_instructions_and_at_its_return():
    library = ctypes.CDLL(str(build("bare", "assembler", ASSEMBLY, "-nostartfiles", "-Wl,-z,noexecstack")))
    sizes = {name: symbol_named(f"libbare:{name}").size for name in ("first", "second", "inside", "last")}
    assert sizes == {"first": 10, "second": 8, "inside": 0, "last": 5}
    for name, offset, hits in (("first", 0, 1), ("first", 1, 1), ("first", 9, 1), ("inside", 0, 1), ("last", 4, 1)):
        with kprobes.attach(f"libbare:{name}+{offset:#x}", action=kprobes.Count()) as probe:
            assert (library.first(1), library.second(1), library.last(1)) == (6, 2, 10)
            assert probe.hits == hits
    with fprobe.attach("libbare:last", action=fprobe.Stat()) as returns:
        assert library.last(1) == 10 and returns.hits == 1
    with pytest.raises(OSError, match="is not the first byte of an instruction:"):
        kprobes.attach("libbare:first+0x2", action=kprobes.Count()).attach()


@isolated(timeout=60)
def test_assembly_in_modules_and_jit_code_is_probed():
    module = sandbox.load(IR, name="bares")
    from llvmlite import binding

    machine = binding.Target.from_default_triple().create_target_machine()
    engine = binding.create_mcjit_compiler(binding.parse_assembly(IR.replace("@through", "@jitted")), machine)
    engine.finalize_object()
    jitted = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(engine.get_function_address("jitted"))
    for name, call in (("bares:bare", module["through"]), ("jit:bare", jitted)):
        for place in (name, f"{name}+0x3"):
            with kprobes.attach(place, action=kprobes.Count()) as probe:
                assert call(1) == 8 and probe.hits == 1
