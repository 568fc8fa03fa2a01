"""`load`: compile a source in any supported language and load it as a module."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from sandbox.compile import cache
from sandbox.compile.codegen import ProgramError
from sandbox.compile.irtypes import IrInterface
from sandbox.compile.objectfile import StubError, prepare
from sandbox.compile.program import Options, compile_ir
from sandbox.compile.stubs import Flavour
from sandbox.loading.linker import link
from sandbox.loading.module import Interface, Module, check_name, free_name, introduce

C_SUFFIXES = (".c", ".cc", ".cpp", ".cxx", ".C")
IR_SUFFIXES = (".ll", ".bc")
_BITCODE = (b"BC\xc0\xde", b"\xde\xc0\x17\x0b")


def load(
    source: Any,
    *,
    name: str | None = None,
    flavour: str | Flavour = Flavour.FENTRY,
    opt: int = 1,
    notrace: Collection[str] = (),
    cflags: Sequence[str] = (),
    constructors: bool = True,
) -> Module:
    """Compile `source` and load it as module `name`.

    `source` is LLVM IR as text (str), bitcode (bytes), an `llvmlite.ir.Module`, or the pathlib.Path of a file: IR as
    text (`.ll`) or bitcode (`.bc`), C (`.c`) or C++ (`.cc`, `.cpp`, `.cxx`). `name` defaults to the file's, without
    suffix. `flavour` is that of the stubs ('fentry', 'mcount', 'patchable', 'none'); those of C and C++ are 'patchable'
    unless 'none' is given. `opt` is 0 to 3 and applies to IR; C is compiled with -O1 unless `cflags`, which follow our own
    options, override it. Functions named in `notrace` get no stub. `constructors`: whether the program's
    constructors run; without them none of its code does. Raises SandboxFault if one faults while calls are guarded.

    Raises ProgramError (a ValueError) if it does not compile, LinkError if it needs undefined symbols,
    ValueError if the name is taken, OSError if a file cannot be read.
    """
    options = Options(Flavour.of(flavour), opt, notrace, apart=isinstance(source, Path))
    return introduce(_loaded(source, name, options, cflags), constructors)


def _loaded(source: Any, name: str | None, options: Options, cflags: Sequence[str]) -> Module:
    if isinstance(source, Path):
        return _load_file(source, name or free_name(source.stem), options, cflags)
    if cflags:
        raise ProgramError(f"cflags are for C and C++ files, not for IR: leave out {' '.join(cflags)}")
    name = name or free_name("program")
    return _load_ir(source, name, f"<{name}>", options)


def _load_file(path: Path, name: str, options: Options, cflags: Sequence[str]) -> Module:
    if path.suffix in C_SUFFIXES:
        from sandbox.loading.csource import load_c

        check_name(name)
        return load_c(path, name, options.flavour, options.notrace, cflags)
    if path.suffix not in IR_SUFFIXES:
        known = ", ".join((*IR_SUFFIXES, *C_SUFFIXES))
        raise ProgramError(f"{path}: not a program: the suffix {path.suffix!r} is none of {known}")
    if cflags:
        raise ProgramError(f"{path}: cflags are for C and C++, not for IR: leave out {' '.join(cflags)}")
    data = path.read_bytes()
    return _load_ir(data if data.startswith(_BITCODE) else _decoded(data, path), name, str(path), options)


def _decoded(data: bytes, path: Path) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ProgramError(f"{path}:{line}: neither bitcode nor UTF-8 text: byte {data[error.start]:#04x}") from None


def _as_it_is(interface: Interface) -> Interface:
    return interface


def load_native(ir: str, name: str, interface: Callable[[Interface], Interface]) -> Module:
    """Load the IR of a program in the native language.

    `interface` turns the interface found in the IR into one with the types of the source.
    """
    return introduce(_load_ir(ir, name, f"<{name}>", Options(), interface))


def _load_ir(
    source: Any, name: str, origin: str, options: Options, interface: Callable[[Interface], Interface] = _as_it_is
) -> Module:
    check_name(name)
    program = compile_ir(source, origin, options, cache.default_cache())
    try:
        obj = prepare(program.object)
    except StubError as error:
        raise StubError(f"{origin}: {error}") from None
    return Module(name, link(obj, name), interface(IrInterface(program.declared)))
