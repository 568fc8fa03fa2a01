"""Compiling programs in LLVM IR (text, bitcode or `llvmlite.ir.Module`) to objects with stubs.

On some errors in a program (inline assembly that does not assemble, a type that the machine lacks, a section that does not fit
into memory, damaged bitcode) LLVM ends the process. Programs that may have them are therefore first compiled and linked on trial
in a child process. `prepare` adds stubs to IR that the user's own engine compiles.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sandbox.compile import cache, stubs
from sandbox.compile.codegen import ProgramError, emit, host, initialize_llvm, parse
from sandbox.compile.irtypes import IrInterface, declarations
from sandbox.compile.stubs import Flavour, with_stubs
from sandbox.process.signal_names import signal_name

if TYPE_CHECKING:
    from llvmlite.binding import ModuleRef

REFUSED = 3
"""The exit status of a child that reports on standard error what is wrong with the program."""
IDENT = "llvm.ident"
"""The metadata whose strings an object has in its section `.comment`."""
MARK = "fprobe: stubs"
"""Such a string of prepared modules: r10 and r11 are free where functions with patchable entries begin."""
# The empty line that casts of the native language leave is known to assemble.
_ASSEMBLY = re.compile(r'\basm\b(?! "", "=r,0,)')


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


@dataclass(frozen=True)
class Options:
    """How to compile: the flavour of stubs, `opt` from 0 to 3, functions that get no stub, a process of its own or not.

    Raises ValueError naming an `opt` that does not exist.
    """

    flavour: Flavour = Flavour.FENTRY
    opt: int = 1
    notrace: Collection[str] = ()
    apart: bool = False

    def __post_init__(self) -> None:
        if self.opt not in range(4):
            raise ValueError(f"opt must be 0, 1, 2 or 3, not {self.opt!r}")


def compile_ir(source: Any, origin: str, options: Options, store: cache.Cache | None = None) -> CompiledProgram:
    """Compile IR text (str), bitcode (bytes) or an `llvmlite.ir.Module`.

    Functions named in the options' `notrace`, or with the attribute `"notrace"`, get no stub. With a `store` the result
    is kept there, and taken from there if the same was compiled before. Raises ProgramError, beginning with `origin`,
    if LLVM does not accept it.
    """
    if not isinstance(source, (str, bytes)):
        source = str(source)
    key = _key(source, options) if store else ""
    if store and (data := store.get(key)):
        return CompiledProgram.from_bytes(data)
    program = _compile(source, origin, options)
    if store:
        store.put(key, program.to_bytes())
    return program


def _key(source: str | bytes, options: Options) -> str:
    import llvmlite
    from llvmlite import binding

    versions = f"{stubs.SCHEME} {llvmlite.__version__} {binding.llvm_version_info}"
    given = f"{options.flavour.value} {options.opt} {sorted(options.notrace)} {options.apart}"
    return cache.key(type(source).__name__, source, given, versions, *host())


def _compile(source: str | bytes, origin: str, options: Options) -> CompiledProgram:
    if isinstance(source, str):
        _refuse_nul(source, origin)
    if options.apart or _ASSEMBLY.search(str(parse(source, origin))):
        return _compile_apart(source, origin, options)
    return compile_here(source, origin, options)


def compile_here(source: str | bytes, origin: str, options: Options) -> CompiledProgram:
    """Compile in this process. Raises ProgramError if LLVM does not accept it; on some mistakes LLVM ends the process."""
    text = stubs.with_stubs(str(parse(source, origin)), options.flavour, options.notrace)
    return CompiledProgram(emit(text, options.opt), declarations(text))


def _compile_apart(source: str | bytes, origin: str, options: Options) -> CompiledProgram:
    is_text = isinstance(source, str)
    data = source.encode("utf-8", "surrogateescape") if isinstance(source, str) else source
    given = {
        "is_text": is_text,
        "flavour": options.flavour.value,
        "opt": options.opt,
        "notrace": sorted(options.notrace),
    }
    return CompiledProgram.from_bytes(_run_apart("sandbox.loading.trial_link.main", data, origin, **given))


def _refuse_nul(source: str, origin: str) -> None:
    # LLVM would stop reading there, without a word.
    if "\0" in source:
        line = source[: source.index("\0")].count("\n") + 1
        raise ProgramError(f"{origin}:{line}: the IR contains a NUL character")


def _run_apart(entry: str, source: bytes, origin: str, **options: Any) -> bytes:
    """The output of a child process that calls `entry` ("module.function") with `options` as JSON, our number among them, and
    `source` as its input.

    Raises ProgramError with what the function refused, or with what LLVM said if it ended the child.
    """
    module, _, function = entry.rpartition(".")
    code = f"from {module} import {function}; {function}()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", code, json.dumps({"origin": origin, "parent": os.getpid(), **options})]
    done = subprocess.run(command, input=source, capture_output=True, env=environment, check=False)
    if not done.returncode:
        return done.stdout
    said = done.stderr.decode("utf-8", "surrogateescape")
    if done.returncode == REFUSED:
        raise ProgramError(said)
    errors = [_shortened(line) for line in said.splitlines() if "error:" in line.lower() or "Assertion" in line]
    raise ProgramError(f"{origin}: LLVM cannot compile it: {'; '.join(errors) or _ended(done.returncode)}")


def _shortened(line: str) -> str:
    """The text of a failed assertion, without its position in LLVM."""
    return line[line.find("Assertion") :] if "Assertion" in line else line


def _ended(status: int) -> str:
    if status < 0:
        return f"the compiling process was ended by {signal_name(-status)}"
    return f"status {status}"


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
