"""LLVM IR compiled to objects: as text, as bitcode, or as an `llvmlite.ir.Module`."""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sandbox import cache, stubs
from sandbox.irtypes import declarations
from sandbox.stubs import Flavour

if TYPE_CHECKING:
    from llvmlite.binding import ModulePassManager, ModuleRef, TargetMachine

TRIPLE = "x86_64-unknown-linux-gnu"


class ProgramError(ValueError):
    """A source that cannot be compiled; the message names the source and repeats what the compiler said."""


@dataclass(frozen=True)
class CompiledProgram:
    """A relocatable object, and what the source said about its functions (see `irtypes.declarations`)."""

    object: bytes
    declared: str

    def to_bytes(self) -> bytes:
        """For a cache."""
        return len(self.object).to_bytes(8, "little") + self.object + self.declared.encode("utf-8", "surrogateescape")

    @classmethod
    def from_bytes(cls, data: bytes) -> CompiledProgram:
        """The inverse of `to_bytes`."""
        end = 8 + int.from_bytes(data[:8], "little")
        return cls(data[8:end], data[end:].decode("utf-8", "surrogateescape"))


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
    cpu, features = _host()
    target = binding.Target.from_triple(TRIPLE)
    return target.create_target_machine(cpu=cpu, features=features, opt=opt, reloc="pic", codemodel="small")


@functools.cache
def _host() -> tuple[str, str]:
    from llvmlite import binding

    return binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()


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


def compile_ir(
    source: Any,
    *,
    origin: str,
    flavour: Flavour,
    opt: int = 1,
    notrace: Collection[str] = (),
    store: cache.Cache | None = None,
) -> CompiledProgram:
    """Compile IR (see `parse`) with stubs of `flavour` at the start of each function.

    `opt` is 0 to 3. No pass looks across functions, so that none is inlined away. Functions named in `notrace`, or
    with the attribute `"notrace"`, get no stub. With a `store` the result is kept there, and taken from there if the
    same was compiled before. Raises ProgramError, or ValueError naming an `opt` that does not exist.
    """
    if opt not in range(4):
        raise ValueError(f"opt must be 0, 1, 2 or 3, not {opt!r}")
    if isinstance(source, str):
        _refuse_nul(source, origin)
    elif not isinstance(source, bytes):
        source = str(source)
    key = _key(source, flavour, opt, notrace) if store else ""
    if store and (data := store.get(key)):
        return CompiledProgram.from_bytes(data)
    program = _compile(source, origin, flavour, opt, notrace)
    if store:
        store.put(key, program.to_bytes())
    return program


def _refuse_nul(source: str, origin: str) -> None:
    # LLVM would stop reading there, without a word.
    if "\0" in source:
        line = source[: source.index("\0")].count("\n") + 1
        raise ProgramError(f"{origin}:{line}: the IR contains a NUL character")


def _key(source: str | bytes, flavour: Flavour, opt: int, notrace: Collection[str]) -> str:
    import llvmlite
    from llvmlite import binding

    versions = f"{llvmlite.__version__} {binding.llvm_version_info}"
    options = f"{flavour.value} {opt} {sorted(notrace)}"
    kind = "bitcode" if isinstance(source, bytes) else "ir"
    return cache.key(kind, source, options, versions, *_host(), stubs.SCHEME)


def _compile(source: str | bytes, origin: str, flavour: Flavour, opt: int, notrace: Collection[str]) -> CompiledProgram:
    text = stubs.with_stubs(str(parse(source, origin)), flavour, notrace)
    module = parse(text, origin)
    module.triple = TRIPLE
    machine = target_machine(opt)
    if opt:
        _run_passes(module, machine, opt)
    return CompiledProgram(machine.emit_object(module), declarations(text))


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
    passes.run(module, builder)


def _add_clean_up(passes: ModulePassManager) -> None:
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    passes.add_instruction_combine_pass()
