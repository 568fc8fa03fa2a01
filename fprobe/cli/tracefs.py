"""The verbs for the tracefs tree: `fprobe tracefs` reads and writes its files, `fprobe events` lists its events."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fprobe.cli.console import Console
from fprobe.cli.failure import FAILED, Failure
from fprobe.cli.options import ProgramTarget, definition_option, output_options, program_options

if TYPE_CHECKING:
    from fprobe.export.formats import EventFormat, FieldFormat
    from fprobe.shell.shell import Descriptors, Shell
    from sandbox.loading.module import Module


_TRACEFS_EPILOG = """\b
Examples:
  fprobe tracefs ls events
  fprobe tracefs cat events/header_page
  fprobe tracefs write kprobe_events 'p:reads vfs_read count=%dx'
  fprobe tracefs sh -c 'echo p:reads vfs_read > kprobe_events; echo 1 > events/kprobes/enable; call demo_main 1; cat trace'
  fprobe tracefs --program prog.ll sh setup.sh
  fprobe tracefs sh

COMMAND is one of cat, echo, ls, find, grep, sed, head and others; `call FUNC ARG...` calls a function of the program;
`write FILE TEXT` appends to a file; `sh [-c TEXT | FILE] [ARG...]` runs several commands, by default from standard input.
"""
_PROMPT = "tracefs$ "
_MORE = "> "
_UNKNOWN = 127


class _Input:
    """Standard input, for the shell."""

    def read(self, size: int = -1) -> bytes:
        """Read at most `size` bytes; all if negative."""
        return sys.stdin.buffer.read(size)

    def line(self) -> str:
        """Read a line; '' at the end."""
        return sys.stdin.buffer.readline().decode("utf-8", "surrogateescape")


class _Output:
    """Standard output or error, for the shell."""

    def __init__(self, descriptor: Any) -> None:
        self._file = descriptor

    def write(self, data: bytes) -> int:
        """Write all."""
        self._file.buffer.write(data)
        self._file.flush()
        return len(data)


@click.command(
    "tracefs",
    epilog=_TRACEFS_EPILOG,
    short_help="Read and write the files of tracefs.",
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True},
)
@click.argument("words", metavar="COMMAND [ARG]...", nargs=-1, required=True, type=click.UNPROCESSED)
@program_options
@output_options
def tracefs_command(words: tuple[str, ...], target: ProgramTarget, console: Console) -> None:
    """Run COMMAND on the tracefs of a process that has loaded the program. Exit code: that of COMMAND."""
    from fprobe.cli import program
    from fprobe.cli.interrupting import Interrupted, end_interrupted
    from fprobe.shell.commands import Commands, UnknownCommandError
    from fprobe.shell.files import Files
    from fprobe.shell.shell import IncompleteError, Shell, UnsupportedError
    from fprobe.tracefs import tracefs

    module = program.load(target)
    commands = Commands({"call": lambda _shell, given, fds: _call(module, target, given, fds), "write": _write})
    shell = Shell(Files(tracefs), commands.run)
    output, errors = _Output(sys.stdout), _Output(sys.stderr)
    try:
        if words[0] == "sh":
            status = _run_script(shell, words[1:], output, errors)
        else:
            status = commands.run(shell, list(words), {0: _Input(), 1: output, 2: errors})
    except Interrupted:
        if shell.has_running_jobs:
            end_interrupted()
        raise
    except UnknownCommandError as unknown:
        raise Failure(f"no command {str(unknown)!r}; there are: {', '.join(commands.names)}", _UNKNOWN) from None
    except IncompleteError as missing:
        raise Failure(f"the script ends before it is complete; missing: {missing}") from None
    except UnsupportedError as wrong:
        raise Failure(f"syntax that this shell does not know, at {str(wrong)!r}") from None
    if status:
        sys.exit(status)


def _run_script(shell: Shell, words: tuple[str, ...], output: _Output, errors: _Output) -> int:
    """Run `sh` with these arguments; its exit status."""
    if words[:1] == ("-c",):
        if len(words) < 2:
            raise Failure("sh -c takes one text, not 0; put the commands into quotes")
        shell.name, shell.arguments = words[2] if len(words) > 2 else "sh", list(words[3:])
        return shell.run(words[1], output, errors, _Input())
    if words:
        shell.name, shell.arguments = words[0], list(words[1:])
        try:
            return shell.run(Path(words[0]).read_text("utf-8", "surrogateescape"), output, errors, _Input())
        except OSError as failed:
            raise Failure(f"{words[0]}: {failed.strerror}") from None
    return _read_commands(shell, output, errors)


def _read_commands(shell: Shell, output: _Output, errors: _Output) -> int:
    """Run the lines of standard input. On a terminal there is a prompt, and an unknown command does not end the shell."""
    fds: Descriptors = {0: _Input(), 1: output, 2: errors}
    try:
        while not shell.has_exited and (text := _command(output)):
            _run_command(shell, text, fds)
        return shell.status
    finally:
        shell.end(fds)


def _command(output: _Output) -> str:
    """The next lines of standard input that are a complete command; '' at the end. Raises IncompleteError."""
    from fprobe.shell.grammar import IncompleteError, UnsupportedError, parse_script

    text = ""
    while True:
        if sys.stdin.isatty():
            output.write((_MORE if text else _PROMPT).encode())
        line = _Input().line()
        text += line
        try:
            parse_script(text)
        except IncompleteError:
            if not line:
                raise
            continue
        except UnsupportedError:
            pass
        return text


def _run_command(shell: Shell, text: str, fds: Descriptors) -> None:
    """Run a command that was read. Raises UnsupportedError if it is unknown and there is no terminal."""
    from fprobe.shell.grammar import UnsupportedError, parse_script

    try:
        shell.run_part(parse_script(text), fds)
    except UnsupportedError as unknown:
        if not sys.stdin.isatty():
            raise
        fds[2].write(f"sh: {unknown}: not found\n".encode())


def _write(shell: Shell, words: list[str], fds: Descriptors) -> int:
    """`write FILE TEXT`: like `echo TEXT >> FILE`, with the message of error_log if the text is refused."""
    from fprobe.recorded_events import explained
    from fprobe.tracefs import tracefs

    if len(words) != 2:
        raise Failure(f"write takes 2 words, a file and a text, not {len(words)}; put the text into quotes")
    path, text = words
    try:
        explained(lambda: tracefs.write(shell.files.in_tree(path), f"{text}\n", append=True), text)
    except OSError as failed:
        fds[2].write(f"fprobe: {path}: {failed.strerror}\n".encode())
        return FAILED
    return 0


def _call(module: Module, target: ProgramTarget, words: list[str], fds: Descriptors) -> int:
    """`call FUNC ARG...`: call a function of the program, in this thread."""
    import threading
    from contextlib import nullcontext

    from fprobe.cli.interrupting import ending_native_code
    from fprobe.cli.program import prepare_call

    call = prepare_call(module, words or None, target)
    is_main = threading.current_thread() is threading.main_thread()
    with ending_native_code() if is_main else nullcontext():
        result = call()
    fds[2].write(f"{call} = {result}\n".encode())
    return 0


_EVENTS_EPILOG = """\b
Examples:
  fprobe events
  fprobe events -e 'p:reads vfs_read file->f_mode $arg*' -v
  fprobe events --json
"""


@click.command("events", epilog=_EVENTS_EPILOG, short_help="List events and their fields.")
@definition_option(required=False)
@program_options
@output_options
def events_command(definitions: tuple[str, ...], target: ProgramTarget, console: Console) -> None:
    """List the events of tracefs with their fields. Events of DEFINITION and of FPROBE_EVENTS are defined first.

    -v shows their `format` files.
    """
    from contextlib import ExitStack

    from fprobe.cli import program
    from fprobe.cli.options import attached

    program.load(target)
    with ExitStack() as stack:
        if definitions:
            stack.enter_context(attached(definitions, None))
        found = list(_events())
        for event, text in found:
            console.line(f"{event.group}:{event.name}  {', '.join(map(_field, event.fields))}")
            if console.verbosity > 0:
                console.line(console.dim(text))
        console.document([_object(event) for event, _ in found])


def _events() -> Any:
    """Each event, with the text of its format file."""
    from fprobe.export.formats import parse_format
    from fprobe.tracefs import tracefs

    for group in tracefs.listdir("events"):
        for name in tracefs.listdir(f"events/{group}") if tracefs.is_directory(f"events/{group}") else ():
            path = f"events/{group}/{name}"
            if tracefs.is_directory(path):
                text = tracefs.read(f"{path}/format")
                yield parse_format(group, text), text


def _field(field: FieldFormat) -> str:
    number = (
        str(field.count) if field.count > 0 else str(field.size // field.element) if field.count and field.size else ""
    )
    return f"{field.type} {field.name}" + (f"[{number}]" if field.count else "")


def _object(event: EventFormat) -> dict[str, Any]:
    fields = [
        {"name": field.name, "type": field.type, "offset": field.offset, "size": field.size} for field in event.fields
    ]
    return {"group": event.group, "name": event.name, "id": event.id, "fields": fields}
