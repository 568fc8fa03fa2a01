"""C and C++ programs: compiled by the installed compiler to a shared object with patchable entries."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

from sandbox.compile.codegen import ProgramError
from sandbox.compile.exports import jumps, needed
from sandbox.compile.stubs import STUB_SIZE, Flavour
from sandbox.elf import tables
from sandbox.loading.linker import LinkError
from sandbox.loading.module import Module
from sandbox.loading.sharedobject import open_library, silence
from sandbox.symbols.dwarf import DwarfInterface

_COMPILERS = {"C": ("CC", ("cc", "gcc", "clang")), "C++": ("CXX", ("c++", "g++", "clang++"))}
# -Bsymbolic: else a function called like one of libc or of Python would be replaced by it.
_FLAGS = (
    "-g", "-O1", "-fPIC", "-shared", "-fno-inline", "-fno-optimize-sibling-calls", "-Wl,-Bsymbolic",
)  # fmt: skip

# gcc would keep values in registers that stubs use over the calls of functions which it knows not to use them. Patchable entries
# switch that off, but __attribute__((optimize("O2"))) on again, unless the command line says something.
_CONVENTION = "-fno-ipa-ra"
_ASKS_FOR_IPA_RA = re.compile(r"\boptimize\b[^;{}\n]*\"[^\"\n]*(?<!no-)ipa-ra\b")
_SPLIT = ("-gsplit-dwarf", "-gsplit-dwarf=split", "-gsplit-dwarf=single")
"""Options that put types into files beside the shared object. Nothing but this package reads it, so that they gain nothing."""
_LINKED, _LIBRARIES = ("-l", "-Wl,"), (".a", ".o", ".so")
"""Beginnings and ends of linker flags, which must follow the source: a library is searched for the symbols of files before it."""


def load_c(
    path: Path, name: str, flavour: Flavour, notrace: Collection[str] = (), cflags: Sequence[str] = ()
) -> Module:
    """Compile the C or C++ file at `path` and put it in place as module `name`, not yet introduced to anyone.

    Raises ProgramError if there is no compiler or the file does not compile, LinkError if it needs symbols that are
    not there, OSError if the file cannot be read.
    """
    path.stat()
    with contextlib.ExitStack() as stack:
        directory = _executable_directory(name)
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        output = Path(directory, f"{name}.so")
        compile_c(path, output, flavour, cflags)
        if exports := needed(name for _, name in tables.imports(tables.ElfFile(output.read_bytes()))):
            defined = Path(directory, f"exports{path.suffix}")
            defined.write_text(jumps(exports))
            compile_c(path, output, flavour, [*cflags, str(defined)])
        library = silence(output.read_bytes())
        output.write_bytes(library.data)
        keep = stack.pop_all()
    atexit.register(keep.close)

    def discard() -> None:
        atexit.unregister(keep.close)
        keep.close()

    try:
        image = open_library(library, output, name, notrace, discard)
    except Exception:
        discard()
        raise
    return Module(name, image, DwarfInterface(library.data))


def _executable_directory(name: str) -> str:
    """A new temporary directory for module `name`, on a file system whose files can be mapped executable.

    Raises LinkError, with the directories, if there is none.
    """
    given = tempfile.gettempdir()
    tried = dict.fromkeys((given, "/var/tmp", "/dev/shm", str(Path.home())))
    for directory in tried:
        with contextlib.suppress(OSError):
            if not os.statvfs(directory).f_flag & os.ST_NOEXEC:
                return tempfile.mkdtemp(prefix="fprobe-", dir=directory)
    raise LinkError(
        f"module {name!r} cannot be opened: {', '.join(tried)} are mounted noexec or cannot be written to; set TMPDIR to a "
        "directory where neither is so"
    )


def compile_c(path: Path, output: Path, flavour: Flavour, cflags: Sequence[str]) -> None:
    """Compile `path` to the shared object `output`. Raises ProgramError with the compiler's message."""
    _refuse_ipa_ra(path)
    entry = () if flavour is Flavour.NONE else (f"-fpatchable-function-entry={STUB_SIZE}",)
    language = "C" if path.suffix == ".c" else "C++"
    compiler = find_compiler(language, path)
    libraries = [word for word in cflags if word.startswith(_LINKED) or word.endswith(_LIBRARIES)]
    others = [word for word in cflags if word not in libraries]
    convention = _convention(tuple(compiler))
    command = [*compiler, *_FLAGS, *entry, *others, *convention, "-o", str(output), str(path), *libraries]
    command = [word for word in command if word not in _SPLIT]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        raise ProgramError(f"{path}: the {language} compiler {compiler[0]!r} cannot be run: {error.strerror}") from None
    if done.returncode:
        message = done.stderr.strip() or f"{compiler[0]} ended with status {done.returncode}"
        raise ProgramError(f"{path}: does not compile:\n{message}")


def _refuse_ipa_ra(path: Path) -> None:
    """Options cannot override a function's own attribute."""
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        if _ASKS_FOR_IPA_RA.search(line):
            raise ProgramError(
                f'{path}:{number}: optimize("ipa-ra") lets callers keep values in registers that stubs use: remove it'
            )


@functools.cache
def _convention(compiler: tuple[str, ...]) -> tuple[str, ...]:
    """The option that makes every call keep to the calling convention: gcc's; clang always does."""
    check = [*compiler, _CONVENTION, "-E", "-x", "c", os.devnull]
    try:
        done = subprocess.run(check, capture_output=True, check=False)
    except OSError:
        return ()
    return () if done.returncode else (_CONVENTION,)


def find_compiler(language: str, path: Path) -> list[str]:
    """The command of the compiler for `language` ('C' or 'C++'): from $CC or $CXX, else the first one that is installed.

    Raises ProgramError naming the compilers tried; `path` is the file to compile.
    """
    variable, names = _COMPILERS[language]
    if chosen := shlex.split(os.environ.get(variable, "")):
        return chosen
    for name in names:
        if found := shutil.which(name):
            return [found]
    raise ProgramError(
        f"{path}: no {language} compiler found: looked for {', '.join(names)}; set ${variable}, or install one"
    )
