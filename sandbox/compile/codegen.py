"""Running LLVM: parsing, passes, machine code."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from sandbox.process.once import once

if TYPE_CHECKING:
    from llvmlite.binding import ModulePassManager, ModuleRef, PassBuilder, TargetMachine

TRIPLE = "x86_64-unknown-linux-gnu"


class ProgramError(ValueError):
    """A source that cannot be compiled; the message names the source and repeats what the compiler said."""


@once
def initialize_llvm() -> None:
    """Make LLVM ready to compile for this machine; once per process."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    binding.initialize_native_asmparser()


@functools.cache
def host() -> tuple[str, str]:
    """LLVM's name of this CPU and its features, for which programs are compiled."""
    from llvmlite import binding

    return binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()


def target_machine(opt: int) -> TargetMachine:
    """A target machine for objects that can be patched: small code model, position-independent."""
    from llvmlite import binding

    initialize_llvm()
    cpu, features = host()
    target = binding.Target.from_triple(TRIPLE)
    return target.create_target_machine(cpu=cpu, features=features, opt=opt, reloc="pic", codemodel="small")


def parse(source: Any, origin: str) -> ModuleRef:
    """LLVM's module for IR text (str), bitcode (bytes) or an `llvmlite.ir.Module`, in a context of its own.

    Raises ProgramError, beginning with `origin` and the line, if LLVM does not accept it.
    """
    from llvmlite import binding

    initialize_llvm()
    context = binding.create_context()
    try:
        if isinstance(source, bytes):
            module = binding.parse_bitcode(source, context)
        else:
            module = binding.parse_assembly(str(source), context)
        module.verify()
    except RuntimeError as error:
        raise ProgramError(f"{origin}: {_cleaned(str(error), origin)}") from None
    return module


def _cleaned(message: str, origin: str) -> str:
    """LLVM's message with the name of the file in place of `<string>`."""
    message = message.strip().replace("<string>:", f"{origin}:")
    message = message.replace("LLVM IR parsing error", "the IR does not parse")
    return message.replace("LLVM bitcode parsing error", "the bitcode does not parse")


def emit(text: str, opt: int) -> bytes:
    """The object for IR that LLVM has accepted before; `opt` is 0 to 3. No pass looks across functions."""
    module = parse(text, "<emit>")
    module.triple = TRIPLE
    machine = target_machine(opt)
    if opt:
        _run_passes(module, machine, opt)
    return bytes(machine.emit_object(module))


def _run_passes(module: ModuleRef, machine: TargetMachine, opt: int) -> None:
    from llvmlite import binding

    builder = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(opt))
    passes = binding.create_new_module_pass_manager()
    _add_clean_up(passes)
    if opt > 1:
        passes.add_reassociate_pass()
        passes.add_loop_rotate_pass()
        passes.add_sccp_pass()
        passes.add_new_gvn_pass()
        passes.add_mem_copy_opt_pass()
        passes.add_dead_store_elimination_pass()
        passes.add_aggressive_dce_pass()
        _add_clean_up(passes)
    if opt > 2:
        passes.add_loop_unroll_pass()
        _add_clean_up(passes)
    run_passes(passes, module, builder)


def run_passes(passes: ModulePassManager, module: ModuleRef, builder: PassBuilder) -> None:
    """Run *passes* on *module*, and free them: llvmlite has the function for that, but never calls it."""
    from llvmlite.binding.newpassmanagers import NewPassManager

    try:
        passes.run(module, builder)
    finally:
        NewPassManager._dispose(passes)
        passes.detach()


def _add_clean_up(passes: ModulePassManager) -> None:
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    passes.add_instruction_combine_pass()
