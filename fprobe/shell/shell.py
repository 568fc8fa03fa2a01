"""A small shell over the files of a tree: lists, pipes, redirections, `exec`, quoting and globs."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fprobe.shell.files import Files, TemporaryFile
from ftrace.tracefs.nodes import Handle

_TOKEN = re.compile(
    r"""[^\S\n]*(?:(?P<redirection>\d*(?:<>|>>|>&|<&|>|<))|(?P<operator>&&|\|\||;|\||\n)|"""
    r"""(?P<word>(?:\\.|'[^']*'|"(?:\\.|[^"\\])*"|[^\s;|&<>'"\\])+))""",
    re.DOTALL,
)
_PART = re.compile(r"""\\(.)|'([^']*)'|"((?:\\.|[^"\\])*)"|([^'"\\]+)""", re.DOTALL)


Descriptors = dict[int, Any]
"""A command's open handles and sinks, by descriptor number; None: empty input."""
Run = Callable[["Shell", list[str], Descriptors], int]
"""run(shell, words, descriptors): runs a simple command and returns its exit status. Raises UnsupportedError."""


class UnsupportedError(Exception):
    """A command or syntax that this shell does not support."""


@dataclass
class Redirection:
    """A redirection: `[FD]OPERATOR TARGET`."""

    fd: int
    operator: str
    target: str


@dataclass
class Command:
    """A simple command: words and redirections."""

    words: list[str] = field(default_factory=list)
    redirections: list[Redirection] = field(default_factory=list)


class Sink:
    """Collects what is written to standard output or error."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> int:
        """Append the data, and return its length."""
        self.data += data
        return len(data)


def tokens(text: str) -> list[tuple[str, str]]:
    """Kind and text of each token. Raises UnsupportedError for text that is no token."""
    found, at = [], 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.end() == at:
            raise UnsupportedError(text[at:])
        found.append((str(match.lastgroup), match[str(match.lastgroup)]))
        at = match.end()
    return found


def unquoted(word: str) -> tuple[str, bool]:
    """The word without its quotes, and whether it had any."""
    text, quoted = "", False
    for escaped, single, double, plain in _PART.findall(word):
        quoted = quoted or not plain
        text += escaped or single or plain or re.sub(r'\\(["\\$`])', r"\1", double)
    return text, quoted


class Shell:
    """Runs scripts, as `sh -c`. `run_program`: runs a simple command (fprobe.shell.commands)."""

    def __init__(self, files: Files, run_program: Run) -> None:
        self.files = files
        self._run_program = run_program
        self.status = 0
        self._held: list[Handle] = []
        """The handles that `exec` has opened."""

    def run(self, text: str, stdout: Any, stderr: Any) -> int:
        """Run a script and return its exit status. Closes the handles that it leaves open. Raises UnsupportedError."""
        try:
            return self._run(text, {0: None, 1: stdout, 2: stderr})
        finally:
            self._hold([], {})

    def _run(self, text: str, fds: Descriptors) -> int:
        pipeline: list[Command] = [Command()]
        condition = ";"
        for kind, token in [*tokens(text), ("operator", ";")]:
            if kind == "operator" and token == "|":
                pipeline.append(Command())
            elif kind == "operator":
                if pipeline != [Command()] and self._wanted(condition):
                    self.status = self._run_pipeline(pipeline, fds)
                pipeline, condition = [Command()], token
            else:
                self._add(pipeline[-1], kind, token)
        return self.status

    def _wanted(self, condition: str) -> bool:
        return condition in (";", "\n") or (condition == "&&") == (self.status == 0)

    def _add(self, command: Command, kind: str, token: str) -> None:
        pending = command.redirections and not command.redirections[-1].target
        if kind == "redirection":
            operator = token.lstrip("0123456789")
            number = token[: len(token) - len(operator)]
            command.redirections.append(Redirection(int(number or ("<" not in operator)), operator, ""))
        elif pending:
            command.redirections[-1].target = unquoted(token)[0]
        else:
            word, quoted = unquoted(token)
            command.words += [word] if quoted else self.files.expand(word.replace("$?", str(self.status)))

    def _run_pipeline(self, commands: list[Command], fds: Descriptors) -> int:
        stdin, status = fds[0], 0
        for index, command in enumerate(commands):
            own = dict(fds)
            own[0] = stdin
            if index < len(commands) - 1:
                own[1] = Sink()
            status = self._run_command(command, own, fds)
            if index < len(commands) - 1:
                stdin = _reader(own[1])
        return status

    def _run_command(self, command: Command, own: Descriptors, shell_fds: Descriptors) -> int:
        opened: list[Handle] = []
        for redirection in command.redirections:
            try:
                own[redirection.fd] = self._target(redirection, own, opened)
            except OSError as failed:
                own[2].write(_refusal(redirection, failed).encode())
                _close(opened)
                return 1
        if command.words[:1] == ["exec"] and len(command.words) == 1:
            shell_fds.update({number: own[number] for number in own if number not in (0,) or command.redirections})
            self._hold(opened, shell_fds)
            return 0
        try:
            return self._run_program(self, command.words or [":"], own)
        finally:
            _close(opened)

    def _hold(self, opened: list[Handle], fds: Descriptors) -> None:
        """Keep the handles of `exec` that a descriptor still refers to, and close the others."""
        there = [*self._held, *opened]
        self._held = [handle for handle in there if any(handle is each for each in fds.values())]
        _close([handle for handle in there if handle not in self._held])

    def _target(self, redirection: Redirection, own: Descriptors, opened: list[Handle]) -> Any:
        operator, target = redirection.operator, redirection.target
        if operator.endswith("&"):
            return None if target == "-" else own[int(target)]
        flags = {
            ">": os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
            ">>": os.O_WRONLY | os.O_CREAT | os.O_APPEND,
            "<": os.O_RDONLY,
            "<>": os.O_RDWR | os.O_CREAT,
        }[operator]
        handle = self.files.open(target, flags)
        opened.append(handle)
        return handle


def _refusal(redirection: Redirection, failed: OSError) -> str:
    """The error message for a file that cannot be opened."""
    reads = redirection.operator.lstrip("0123456789") == "<"
    reason = "no such file" if reads and failed.errno == errno.ENOENT else os.strerror(failed.errno or 0)
    return f"sh: can't {'open' if reads else 'create'} {redirection.target}: {reason}\n"


def _close(handles: list[Handle]) -> None:
    for handle in handles:
        handle.close()


def _reader(sink: Any) -> Handle:
    file = TemporaryFile()
    file.content = sink.data
    return file.open(os.O_RDONLY)
