"""`fprobe trace --native`: native handlers instead of printing calls, and the maps that they fill."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fprobe.cli.console import Console
from fprobe.cli.failure import Failure
from fprobe.handlers.native_file import NativeFileError, NativeHandlers, load_file

if TYPE_CHECKING:
    from fprobe.cli.matching import MatchedFunctions
    from fprobe.cli.program import ProgramCall
    from ftrace.core.handlers.kinds import BoundHandler
    from sandbox.native.native_image import NativeImage


def load(text: str) -> NativeHandlers:
    """The handlers that `FILE:ENTRY` or `FILE:ENTRY:EXIT` names; ENTRY may be empty.

    Raises Failure, which names what is missing or is not in the native language.
    """
    with _shown_errors(text.partition(":")[0]):
        return load_file(text)


def run(console: Console, match: MatchedFunctions, call: ProgramCall, handlers: NativeHandlers) -> None:
    """Run the program with the handlers attached, and print the maps. Raises Failure if the program failed."""
    from fprobe.cli import conclusion
    from fprobe.cli.interrupting import ctrl_c
    from fprobe.cli.matching import attached
    from fprobe.cli.running import run as run_program

    options = {"entry": handlers.entry, "exit": handlers.exit}
    _check(handlers)
    ctrl_c.hold_for_run()
    with console.alone(), attached(match, **options) as probe:
        outcome = run_program(call)
        probe.disable()
        show(console, handlers.maps)
        conclusion.summarise(console, call, outcome, match, probe)
        conclusion.conclude(outcome)


def show(console: Console, maps: dict[str, Any]) -> None:
    """Print the contents of maps; with --json, an object for each."""
    from ftrace.core.maps.listing import entries, map_lines
    from sandbox import symbol_table

    def describe(key: int) -> str:
        return symbol_table.describe(key) if symbol_table.locate(key) else str(key)

    for name, contents in maps.items():
        console.line(console.bold(f"{name}:"))
        for line in map_lines(contents, describe):
            console.line(line)
        console.object({"type": "map", "name": name, "entries": list(entries(contents))})


@contextmanager
def _shown_errors(path: str) -> Iterator[None]:
    """Turn exceptions of an executed file into a Failure."""
    with _compile_errors():
        try:
            yield
        except NativeFileError as error:
            raise Failure(str(error)) from None
        except SyntaxError:
            raise
        except Exception as error:
            raise Failure(f"{path}: {type(error).__name__}: {error}") from None


@contextmanager
def _compile_errors() -> Iterator[None]:
    """Turn errors of the native compiler into a Failure, with the source line and a caret."""
    from sandbox.native.front.errors import render

    try:
        yield
    except SyntaxError as error:
        raise Failure(render(error)) from None


def _check(handlers: NativeHandlers) -> None:
    """Compile the handlers. Raises Failure if they do not fit the probe."""
    for handler, is_exit in ((handlers.entry, False), (handlers.exit, True)):
        if handler is not None:
            _compiled(handler, is_exit)


def compile_handler(handler: Any) -> NativeImage:
    """The linked code of a handler, in the role that its result type implies. Raises Failure if it implies none."""
    from sandbox.native import void

    with _compile_errors():
        is_exit = handler.signature.result == void
    image: NativeImage = _compiled(handler, is_exit).keep
    return image


def _compiled(handler: Any, is_exit: bool) -> BoundHandler:
    from fprobe.handlers.roles import ENTRY, EXIT
    from ftrace.core.handlers.resolve import native

    with _compile_errors():
        try:
            return native(handler, EXIT if is_exit else ENTRY)
        except TypeError as error:
            raise Failure(str(error)) from None
