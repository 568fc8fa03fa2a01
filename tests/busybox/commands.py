"""The commands of the shell: echo, cat, ls, find, dd and others. grep, sed, sort and their like run the system's programs."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tests.busybox.builtins import BUILTINS
from tests.busybox.conditions import Condition
from tests.busybox.copying import blocks, cat, cp, dd, input_of, output, tee
from tests.busybox.files import TRACEFS, operands, try_each
from tests.busybox.listing import find_files, list_files
from tests.busybox.printf import Printf, unescaped
from tests.busybox.shell import Descriptors, KilledError, Run, Shell, UnsupportedError

_TEXT_TOOLS = {
    "awk": "Ffv", "basename": "s", "cmp": "", "cut": "bcdf", "date": "d", "diff": "", "dirname": "", "expr": "",
    "grep": "efmABC", "egrep": "efmABC", "fgrep": "efmABC", "head": "nc", "od": "ANjtw", "sed": "ef", "seq": "s",
    "sort": "kt", "tail": "nc", "tr": "", "uniq": "fsw", "wc": "",
}  # fmt: skip
"""The system's programs, each with its options that take a value."""
_SCRIPTS = {
    "awk": ("-f", 1),
    "egrep": ("-e", 1),
    "fgrep": ("-e", 1),
    "grep": ("-e", 1),
    "sed": ("-e", 1),
    "tr": ("", 2),
}
"""Programs with operands before the files: the option that makes them unnecessary, and how many there are."""
_WITHOUT_FILES = ("basename", "date", "dirname", "expr", "seq")
_GREPS = ("grep", "egrep", "fgrep")
_KILLED = 143
"""The exit status of a command that `timeout` has killed."""
_FAILED = 2
"""The exit status of `test` for what is no condition, and of `grep` for files that cannot be read."""
_ECHO_OPTIONS = re.compile(r"-[neE]+")
_DURATION = re.compile(r"(\d*\.?\d+)([smhd]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


class UnknownCommandError(UnsupportedError):
    """There is no such command."""


class _OperandError(Exception):
    """Operands that a command cannot take."""


class Commands:
    """Runs simple commands. `others`: additional commands, by name."""

    def __init__(self, others: Mapping[str, Run] | None = None) -> None:
        self._commands: dict[str, Run] = {
            **BUILTINS, "[": _bracket, "cat": cat, "cd": _cd, "command": self._command, "cp": cp, "dd": dd, "echo": _echo,
            "false": lambda *_: 1, "find": find_files, "ln": _ln, "ls": list_files, "mkdir": _mkdir, "mv": _mv,
            "printf": _printf, "pwd": _pwd, "rm": _rm, "rmdir": _rmdir, "sh": self._sh, "sleep": _sleep, "tee": tee,
            "test": _test, "timeout": self._timeout, "touch": _touch, "true": lambda *_: 0,
            **dict.fromkeys(_TEXT_TOOLS, _text_tool), **(others or {}),
        }  # fmt: skip

    @property
    def names(self) -> list[str]:
        """The names of the commands, sorted."""
        return sorted(self._commands)

    def run(self, shell: Shell, words: list[str], fds: Descriptors) -> int:
        """Run a command and return its exit status. Raises UnsupportedError for an unknown command."""
        name = words[0]
        if name not in self._commands:
            raise UnknownCommandError(name)
        given = words if name in _TEXT_TOOLS else words[1:]
        try:
            return self._commands[name](shell, given, fds)
        except _OperandError as wrong:
            fds[2].write(f"{name}: {wrong}\n".encode())
            return 1

    def _command(self, shell: Shell, words: list[str], fds: Descriptors) -> int:
        """`command [-v] NAME [ARGUMENT...]`: whether there is a command; else run it, and not the function of its name."""
        if words[:1] != ["-v"]:
            return self.run(shell, words, fds) if words else 0
        known = [name for name in words[1:2] if name in self._commands or name in shell.functions]
        return output("sh", f"{known[0]}\n".encode(), fds) if known else 127

    def _sh(self, shell: Shell, words: list[str], fds: Descriptors) -> int:
        """`sh [-e] -c TEXT [NAME [ARGUMENT...]]`, `sh FILE [ARGUMENT...]`, or the commands of standard input."""
        inner = shell.copy(keeps_all=False)
        while words and words[0] in ("-e", "-ec", "-x", "-u"):
            inner.ends_at_failure = inner.ends_at_failure or "e" in words[0]
            inner.shows_commands, inner.refuses_unset = words[0] == "-x", words[0] == "-u"
            words = ["-c", *words[1:]] if words[0] == "-ec" else words[1:]
        if words[:1] == ["-c"] and len(words) > 1:
            text, (inner.name, *inner.arguments) = words[1], words[2:] or ["sh"]
        elif words and words[0].startswith("-"):
            raise UnsupportedError("sh " + " ".join(words))
        elif words:
            try:
                text, (inner.name, *inner.arguments) = (
                    shell.files.read(words[0]).decode("utf-8", "surrogateescape"),
                    words,
                )
            except OSError as failed:
                fds[2].write(f"sh: can't open '{words[0]}': {os.strerror(failed.errno or 0)}\n".encode())
                return _FAILED
        else:
            text = input_of(shell, fds).decode("utf-8", "surrogateescape")
        return inner.run(text, fds[1], fds[2], fds[0] if words else None)

    def _timeout(self, shell: Shell, words: list[str], fds: Descriptors) -> int:
        """`timeout [-s SIGNAL] SECONDS COMMAND`: it is killed if it sleeps or waits for data when the time is over."""
        words = words[2:] if words[:1] == ["-s"] else words
        if len(words) < 2:
            raise _OperandError("a number of seconds and a command are needed")
        inner = shell.copy()
        end = time.monotonic() + _seconds(words[0])
        inner.deadline = end if inner.deadline is None else min(inner.deadline, end)
        try:
            return self.run(inner, words[1:], fds)
        except KilledError:
            return _KILLED
        finally:
            inner.end(fds)


# -- output -----------------------------------------------------------------------------------------------------------


def _echo(_shell: Shell, words: list[str], fds: Descriptors) -> int:
    """`echo [-neE] TEXT...`, as that of busybox."""
    options = ""
    while words and _ECHO_OPTIONS.fullmatch(words[0]):
        options, words = options + words[0][1:], words[1:]
    text = " ".join(words).encode("utf-8", "surrogateescape")
    is_ended = "n" in options
    if options.rstrip("n").endswith("e"):
        text, is_last = unescaped(text, may_have_zero=True)
        is_ended = is_ended or is_last
    return output("sh", text + (b"" if is_ended else b"\n"), fds)


def _printf(_shell: Shell, words: list[str], fds: Descriptors) -> int:
    words = words[1:] if words[:1] == ["--"] else words
    if not words:
        fds[2].write(b"sh: usage: printf FORMAT [ARGUMENT...]\n")
        return 2
    form, *arguments = (word.encode("utf-8", "surrogateescape") for word in words)
    made = Printf(form, arguments)
    text = made.text()
    fds[2].write("".join(f"sh: {error}\n" for error in made.errors).encode("utf-8", "surrogateescape"))
    return output(None, text, fds) or int(bool(made.errors))


# -- files ------------------------------------------------------------------------------------------------------------


def _ln(_shell: Shell, words: list[str], fds: Descriptors) -> int:
    """Refused: there are no links in a tree."""
    return try_each(operands(words)[-1:], _not_permitted, "ln: {}: {}", fds)


def _mv(shell: Shell, words: list[str], fds: Descriptors) -> int:
    """Refused: a tree's files keep their names."""

    def move(path: str) -> None:
        shell.files.find(path)
        _not_permitted(path)

    return try_each(operands(words)[:-1], move, "mv: can't rename '{}': {}", fds)


def _not_permitted(_path: str) -> None:
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


def _test(shell: Shell, words: list[str], fds: Descriptors) -> int:
    """`test`: files, texts and numbers."""
    try:
        return int(not Condition(shell.files, words).holds())
    except ValueError as wrong:
        fds[2].write(f"sh: {str(wrong).rpartition(': ')[2].strip(chr(39))}: bad number\n".encode())
        return _FAILED
    except UnsupportedError as unknown:
        fds[2].write(f"sh: {unknown}: unknown operand\n".encode())
        return _FAILED


def _bracket(shell: Shell, words: list[str], fds: Descriptors) -> int:
    if words[-1:] != ["]"]:
        fds[2].write(b"sh: missing ]\n")
        return _FAILED
    return _test(shell, words[:-1], fds)


def _touch(shell: Shell, words: list[str], fds: Descriptors) -> int:
    return try_each(
        operands(words), lambda path: shell.files.open(path, os.O_WRONLY | os.O_CREAT).close(), "touch: {}: {}", fds
    )


def _cd(shell: Shell, words: list[str], fds: Descriptors) -> int:
    return try_each(words[:1] or [TRACEFS], shell.files.change, "sh: cd: line 0: can't cd to {}: {}", fds) * _FAILED


def _pwd(shell: Shell, _words: list[str], fds: Descriptors) -> int:
    return output("sh", f"{shell.files.directory}\n".encode(), fds)


def _mkdir(shell: Shell, words: list[str], fds: Descriptors) -> int:
    """`mkdir [-p] DIRECTORY...`."""

    def make(path: str) -> None:
        parts = path.rstrip("/").split("/")
        for count in range(1, len(parts)) if "-p" in words else ():
            above = "/".join(parts[:count])
            if above and not shell.files.is_directory(above):
                shell.files.make(above)
        if "-p" not in words or not shell.files.is_directory(path):
            shell.files.make(path)

    return try_each(operands(words), make, "mkdir: can't create directory '{}': {}", fds)


def _rmdir(shell: Shell, words: list[str], fds: Descriptors) -> int:
    return try_each(operands(words), shell.files.remove_directory, "rmdir: '{}': {}", fds)


def _rm(shell: Shell, words: list[str], fds: Descriptors) -> int:
    """`rm [-rf] FILE...`."""
    options = "".join(word[1:] for word in words if word.startswith("-"))
    is_forced, removes_all = "f" in options, "r" in options or "R" in options

    def remove(path: str) -> None:
        try:
            shell.files.remove(path, with_content=removes_all)
        except FileNotFoundError:
            if not is_forced:
                raise

    directories = [path for path in operands(words) if shell.files.is_directory(path) and not removes_all]
    fds[2].write("".join(f"rm: '{path}' is a directory\n" for path in directories).encode())
    others = [path for path in operands(words) if path not in directories]
    return try_each(others, remove, "rm: can't remove '{}': {}", fds) or int(bool(directories))


# -- processes --------------------------------------------------------------------------------------------------------


def _seconds(text: str) -> float:
    if (found := _DURATION.fullmatch(text)) is None:
        raise _OperandError(f"invalid number '{text}'")
    return float(found[1]) * _SECONDS[found[2]]


def _sleep(shell: Shell, words: list[str], _fds: Descriptors) -> int:
    if not words:
        raise _OperandError("a number of seconds is needed")
    shell.pause(sum(map(_seconds, words)))
    return 0


# -- programs of the system -------------------------------------------------------------------------------------------


def _text_tool(shell: Shell, words: list[str], fds: Descriptors) -> int:
    """Run the system's program on copies of the files, in a temporary directory with the same paths."""
    tool = words[0]
    paths = _file_operands(words)
    status = 0
    with tempfile.TemporaryDirectory() as name:
        arguments = list(words[1:])
        for path in paths:
            try:
                data = _content(shell, path)
            except OSError as failed:
                opening = f"can't open '{path}'" if tool == "tail" else path
                fds[2].write(f"{tool}: {opening}: {os.strerror(failed.errno or 0)}\n".encode())
                arguments.remove(path)
                status = _FAILED if tool in _GREPS else 1
                continue
            arguments[arguments.index(path)] = path.lstrip("/")
            copy = Path(name, path.lstrip("/"))
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(data)
        if paths and status and len(arguments) == len(words) - 1 - len(paths):
            fds[2].write(b"tail: no files\n" if tool == "tail" else b"")
            return status
        reads_input = not paths and tool not in _WITHOUT_FILES
        done = _run_program(tool, arguments, name, input_of(shell, fds) if reads_input or "-" in arguments else b"")
    fds[2].write(_with_names(done.stderr, paths))
    return output(None, _with_names(done.stdout, paths), fds) or status or done.returncode


def _with_names(text: bytes, paths: list[str]) -> bytes:
    """The output of grep, wc, head or tail with the names of files that were given from / on."""
    for path in sorted({path for path in paths if path.startswith("/")}, key=len, reverse=True):
        name = re.escape(path.lstrip("/").encode("utf-8", "surrogateescape"))
        text = re.sub(rb"(^|^==> |^ *\d+ |: )(" + name + rb")(?=[:-]| <==$|$)", rb"\1/\2", text, flags=re.MULTILINE)
    return text


def _run_program(tool: str, arguments: list[str], directory: str, data: bytes) -> subprocess.CompletedProcess[bytes]:
    # Records have bytes of any value, which no locale may take for characters.
    call = [tool, "-a", *arguments] if tool in _GREPS else [tool, *arguments]
    plain = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(call, input=data, capture_output=True, cwd=directory, env=plain, check=False)


def _content(shell: Shell, path: str) -> bytes:
    """All of a file that a program reads. Raises OSError."""
    with shell.files.open(path, os.O_RDONLY | os.O_NONBLOCK) as handle:
        return b"".join(blocks(shell, handle, 1 << 16))


def _file_operands(words: list[str]) -> list[str]:
    """The files on the command line of a system program."""
    tool, found, skip = words[0], [], False
    if tool in _WITHOUT_FILES:
        return []
    for word in words[1:]:
        if skip:
            skip = False
        elif word.startswith("-") and len(word) > 1:
            skip = word[-1] in _TEXT_TOOLS[tool] and len(word) == 2
        elif word != "-":
            found.append(word)
    return found[tool_scripts(words) :]


def tool_scripts(words: list[str]) -> int:
    """Number of operands before the files: 1 for a pattern or script that is not given by an option, else 0; 2 for tr."""
    option, count = _SCRIPTS.get(words[0], ("", 0))
    return 0 if option in words else count
