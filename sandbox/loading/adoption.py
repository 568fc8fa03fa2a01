"""`adopt`: programs compiled by another llvmlite engine, or objects made by another compiler."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from sandbox.compile.codegen import initialize_llvm, parse
from sandbox.compile.irtypes import IrInterface, declarations
from sandbox.compile.objectfile import LoadableObject, prepare
from sandbox.compile.stubs import HOOKS, Flavour, attributes_of
from sandbox.loading.linker import claim, link, loaded_code_of
from sandbox.loading.loaded_code import LoadedCode
from sandbox.loading.module import Module, check_name, free_name, introduce
from sandbox.memory import mappings
from sandbox.process.once import once
from sandbox.symbols import gdbjit
from sandbox.x86_64.encoding import NOP5

if TYPE_CHECKING:
    from llvmlite.binding import ExecutionEngine


class AdoptionError(ValueError):
    """A program that cannot be taken over; the message says why, and what to do instead."""


def adopt(program: Any, *, name: str | None = None, ir: Any = None) -> Module:
    """Take over `program` as module `name`.

    `program` is an llvmlite MCJIT engine that has compiled nothing yet (this finalizes it, with `__fentry__` and
    `mcount` defined, and calls its object cache as usual), or the bytes of a relocatable object. Its functions must
    have been compiled with stubs, for the small code model. `ir` (text, bitcode or an `llvmlite.ir.Module`)
    has the functions' types; by default the engine's own modules have them.

    An adopted engine is kept alive by the module, and must not be closed before `unload()`, which leaves it usable.

    Raises AdoptionError for a program without stubs, or an engine that has compiled already or has several objects;
    StubError for stubs that are not five bytes, ElfError for bytes that are not an object, LinkError for missing symbols,
    ValueError for a bad name.
    """
    name = name or free_name("adopted")
    check_name(name)
    if isinstance(program, (bytes, bytearray, memoryview)):
        declared = "" if ir is None else declarations(str(parse(ir, f"<{name}>")))
        return introduce(Module(name, link(_prepared(bytes(program), name), name), IrInterface(declared)))
    if not hasattr(program, "add_object_file"):
        raise AdoptionError(f"cannot adopt {program!r}: neither an MCJIT engine of llvmlite nor the bytes of an object")
    return _adopt_engine(program, name, ir)


def _adopt_engine(engine: ExecutionEngine, name: str, ir: Any) -> Module:
    texts = [str(module) for module in engine._modules] if ir is None else [str(parse(ir, f"<{name}>"))]
    define_hooks()
    with gdbjit.making_own():
        obj = _prepared(_only_object(engine), name)
        claim(engine, obj)
    held = [engine]
    loaded = loaded_code_of(obj, name, engine, held.clear)
    _silence(loaded)
    return introduce(Module(name, loaded, IrInterface("\n".join(map(declarations, texts)))))


def _only_object(engine: ExecutionEngine) -> bytes:
    """The object that it makes when it is finalized here."""
    objects = _compiled_now(engine)
    if not objects:
        raise AdoptionError(
            "the engine has compiled its modules already, and keeps no objects, which say where the stubs are: adopt "
            "it before finalize_object(), or adopt the bytes of target_machine.emit_object(module)"
        )
    if len(objects) > 1:
        raise AdoptionError(f"the engine holds {len(objects)} modules: adopt an engine for each, or link them into one")
    return objects[0]


def _prepared(data: bytes, name: str) -> LoadableObject:
    obj = prepare(data)
    if obj.kind is Flavour.NONE:
        raise AdoptionError(
            f"no function of {name!r} has a stub: give the definitions an attribute such as "
            f"{attributes_of(Flavour.FENTRY)} before they are compiled"
        )
    return obj


def define_hooks() -> None:
    """Give the functions that stubs call a place to go to, if this process has none (glibc has)."""
    from llvmlite import binding

    initialize_llvm()
    for hook in HOOKS:
        if not binding.address_of_symbol(hook):
            binding.add_symbol(hook, _return())


@once
def _return() -> int:
    """Address of a function that does nothing."""
    here = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p).value or 0
    text = mappings.allocate_text((here, here), 1, "hooks")
    text.write(text.base, b"\xc3")
    return text.base


def _silence(loaded: LoadedCode) -> None:
    """Turn the stubs, which the engine has linked as calls, into NOPs. No thread runs the code yet."""
    for text in loaded.texts:
        with text.writable() as delta:
            for site in loaded.sites:
                if site in text:
                    ctypes.memmove(site + delta, NOP5, len(NOP5))


def _compiled_now(engine: ExecutionEngine) -> list[bytes]:
    """Finalize the engine, and return the objects that it passes to its object cache."""
    objects: list[bytes] = []
    notify = getattr(engine, "_object_cache_notify", None)
    get = getattr(engine, "_object_cache_getbuffer", None)

    def made(module: Any, data: bytes) -> None:
        objects.append(data)
        if notify:
            notify(module, data)

    def cached(module: Any) -> bytes | None:
        data = get(module) if get else None
        if data is not None:
            objects.append(data)
        return data

    engine.set_object_cache(made, cached)
    try:
        engine.finalize_object()
    finally:
        if notify or get:
            engine.set_object_cache(notify, get)
    return objects
