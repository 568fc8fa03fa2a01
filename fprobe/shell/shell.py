"""A small shell over the files of a tree: lists, pipes, redirections, `exec`, loops, `if`, variables, quoting and globs."""

from __future__ import annotations

import ast
import errno
import operator
import os
import re
from collections.abc import Callable
from typing import Any

from fprobe.shell.files import Files, TemporaryFile
from fprobe.shell.grammar import (
    SUBSTITUTION,
    Command,
    For,
    Group,
    If,
    IncompleteError,
    Script,
    Simple,
    UnsupportedError,
    While,
    parse_script,
)
from ftrace.tracefs.nodes import Handle

__all__ = ["Descriptors", "IncompleteError", "Run", "Shell", "Sink", "UnsupportedError"]

_PART = re.compile(
    rf"""\\(?P<escaped>.)|'(?P<single>[^']*)'|"(?P<double>(?:{SUBSTITUTION}|\\.|[^"\\])*)"|"""
    rf"""(?P<parameter>{SUBSTITUTION}|\$\w+|\$\?)|(?P<plain>[^'"\\$`]+|.)""",
    re.DOTALL,
)
_IN_DOUBLE = re.compile(rf"""\\(?P<escaped>["\\$`])|(?P<parameter>{SUBSTITUTION}|\$\w+|\$\?)""", re.DOTALL)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_NAME = re.compile(r"(?<!\w)[A-Za-z_]\w*")
_ARITHMETIC: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv,
    ast.Mod: operator.mod, ast.USub: operator.neg,
}  # fmt: skip


Descriptors = dict[int, Any]
"""A command's open handles and sinks, by descriptor number; None: empty input."""
Run = Callable[["Shell", list[str], Descriptors], int]
"""run(shell, words, descriptors): runs a simple command and returns its exit status. Raises UnsupportedError."""


class Sink:
    """Collects what is written to standard output or error."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> int:
        """Append the data, and return its length."""
        self.data += data
        return len(data)


class _Exit(Exception):
    """`exit` has ended the script."""


class Shell:
    """Runs scripts, as `sh -c`. `run_program`: runs a simple command (fprobe.shell.commands).

    A name after `$` that is not set stands for itself, so that `$retval` needs no quotes.
    """

    def __init__(self, files: Files, run_program: Run) -> None:
        self.files = files
        self._run_program = run_program
        self.status = 0
        self.variables: dict[str, str] = {}
        self._held: list[Handle] = []
        """The handles that `exec` has opened."""
        self._errors: Any = Sink()

    def run(self, text: str, stdout: Any, stderr: Any) -> int:
        """Run a script and return its exit status. Closes the handles that it leaves open.

        Raises UnsupportedError, before it runs any of a script with unsupported syntax.
        """
        self._errors = stderr
        try:
            self._run(parse_script(text), {0: None, 1: stdout, 2: stderr})
        except _Exit:
            pass
        finally:
            self._hold([], {})
        return self.status

    def _run(self, script: Script, fds: Descriptors) -> int:
        for condition, pipeline in script:
            if condition == ";" or (condition == "&&") == (self.status == 0):
                self.status = self._run_pipeline(pipeline, fds)
        return self.status

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
        words = self._words(command)
        for redirection in command.redirections:
            target = "".join(self.expand(redirection.target))
            try:
                own[redirection.fd] = self._target(redirection.operator, target, own, opened)
            except OSError as failed:
                own[2].write(_refusal(redirection.operator, target, failed).encode())
                _close(opened)
                return 1
        if words == ["exec"]:
            shell_fds.update({number: own[number] for number in own if number not in (0,) or command.redirections})
            self._hold(opened, shell_fds)
            return 0
        try:
            return self._execute(command, words, own)
        finally:
            _close(opened)

    def _words(self, command: Command) -> list[str]:
        """A simple command's words, expanded. Assignments before them are made, and left out."""
        words = command.words if isinstance(command, Simple) else []
        while words and (assignment := _ASSIGNMENT.fullmatch(words[0])):
            self.variables[assignment[1]] = " ".join(self.expand(assignment[2]))
            words = words[1:]
        return [field for word in words for field in self.expand(word)]

    def _execute(self, command: Command, words: list[str], fds: Descriptors) -> int:
        match command:
            case Group(body):
                return self._run(body, fds)
            case For(name, values, body):
                return self._run_for(name, [field for word in values for field in self.expand(word)], body, fds)
            case While(condition, body, until):
                return self._run_while(condition, body, until, fds)
            case If(branches, otherwise):
                chosen = next((body for condition, body in branches if self._run(condition, fds) == 0), otherwise)
                self.status = 0
                return self._run(chosen, fds)
        if words[:1] == ["read"]:
            return self._read(words[1:], fds)
        if words[:1] == ["exit"]:
            self.status = int(words[1]) if len(words) > 1 else self.status
            raise _Exit
        return self._run_program(self, words or [":"], fds)

    def _run_for(self, name: str, values: list[str], body: Script, fds: Descriptors) -> int:
        self.status = 0
        for value in values:
            self.variables[name] = value
            self._run(body, fds)
        return self.status

    def _run_while(self, condition: Script, body: Script, until: bool, fds: Descriptors) -> int:
        status = 0
        while (self._run(condition, fds) == 0) != until:
            status = self._run(body, fds)
        return status

    def _read(self, names: list[str], fds: Descriptors) -> int:
        """`read NAME...`: a line of standard input; fails at its end."""
        line = b""
        while fds[0] is not None and (letter := fds[0].read(1)):
            line += letter
            if letter == b"\n":
                break
        names = [name for name in names if not name.startswith("-")]
        values = line.decode("utf-8", "surrogateescape").strip().split(None, max(len(names) - 1, 0))
        self.variables.update(zip(names, [*values, *[""] * len(names)], strict=False))
        return int(not line.endswith(b"\n"))

    # -- expansion ------------------------------------------------------------------------------------------------

    def expand(self, word: str) -> list[str]:
        """The fields that a word stands for: without quotes, with the values of its parameters, and globs as paths."""
        fields, quoted = [""], False
        for part in _PART.finditer(word):
            text = part[str(part.lastgroup)]
            if part.lastgroup == "parameter":
                first, *rest = self._value(text).split() or [""]
                fields[-1] += first
                fields += rest
                continue
            quoted = quoted or part.lastgroup != "plain"
            fields[-1] += _IN_DOUBLE.sub(self._in_double, text) if part.lastgroup == "double" else text
        if quoted:
            return fields
        return [path for each in fields if each for path in self.files.expand(each)]

    def _in_double(self, part: re.Match[str]) -> str:
        return part["escaped"] or self._value(part["parameter"])

    def _value(self, parameter: str) -> str:
        """The value of a parameter, an expression or commands; the text itself for a name that is not set."""
        if parameter == "$?":
            return str(self.status)
        if parameter.startswith("$(("):
            return str(self._number(parameter[3:-2]))
        if parameter.startswith(("$(", "`")):
            output = Sink()
            script = parse_script(parameter[1:-1].removeprefix("("))
            self.status = self._run(script, {0: None, 1: output, 2: self._errors})
            return output.data.decode("utf-8", "surrogateescape").rstrip("\n")
        return self.variables.get(parameter.strip("${}"), parameter)

    def _number(self, text: str) -> int:
        """The value of an arithmetic expression. Raises UnsupportedError."""
        known = _NAME.sub(lambda name: self.variables.get(name[0], "0") or "0", text.replace("$", ""))
        try:
            return _evaluated(ast.parse(known.strip(), mode="eval").body)
        except (SyntaxError, ArithmeticError, KeyError) as wrong:
            raise UnsupportedError(text) from wrong

    # -- redirections ---------------------------------------------------------------------------------------------

    def _hold(self, opened: list[Handle], fds: Descriptors) -> None:
        """Keep the handles of `exec` that a descriptor still refers to, and close the others."""
        there = [*self._held, *opened]
        self._held = [handle for handle in there if any(handle is each for each in fds.values())]
        _close([handle for handle in there if handle not in self._held])

    def _target(self, operator: str, target: str, own: Descriptors, opened: list[Handle]) -> Any:
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


def _evaluated(node: ast.expr) -> int:
    match node:
        case ast.Constant(int(value)):
            return int(value)
        case ast.BinOp(left, operation, right):
            return int(_ARITHMETIC[type(operation)](_evaluated(left), _evaluated(right)))
        case ast.UnaryOp(operation, operand):
            return int(_ARITHMETIC[type(operation)](_evaluated(operand)))
    raise KeyError(type(node))


def _refusal(operator: str, target: str, failed: OSError) -> str:
    """The error message for a file that cannot be opened."""
    reads = operator == "<"
    reason = "no such file" if reads and failed.errno == errno.ENOENT else os.strerror(failed.errno or 0)
    return f"sh: can't {'open' if reads else 'create'} {target}: {reason}\n"


def _close(handles: list[Handle]) -> None:
    for handle in handles:
        handle.close()


def _reader(sink: Any) -> Handle:
    file = TemporaryFile()
    file.content = sink.data
    return file.open(os.O_RDONLY)
