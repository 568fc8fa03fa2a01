"""Compiling a unit to machine code, or taking its object from a cache.

LLVM's optimiser is prevented from inserting calls.

A unit of these packages depends only on their files, the inputs of its assembly, Python and llvmlite. The metadata of the files
(length, times of change) represents their contents: for each unit, the cache has its last fingerprint and the metadata of then.
Reading the metadata of all files takes half a millisecond, reading the relevant files ten.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import sandbox
from sandbox.native.back.module import TRIPLE
from sandbox.native.unit import Unit
from sandbox.process.digests import sha256
from sandbox.process.packages import package_file

_ROOT = os.path.dirname(os.path.dirname(sandbox.__file__))  # noqa: PTH120 (hot enough)
_OURS = tuple(f"{_ROOT}{os.sep}{name}{os.sep}" for name in ("sandbox", "ftrace", "kprobes", "fprobe"))
_MARGIN = 1_000_000_000
"""Nanoseconds: the clock of file times may lag by this much."""


compilations = [0]
"""How often LLVM has compiled anything of ours in this process."""


def compile_unit(unit: Unit, opt: int = 2, cache: ObjectCache | None = None) -> bytes:
    """The object file of *unit* (ELF, small code model, position independent), optimised at level *opt* (0-3).

    With a *cache*, an object in it is used, and nothing is parsed or checked. Raises NativeError if a function is not in
    the language.
    """
    if cache is None:
        return compile_ir(_ir(unit), opt)
    key = cached_fingerprint(unit, opt, cache)
    data = cache.get(key)
    if data is None:
        data = compile_ir(_ir(unit), opt)
        cache.put(key, data)
    return data


def unit_ir(unit: Unit, cache: ObjectCache) -> str:
    """*unit* as LLVM IR text, from the cache if it is there; then nothing is parsed or checked. Raises NativeError."""
    key = cached_fingerprint(unit, "ir", cache)
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

    compilations[0] += 1
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

    from sandbox.compile.codegen import run_passes

    options = binding.create_pipeline_tuning_options(speed_level=opt)
    options.loop_vectorization = options.slp_vectorization = False
    options.loop_interleaving = options.loop_unrolling = False
    builder = binding.create_pass_builder(machine, options)
    run_passes(builder.getModulePassManager(), module, builder)


class ObjectCache(Protocol):
    """The cache of compiled objects that processes share."""

    def get(self, key: str) -> bytes | None:
        """The data stored under *key*; None if there is none."""

    def put(self, key: str, data: bytes) -> None:
        """Keeps *data* under *key*."""


def cached_fingerprint(unit: Unit, form: int | str, cache: ObjectCache) -> str:
    """`fingerprint.fingerprint(unit, form)`, from the cache if it can be known without reading anything."""
    state = state_of_files().settled if _is_ours(unit) else ""
    if not state:
        return _read(unit, form)
    names = [f"{function.filename}:{function.name}" for function in unit.functions]
    key = _digest((_OURS, sys.version_info[:2], names, unit.options, unit.assembly, unit.llvm, form))
    found = (cache.get(key) or b"").decode()
    if not found.startswith(state):
        found = state + _read(unit, form)
        cache.put(key, found.encode())
    return found[len(state) :]


def _digest(parts: object) -> str:
    return sha256(repr(parts).encode()).hexdigest()


def _read(unit: Unit, form: int | str) -> str:
    from sandbox.native.back import fingerprint

    return fingerprint.fingerprint(unit, form)


def _is_ours(unit: Unit) -> bool:
    """Whether all its functions are in our modules, and so everything that they refer to."""
    return all(
        function.filename.startswith(_OURS) and not function.implied and "<" not in function.__wrapped__.__qualname__
        for function in unit.functions
    )


class StateOfFiles(NamedTuple):
    """Of our files and the version of llvmlite, as a key. `settled`: the same; '' if one may have changed since it was loaded."""

    key: str
    settled: str


def state_of_files() -> StateOfFiles:
    """The present state; both are '' if the files cannot be read."""
    try:
        files = sorted(_files())
    except OSError:
        return StateOfFiles("", "")
    newest, key = max(max(times) for _, _, *times in files), _digest(files)
    return StateOfFiles(key, key if newest < sandbox.IMPORTED - _MARGIN else "")


def _files() -> Iterator[tuple[str, int, int, int]]:
    """Path, size in bytes, and the times at which contents and status were changed, in nanoseconds."""
    llvmlite = package_file("llvmlite")
    if llvmlite:
        version = llvmlite.with_name("_version.py")
        yield _state(str(version), version.stat())
    waiting = [*_OURS]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.name.endswith(".py"):
                    yield _state(entry.path, entry.stat())
                elif entry.is_dir() and entry.name != "__pycache__":
                    waiting.append(entry.path)


def _state(path: str, status: os.stat_result) -> tuple[str, int, int, int]:
    return path, status.st_size, status.st_mtime_ns, status.st_ctime_ns
