"""Compiling programs in LLVM IR (text, bitcode or `llvmlite.ir.Module`) to objects with stubs."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sandbox.compile import apart, cache, stubs
from sandbox.compile.codegen import ProgramError, emit, host, parse
from sandbox.compile.irtypes import declarations
from sandbox.compile.stubs import Flavour

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
    return CompiledProgram.from_bytes(apart.run("sandbox.compile.rehearsal.main", data, origin, **given))


def _refuse_nul(source: str, origin: str) -> None:
    # LLVM would stop reading there, without a word.
    if "\0" in source:
        line = source[: source.index("\0")].count("\n") + 1
        raise ProgramError(f"{origin}:{line}: the IR contains a NUL character")
