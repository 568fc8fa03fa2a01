"""Sources of programs, compiled to objects: LLVM IR as text, as bitcode or as an `llvmlite.ir.Module`."""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandbox import stubs
from sandbox.irtypes import definition_lines, type_definitions
from sandbox.stubs import Flavour

if TYPE_CHECKING:
    from llvmlite.binding import ModuleRef, TargetMachine

TRIPLE = "x86_64-unknown-linux-gnu"
BITCODE_MAGICS = (b"BC\xc0\xde", b"\xde\xc0\x17\x0b")


class ProgramError(ValueError):
    """A source that cannot be compiled; the message names the source and repeats what the compiler said."""


@dataclass(frozen=True)
class CompiledProgram:
    """A relocatable object and what the source said about its functions, as lines of IR."""

    object: bytes
    definitions: dict[str, str]
    types: dict[str, str]
    groups: dict[str, str]


@functools.cache
def initialize_llvm() -> None:
    """Make LLVM ready to compile for this machine; once per process."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    binding.initialize_native_asmparser()


def target_machine(opt: int) -> TargetMachine:
    """A target machine for objects that can be patched: small code model, position-independent."""
    from llvmlite import binding

    initialize_llvm()
    target = binding.Target.from_triple(TRIPLE)
    return target.create_target_machine(
        cpu=binding.get_host_cpu_name(),
        features=binding.get_host_cpu_features().flatten(),
        opt=opt,
        reloc="pic",
        codemodel="small",
    )


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
        raise ProgramError(f"{origin}: {_cleaned(str(error))}") from None
    return module


def _cleaned(message: str) -> str:
    return message.replace("LLVM IR parsing error", "the IR does not parse").strip()


def compile_ir(
    source: Any, *, origin: str, flavour: Flavour, opt: int = 1, notrace: Collection[str] = ()
) -> CompiledProgram:
    """Compile IR (see `parse`) with stubs of `flavour` at the start of each function.

    `opt` is 0 to 3. No pass looks across functions, so that none is inlined away. Functions named in `notrace`, or
    with the attribute `"notrace"`, get no stub. Raises ProgramError.
    """
    if opt not in range(4):
        raise ValueError(f"opt must be 0, 1, 2 or 3, not {opt!r}")
    text = stubs.with_stubs(str(parse(source, origin)), flavour, notrace)
    module = parse(text, origin)
    module.triple = TRIPLE
    machine = target_machine(opt)
    _optimize(module, machine, opt)
    return CompiledProgram(
        object=machine.emit_object(module),
        definitions=definition_lines(text),
        types=type_definitions(text),
        groups=stubs.attribute_groups(text),
    )


def _optimize(module: ModuleRef, machine: TargetMachine, opt: int) -> None:
    from llvmlite import binding

    if not opt:
        return
    builder = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(opt))
    passes = binding.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    passes.add_instruction_combine_pass()
    if opt > 1:
        passes.add_reassociate_pass()
        passes.add_loop_rotate_pass()
        passes.add_sccp_pass()
        passes.add_new_gvn_pass()
        passes.add_dead_store_elimination_pass()
        passes.add_aggressive_dce_pass()
        passes.add_simplify_cfg_pass()
        passes.add_instruction_combine_pass()
    passes.run(module, builder)


def read_source(path: Path) -> str | bytes:
    """The contents of an IR file: bytes if they are bitcode, else text. Raises OSError."""
    data = path.read_bytes()
    return data if data.startswith(BITCODE_MAGICS) else data.decode()
