"""`prepare`: a user's own IR, with what its functions need to be probed by stubs once the user's engine has compiled it."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from sandbox.compile.codegen import initialize_llvm, parse
from sandbox.compile.irtypes import IrInterface, declarations
from sandbox.compile.stubs import Flavour, with_stubs

if TYPE_CHECKING:
    from llvmlite.binding import ModuleRef

IDENT = "llvm.ident"
"""The metadata whose strings an object has in its section `.comment`."""
MARK = "fprobe: stubs"
"""Such a string of prepared modules: r10 and r11 are free where functions with patchable entries begin."""


def prepare(module: Any, *, noinline: bool = False, notrace: Collection[str] = ()) -> ModuleRef:
    """The same module with a stub at each function's entry and frame information, for any engine of llvmlite.

    `module`: an `llvmlite.binding.ModuleRef`, an `llvmlite.ir.Module`, IR text or bitcode; it is not changed. Give the engine the
    result in its place, before passes run. A stub is a NOP of five bytes; the code does what it did.

    `noinline`: calls between the functions are not inlined, so that probes see each one, but for functions with `alwaysinline`.
    Functions named in `notrace`, or with the string attribute `"notrace"`, get no stub, nor do functions that return twice, or
    have something in r10 or r11 when they are entered: these are probed by detours.

    Raises ProgramError if LLVM does not accept the module.
    """
    from llvmlite import binding

    given = _accepted(module)
    text = str(given)
    interface = IrInterface(declarations(text))
    left_out = {*notrace, *interface.scratch_taken, *interface.functions_with("returns_twice")}
    context = given._context  # so that both can be linked with the same others
    made = binding.parse_assembly(with_stubs(text, Flavour.PATCHABLE, left_out), context)
    made.link_in(binding.parse_assembly(f'!{IDENT} = !{{!0}}\n!0 = !{{!"{MARK}"}}', context))
    made.name = given.name
    if noinline:
        _keep_calls(made)
    made.verify()
    return made


def _accepted(module: Any) -> ModuleRef:
    from llvmlite import binding

    initialize_llvm()
    if isinstance(module, binding.ModuleRef):
        return module
    return parse(module, "<prepare>")


def _keep_calls(module: ModuleRef) -> None:
    for function in module.functions:
        inlined = any("alwaysinline" in str(attributes) for attributes in function.attributes)
        if not function.is_declaration and not inlined:
            function.add_function_attribute("noinline")
