"""The child process of a compilation: compile a program, and try to link it."""

from __future__ import annotations

import json
import sys

from sandbox.compile.objectfile import prepare
from sandbox.compile.program import REFUSED, CompiledProgram, Options, compile_here
from sandbox.compile.stubs import Flavour
from sandbox.loading.linker import try_to_link
from sandbox.process.parent import end_with


def main() -> None:
    """The source is read from standard input, the compiled program written to standard output."""
    given = json.loads(sys.argv[1])
    end_with(given.pop("parent"))
    data = sys.stdin.buffer.read()
    try:
        made = _compile(data, **given)
    except ValueError as error:
        sys.stderr.buffer.write(str(error).encode("utf-8", "surrogateescape"))
        sys.exit(REFUSED)
    sys.stdout.buffer.write(made.to_bytes())


def _compile(data: bytes, origin: str, is_text: bool, flavour: str, opt: int, notrace: list[str]) -> CompiledProgram:
    source = data.decode("utf-8", "surrogateescape") if is_text else data
    made = compile_here(source, origin, Options(Flavour.of(flavour), opt, notrace))
    try:
        obj = prepare(made.object)
    except ValueError:
        return made  # errors in stubs are reported by the loader
    try_to_link(obj, origin)
    return made
