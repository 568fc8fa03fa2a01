"""Compiling a unit to machine code, with LLVM's optimiser kept from inserting calls."""

from __future__ import annotations

from typing import Any

from sandbox.native.back.known import ObjectCache, fingerprint
from sandbox.native.back.module import TRIPLE
from sandbox.native.unit import Unit


def compile_unit(unit: Unit, opt: int = 2, cache: ObjectCache | None = None) -> bytes:
    """The object file of *unit* (ELF, small code model, position independent), optimised at level *opt* (0-3).

    With a *cache*, an object in it is used, and nothing is parsed or checked. Raises NativeError if a function is not in
    the language.
    """
    if cache is None:
        return compile_ir(_ir(unit), opt)
    key = fingerprint(unit, opt, cache)
    data = cache.get(key)
    if data is None:
        data = compile_ir(_ir(unit), opt)
        cache.put(key, data)
    return data


def unit_ir(unit: Unit, cache: ObjectCache) -> str:
    """*unit* as LLVM IR text, from the cache if it is there; then nothing is parsed or checked. Raises NativeError."""
    key = fingerprint(unit, "ir", cache)
    data = cache.get(key)
    if data is None:
        text = _ir(unit)
        cache.put(key, text.encode())
        return text
    return data.decode()


def _ir(unit: Unit) -> str:
    from sandbox.native.back.lowering import ir  # which brings the whole compiler: not for what the cache has

    return ir(unit)


def compile_ir(text: str, opt: int = 2) -> bytes:
    """The object file of LLVM IR *text*. Raises RuntimeError with LLVM's message when it is not valid."""
    from llvmlite import binding

    machine = target_machine(opt)
    module = binding.parse_assembly(text, binding.create_context())
    module.verify()
    optimise(module, machine, opt)
    return bytes(machine.emit_object(module))


def target_machine(opt: int = 2) -> Any:
    """LLVM's target machine for native code: baseline x86-64, small code model, position independent."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    binding.initialize_native_asmparser()
    target = binding.Target.from_triple(TRIPLE)
    return target.create_target_machine(cpu="x86-64", opt=opt, reloc="pic", codemodel="small")


def optimise(module: Any, machine: Any, opt: int) -> None:
    """Runs LLVM's pipeline of level *opt* on *module*, without vectorisation and loop idioms."""
    from llvmlite import binding

    options = binding.create_pipeline_tuning_options(speed_level=opt)
    options.loop_vectorization = options.slp_vectorization = False
    options.loop_interleaving = options.loop_unrolling = False
    builder = binding.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
