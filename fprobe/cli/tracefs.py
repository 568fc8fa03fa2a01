"""The verbs for the tracefs tree: `fprobe tracefs` reads and writes its files, `fprobe events` lists its events."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from fprobe.cli.console import Console
from fprobe.cli.failure import BAD_INPUT, FAILED, Failure
from fprobe.cli.options import ProgramTarget, definition_option, output_options, program_options

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fprobe.export.formats import EventFormat, FieldFormat
    from sandbox.loading.module import Module


_TRACEFS_EPILOG = """\b
Examples:
  fprobe tracefs ls events
  fprobe tracefs cat events/header_page
  fprobe tracefs grep vfs_ available_filter_functions
  fprobe tracefs write kprobe_events 'p:reads vfs_read count=%dx'
  fprobe tracefs sh -c 'echo p:reads vfs_read > kprobe_events;
      echo 1 > events/kprobes/enable; call demo_main 1; cat trace'
  fprobe tracefs --program prog.ll sh setup.sh
  fprobe tracefs sh

COMMAND is one of:
  cat FILE...           show files
  ls [DIR]...           list directories
  grep [-civnE] PATTERN FILE...  show lines that match a regular expression
  write FILE TEXT       append a text, with an explanation if it is refused
  sh [-c TEXT | FILE] [ARG...]   run /bin/sh with the files mounted, in a namespace of its own; there, the command
                        `call FUNC ARG...` calls a function of the program. It needs /dev/fuse
"""
_UNKNOWN = 127
_NO_MATCH = 1
_PATIENCE = 0.3
"""Seconds that a shell has to end after a signal."""
_CALL = """#!/bin/sh
printf '%s\\n' "$*" > '{place}/fprobe/call' 2>/dev/null
status=$?
cat '{place}/fprobe/call' >&2
exit $status
"""
"""The command `call` of the shell."""


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

    command, *arguments = words
    if command == "sh":
        _run_shell(arguments, target)
    if command not in _COMMANDS:
        raise Failure(f"no command {command!r}; there are: {', '.join([*_COMMANDS, 'sh'])}", _UNKNOWN)
    program.load(target)
    status = _COMMANDS[command](arguments)
    if status:
        sys.exit(status)


# -- the shell --------------------------------------------------------------------------------------------------------


def _run_shell(words: Sequence[str], target: ProgramTarget) -> NoReturn:
    """Run /bin/sh on the mounted tree, and end with its exit status."""
    import tempfile

    from fprobe.cli import program
    from fprobe.cli.interrupting import INTERRUPTED, end_interrupted, end_process
    from fprobe.mount import private

    if list(words) == ["-c"]:
        raise Failure("sh -c takes one text, not 0; put the commands into quotes")
    if words and not words[0].startswith("-") and not Path(words[0]).is_file():
        raise Failure(f"{words[0]}: No such file or directory")
    try:
        private.enter()
    except OSError as missing:
        others = "; `fprobe tracefs cat`, ls, grep and write need nothing"
        raise Failure(f"fprobe tracefs sh mounts the files for /bin/sh: {missing.strerror}{others}") from None
    arguments = [str(Path(words[0]).resolve()), *words[1:]] if words and not words[0].startswith("-") else list(words)
    module = program.load(target)
    with tempfile.TemporaryDirectory(prefix="fprobe-") as programs:
        status = _in_namespace(arguments, module, target, Path(programs))
    if status == INTERRUPTED:
        end_interrupted()
    end_process(status)


def _in_namespace(words: Sequence[str], module: Module, target: ProgramTarget, programs: Path) -> int:
    import contextlib
    import os
    import signal
    import subprocess

    from fprobe.cli.interrupting import INTERRUPTED, Interrupted
    from fprobe.mount import beside, private
    from fprobe.mount.call_file import CallFile
    from fprobe.tracefs import tracefs

    beside.add_to(tracefs)["call"] = CallFile(lambda text: _prepared(module, target, text))
    with private.mounted(tracefs) as place:
        (programs / "call").write_text(_CALL.format(place=place))
        (programs / "call").chmod(0o755)
        environment = os.environ | {"PATH": f"{programs}:{os.environ.get('PATH', os.defpath)}"}
        if not words and sys.stdin.isatty():
            signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is the shell's
        child = None
        try:
            child = subprocess.Popen(["/bin/sh", *words], cwd=place, env=environment)
            status = child.wait()
        except Interrupted:
            for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):  # between two commands sh misses one
                private.signal_others(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    _ = child and child.wait(_PATIENCE)
            return INTERRUPTED
    return status if status >= 0 else 128 - status


def _prepared(module: Module, target: ProgramTarget, text: str) -> Callable[[], Any]:
    from fprobe.cli.program import prepare_call

    return prepare_call(module, text.split(), target)


# -- single commands --------------------------------------------------------------------------------------------------


def _each(paths: Sequence[str], action: Callable[[str], None]) -> int:
    """Call `action` with each path; 1 if one failed, which is said, else 0."""
    status = 0
    for path in paths:
        try:
            action(path)
        except OSError as failed:
            click.echo(f"fprobe: {path}: {failed.strerror}", err=True)
            status = FAILED
    return status


def _content(path: str) -> bytes:
    """A file's content; of a stream, what is there now. Raises OSError."""
    import os

    from fprobe.tracefs import tracefs

    with tracefs.open(path, os.O_RDONLY | os.O_NONBLOCK) as handle:
        try:
            return handle.read()
        except BlockingIOError:
            return b""


def _out(data: bytes) -> None:
    from sandbox.process.writing import DISK_FULL

    try:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise Failure(str(error.strerror), FAILED) from None


def _cat(words: Sequence[str]) -> int:
    if not words:
        raise Failure("cat takes files, such as `fprobe tracefs cat trace`, not none")
    return _each(words, lambda path: _out(_content(path)))


def _ls(words: Sequence[str]) -> int:
    from fprobe.tracefs import tracefs

    def show(path: str) -> None:
        node = tracefs.is_directory(path)
        names = tracefs.listdir(path) if node else [path] * bool(tracefs.find(path))
        heading = f"{path}:\n" if len(words) > 1 and node else ""
        _out((heading + "".join(f"{name}\n" for name in names)).encode("utf-8", "surrogateescape"))

    return _each(words or [""], show)


def _grep(words: Sequence[str]) -> int:
    import re

    options = {letter for word in words if word.startswith("-") for letter in word[1:]}
    pattern, *paths = [word for word in words if not word.startswith("-")] or [""]
    if options - set("civnE") or not paths:
        raise Failure("grep takes [-c] [-i] [-v] [-n] [-E] PATTERN FILE...; PATTERN is a regular expression")
    try:
        wanted = re.compile(pattern, re.IGNORECASE if "i" in options else 0)
    except re.error as wrong:
        raise Failure(f"the pattern is {pattern!r}: {wrong}") from None
    count = 0

    def show(path: str) -> None:
        nonlocal count
        lines = _content(path).decode("utf-8", "surrogateescape").splitlines()
        found = [(at, line) for at, line in enumerate(lines, 1) if bool(wanted.search(line)) != ("v" in options)]
        count += len(found)
        front = f"{path}:" if len(paths) > 1 else ""
        shown = [f"{front}{f'{at}:' if 'n' in options else ''}{line}\n" for at, line in found]
        text = f"{front}{len(found)}\n" if "c" in options else "".join(shown)
        _out(text.encode("utf-8", "surrogateescape"))

    failed = _each(paths, show)
    return (failed and BAD_INPUT) or (0 if count else _NO_MATCH)


def _write(words: Sequence[str]) -> int:
    """Like `echo TEXT >> FILE`, with the message of error_log if the text is refused."""
    from fprobe.recorded_events import explained
    from fprobe.tracefs import tracefs

    if len(words) != 2:
        raise Failure(f"write takes 2 words, a file and a text, not {len(words)}; put the text into quotes")
    path, text = words
    return _each([path], lambda _: explained(lambda: tracefs.write(path, f"{text}\n", append=True), text))


_COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {"cat": _cat, "ls": _ls, "grep": _grep, "write": _write}


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
