"""Programs that somebody else's engine or compiler made."""

from __future__ import annotations

import ctypes
import gc

import llvmlite.binding as llvm
import pytest

from sandbox import adopt
from sandbox.compile.codegen import initialize_llvm
from sandbox.compile.objectfile import StubError
from sandbox.compile.stubs import Flavour, attributes_of
from sandbox.elf import tables
from sandbox.loading.adoption import AdoptionError
from sandbox.loading.linker import LinkError
from sandbox.memory import mappings as memory
from sandbox.x86_64.encoding import NOP5

IR = """
define i64 @f(i64 %a) ATTRIBUTES {
  %r = mul i64 %a, 3
  ret i64 %r
}
define i64 @g(i64 %a) ATTRIBUTES {
  %r = call i64 @f(i64 %a)
  ret i64 %r
}
"""
SMALL = {"codemodel": "small", "reloc": "pic"}
FLAVOURS = [Flavour.FENTRY, Flavour.MCOUNT, Flavour.PATCHABLE]


def ir(flavour: Flavour) -> str:
    return IR.replace("ATTRIBUTES", attributes_of(flavour))


def machine(**options: str | bool) -> llvm.TargetMachine:
    initialize_llvm()
    return llvm.Target.from_default_triple().create_target_machine(opt=1, **options)


def engine(flavour: Flavour = Flavour.FENTRY, **options: str | bool) -> llvm.ExecutionEngine:
    return llvm.create_mcjit_compiler(llvm.parse_assembly(ir(flavour)), machine(**(options or SMALL)))


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_an_engine_that_has_not_compiled_yet(flavour):
    theirs = engine(flavour)
    program = adopt(theirs, name="theirs")
    assert (program.site_kind, len(program.sites)) == (flavour.value, 2)
    assert all(program.texts[0].read(site, 5) == NOP5 for site in program.sites)
    assert program["g"](5) == 15
    assert program["g"].address == theirs.get_function_address("g")
    program.unload()


def test_the_engine_stays_usable_after_the_module_is_gone():
    theirs = engine()
    adopt(theirs, name="theirs").unload()
    function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(theirs.get_function_address("g"))
    assert function(7) == 21


def test_the_module_keeps_the_engine_alive():
    program = adopt(engine(), name="theirs")
    gc.collect()
    assert program["g"](2) == 6
    program.unload()


def test_their_object_cache_is_asked_and_told_as_before():
    stored: dict[str, bytes] = {}
    first = engine()
    first.set_object_cache(lambda _, data: stored.update(data=data), lambda _: None)
    adopt(first, name="first").unload()
    assert set(stored) == {"data"}
    second = engine()
    second.set_object_cache(lambda *_: pytest.fail("compiled again"), lambda _: stored["data"])
    program = adopt(second, name="second")
    assert program["g"](2) == 6 and len(program.sites) == 2
    program.unload()


def test_default_machines_of_jit_compilers():
    program = adopt(engine(jit=True), name="large")
    assert program["g"](5) == 15 and len(program.sites) == 2
    program.unload()


def test_the_bytes_of_an_object():
    data = machine(**SMALL).emit_object(llvm.parse_assembly(ir(Flavour.FENTRY)))
    program = adopt(data, name="object", ir=ir(Flavour.FENTRY))
    assert program["g"](5) == 15 and len(program.sites) == 2
    program.unload()
    untyped = adopt(data, name="untyped")
    with pytest.raises(LookupError, match="source of module 'untyped' has no signature for 'g'"):
        untyped["g"]
    untyped.unload()


def test_an_engine_that_has_compiled_already():
    theirs = engine()
    theirs.finalize_object()
    with pytest.raises(AdoptionError, match=r"has compiled its modules already.*adopt it before finalize_object"):
        adopt(theirs)


def test_an_engine_of_several_modules():
    theirs = engine()
    theirs.add_module(llvm.parse_assembly(f"define void @h() {attributes_of(Flavour.FENTRY)} {{ ret void }}"))
    with pytest.raises(AdoptionError, match="the engine holds 2 modules"):
        adopt(theirs)


def test_no_stubs():
    with pytest.raises(AdoptionError, match=r"no function of 'plain' has a stub: .*\"fentry-call\"=\"true\""):
        adopt(engine(Flavour.NONE), name="plain")


def test_stubs_that_are_not_five_bytes():
    with pytest.raises(StubError, match="not a 5-byte call"):
        adopt(engine(Flavour.MCOUNT, jit=True))


def test_symbols_that_are_not_there():
    text = ir(Flavour.FENTRY) + "declare void @nosuch()\ndefine void @h() { call void @nosuch() ret void }"
    with pytest.raises(LinkError, match="nosuch"):
        adopt(machine(**SMALL).emit_object(llvm.parse_assembly(text)), name="lost")


@pytest.mark.parametrize(
    ("program", "error", "message"),
    [
        (b"junk", tables.ElfError, "not an ELF64 little-endian file: it starts with b'junk'"),
        (3, AdoptionError, "cannot adopt 3: neither an MCJIT engine of llvmlite nor the bytes of an object"),
        ("text", AdoptionError, "cannot adopt 'text'"),
    ],
)
def test_what_is_no_program(program, error, message):
    with pytest.raises(error, match=message):
        adopt(program)


def test_a_refused_adoption_leaves_no_trace():
    for _ in range(2):
        with pytest.raises(AdoptionError):
            adopt(engine(Flavour.NONE), name="plain")
    assert not [entry for entry in memory.mappings() if "plain" in entry[3]]
