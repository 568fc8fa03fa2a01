"""The commands of the shell: echo, cat, ls, find, dd and others. grep, sed, sort and their like run the system's programs."""

from __future__ import annotations

import errno
import fnmatch
import os
import re
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fprobe.shell.files import TRACEFS
from fprobe.shell.shell import Descriptors, Run, Shell, UnsupportedError
from ftrace.tracefs.nodes import Directory, Handle, Node

_TEXT_TOOLS = {
    "awk": "Ffv", "cut": "bcdf", "grep": "efmABC", "head": "nc", "od": "ANjtw", "sed": "ef", "sort": "kt", "tail": "nc",
    "tr": "", "uniq": "fsw", "wc": "",
}  # fmt: skip
"""The system's programs, each with its options that take a value."""
_SCRIPTS = {"awk": ("-f", 1), "grep": ("-e", 1), "sed": ("-e", 1), "tr": ("", 2)}
"""Programs with operands before the files: the option that makes them unnecessary, and how many there are."""
_BLOCK = 512
_PAUSE = 0.02
_KILLED = 128 + signal.SIGTERM
"""The exit status of a command that `timeout` has killed."""


class Commands:
    """Runs simple commands. `others`: additional commands, by name."""

    def __init__(self, others: Mapping[str, Run] | None = None) -> None:
        self._commands: dict[str, Run] = {
            "[": self._test, "cat": self._cat, "cd": self._cd, "cp": self._cp, "dd": self._dd, "echo": self._echo,
            "false": lambda *_: 1, "find": self._find, "ln": self._ln, "ls": self._ls, "mkdir": self._mkdir, "mv": self._mv,
            "printf": self._printf, "pwd": self._pwd, "rm": self._rm, "rmdir": self._rmdir, "sh": self._sh,
            "sleep": self._sleep, "tee": self._tee, "test": self._test, "timeout": self._timeout, "touch": self._touch,
            **dict.fromkeys((":", "true"), lambda *_: 0), **dict.fromkeys(_TEXT_TOOLS, self._text_tool), **(others or {}),
        }  # fmt: skip
        self._deadline: float | None = None
        """When the command that runs under `timeout` is killed."""
        self._ran_out = False
        """Whether it has been."""

    @property
    def names(self) -> list[str]:
        """The names of the commands, sorted."""
        return sorted(self._commands)

    def run(self, shell: Shell, words: list[str], fds: Descriptors) -> int:
        """Run a command and return its exit status. Raises UnsupportedError for an unknown command."""
        name = words[0]
        if name not in self._commands:
            raise UnsupportedError(name)
        given = words if name in _TEXT_TOOLS else words[1:]
        return self._commands[name](shell, given, fds)

    # -- output ---------------------------------------------------------------------------------------------------

    def _echo(self, shell: Shell, words: list[str], fds: Descriptors) -> int:
        newline = "\n"
        while words[:1] in (["-n"], ["-e"]):
            newline = "" if words[0] == "-n" else newline
            words = words[1:]
        return _output("sh", (" ".join(words) + newline).encode(), fds)

    def _printf(self, shell: Shell, words: list[str], fds: Descriptors) -> int:
        form, values = re.sub(r"%(?=[^sdxu%])", "%%", words[0]), iter(words[1:])
        text = re.sub(r"%[sdxu]", lambda _: next(values, ""), form).replace("%%", "%")
        return _output(None, text.encode().decode("unicode_escape").encode("latin-1"), fds)

    def _cat(self, shell: Shell, words: list[str], fds: Descriptors) -> int:
        status = 0
        for path in words or ["-"]:
            if self._ran_out:
                return _KILLED
            failed = f"can't open '{path}'"
            try:
                handle = shell.files.open(path, os.O_RDONLY | os.O_NONBLOCK) if path != "-" else Handle()
                with handle:
                    failed = "read error"
                    data = _input(fds) if path == "-" else b"".join(self._blocks(handle, -1, -1))
            except OSError as error:
                fds[2].write(f"cat: {failed}: {os.strerror(error.errno or 0)}\n".encode())
                status = 1
                continue
            status = _output("cat", data, fds) or status
        return _KILLED if self._ran_out else status

    # -- files ----------------------------------------------------------------------------------------------------

    def _cp(self, shell: Shell, words: list[str], fds: Descriptors) -> int:
        source, target = words
        try:
            data = shell.files.read(source)
            with shell.files.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as handle:
                _write_all(handle, data)
        except OSError as failed:
            fds[2].write(f"cp: can't open '{source}': {os.strerror(failed.errno or 0)}\n".encode())
            return 1
        return 0

    def _dd(self, shell: Shell, words: list[str], fds: Descriptors) -> int:
        given = dict(word.split("=", 1) for word in words)
        action = f"can't open '{given['if']}'"
        try:
            with shell.files.open(
                given["if"], os.O_RDONLY | (0 if self._deadline is None else os.O_NONBLOCK)
            ) as source:
                action = given["if"]
                blocks, tally = self._read_blocks(source, given)
            if "of" in given:
                action = f"can't open '{given['of']}'"
                with shell.files.open(given["of"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as handle:
                    action = f"writing '{given['of']}'"
                    _write_all(handle, b"".join(blocks))
            else:
                _write_all(fds[1], b"".join(blocks))
        except OSError as failed:
            fds[2].write(f"dd: {action}: {os.strerror(failed.errno or 0)}\n".encode())
            return 1
        if self._ran_out:
            return _KILLED
        fds[2].write(f"{tally} in\n{tally} out\n".encode())
        return 0

    def _read_blocks(self, source: Handle, given: Mapping[str, str]) -> tuple[list[bytes], str]:
        """The blocks that dd's operands choose, and their tally."""
        size, count = int(given.get("bs", _BLOCK)), int(given.get("count", -1))
        for _ in self._blocks(source, size, int(given.get("skip", 0))):
            pass
        blocks = list(self._blocks(source, size, count))
        whole = sum(len(block) == size for block in blocks)
        return blocks, f"{whole}+{len(blocks) - whole} records"

    def _tee(self, shell: Shell, words: list[str], fds: Descriptors) -> int:
        """Copy standard input to standard output and to files."""
        data = _input(fds)
        flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if "-a" in words else os.O_TRUNC)

        def copy(path: str) -> None:
            with shell.files.open(path, flags) as handle:
                _write_all(handle, data)

        status = _each(_operands(words), copy, "tee: {}: {}", fds)
        return _output("tee", data, fds) or status

    def _ln(self, shell: Shell, words: list[str], fds: Descriptors) -> int:
        """Refused: there are no links in a tree."""
        return _each(_operands(words)[-1:], _not_permitted, "ln: {}: {}", fds)

    def _mv(self, shell: Shell, words: list[str], fds: Descriptors) -> int:
        """Refused: a tree's files keep their names."""

        def move(path: str) -> None:
            shell.files.find(path)
            _not_permitted(path)

        return _each(_operands(words)[:-1], move, "mv: can't rename '{}': {}", fds)

    def _test(self, shell: Shell, words: list[str], fds: Descriptors) -> int:
        """`test` and `[`: files, texts and numbers."""
        words = words[:-1] if words[-1:] == ["]"] else words
        if words[:1] == ["!"]:
            return int(self._test(shell, words[1:], fds) == 0)
        match words:
            case [option, operand] if option in _FILE_TESTS:
                return int(not _FILE_TESTS[option](shell, operand))
            case [left, comparison, right] if comparison in _COMPARISONS:
                return int(not _COMPARISONS[comparison](left, right))
            case [] | [_]:
                return int(not any(words))
        raise UnsupportedError("test " + " ".join(words))

    def _touch(self, shell: Shell, words: list[str], fds: Descriptors) -> int:
        return _each(words, lambda path: shell.files.open(path, os.O_WRONLY | os.O_CREAT).close(), "touch: {}: {}", fds)

    def _cd(self, shell: Shell, words: list[str], fds: Descriptors) -> int:
        return _each(words[:1] or [TRACEFS], shell.files.change, "sh: cd: can't cd to {}: {}", fds)

    def _pwd(self, shell: Shell, words: list[str], fds: Descriptors) -> int:
        return _output("sh", f"{shell.files.directory}\n".encode(), fds)

    def _mkdir(self, shell: Shell, words: list[str], fds: Descriptors) -> int:
        return _each(_operands(words), shell.files.make, "mkdir: can't create directory '{}': {}", fds)

    def _rmdir(self, shell: Shell, words: list[str], fds: Descriptors) -> int:
        return _each(words, shell.files.remove_directory, "rmdir: '{}': {}", fds)

    def _rm(self, shell: Shell, words: list[str], fds: Descriptors) -> int:
        return _each(_operands(words), shell.files.remove, "rm: can't remove '{}': {}", fds)

    # -- ls -------------------------------------------------------------------------------------------------------

    def _ls(self, shell: Shell, words: list[str], fds: Descriptors) -> int:
        options = "".join(word[1:] for word in words if word.startswith("-"))
        files: list[tuple[str, Node]] = []
        directories: list[tuple[str, Directory]] = []
        missing = []
        for path in _operands(words) or ["."]:
            try:
                node = shell.files.find(path)
            except OSError as failed:
                missing.append(f"ls: {path}: {os.strerror(failed.errno or 0)}\n")
                continue
            if isinstance(node, Directory) and "d" not in options:
                directories.append((path, node))
            else:
                files.append((path, node))
        fds[2].write("".join(missing).encode())
        blocks = ["".join(_listed(path, node, options) for path, node in sorted(files, key=lambda pair: pair[0]))]
        titled = len(files) + len(directories) + len(missing) > 1
        for path, node in sorted(directories, key=lambda pair: pair[0]):
            lines = [f"{path}:\n"] if titled else []
            lines += ["total 0\n"] if "l" in options else []
            lines += [_listed(name, node.entries[name], options) for name in sorted(node.entries)]
            blocks.append("".join(lines))
        fds[1].write("\n".join(block for block in blocks if block).encode())
        return int(bool(missing))

    def _find(self, shell: Shell, words: list[str], fds: Descriptors) -> int:
        """`find PATH... [-name GLOB] [-type d|f] [-maxdepth N]`."""
        first = next((index for index, word in enumerate(words) if word.startswith("-")), len(words))
        tests = words[first:]
        given = dict(zip(tests[::2], tests[1::2], strict=False))
        if len(tests) % 2 or given.keys() - {"-name", "-type", "-maxdepth"}:
            raise UnsupportedError("find " + " ".join(words))

        def show(path: str) -> None:
            for found, node in _walk(shell, path, int(given.get("-maxdepth", 99))):
                kind = "d" if isinstance(node, Directory) else "f"
                name = found.rstrip("/").rpartition("/")[2]
                if kind == given.get("-type", kind) and fnmatch.fnmatchcase(name, given.get("-name", "*")):
                    fds[1].write(f"{found}\n".encode())

        return _each(words[:first] or ["."], show, "find: {}: {}", fds)

    # -- processes ------------------------------------------------------------------------------------------------

    def _sh(self, shell: Shell, words: list[str], fds: Descriptors) -> int:
        if words[:1] != ["-c"]:
            raise UnsupportedError("sh " + " ".join(words))
        return Shell(shell.files, self.run).run(words[1], fds[1], fds[2])

    def _sleep(self, shell: Shell, words: list[str], fds: Descriptors) -> int:
        time.sleep(float(words[0]))
        return 0

    def _timeout(self, shell: Shell, words: list[str], fds: Descriptors) -> int:
        """Run a command that reads. It is killed if it still waits for data when the time is over."""
        self._deadline = time.monotonic() + float(words[0])
        try:
            return self.run(shell, words[1:], fds)
        finally:
            self._deadline, self._ran_out = None, False

    def _blocks(self, handle: Handle, size: int, count: int) -> Iterator[bytes]:
        """At most `count` blocks of a file, until its end; if a read would wait, the data that arrives before the deadline."""
        while count != 0:
            try:
                block = handle.read(size)
            except BlockingIOError:
                if self._deadline is None or time.monotonic() >= self._deadline:
                    self._ran_out = self._deadline is not None
                    return
                time.sleep(_PAUSE)
                continue
            if not block:
                return
            yield block
            count -= 1

    def _text_tool(self, shell: Shell, words: list[str], fds: Descriptors) -> int:
        """Run the system's program on copies of the files, in a temporary directory with the same paths."""
        tool = words[0]
        paths = _file_operands(words)
        status = 0
        with tempfile.TemporaryDirectory() as name:
            arguments = list(words[1:])
            for path in paths:
                try:
                    data = shell.files.read(path)
                except OSError as failed:
                    fds[2].write(f"{tool}: {path}: {os.strerror(failed.errno or 0)}\n".encode())
                    arguments.remove(path)
                    status = 2 if tool == "grep" else 1
                    continue
                arguments[arguments.index(path)] = path.lstrip("/")
                copy = Path(name, path.lstrip("/"))
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(data)
            if paths and status and len(arguments) == len(words) - 1 - len(paths):
                return status
            data = b"" if paths else _input(fds)
            # Records have bytes of any value, which no locale may take for characters.
            call = [tool, "-a", *arguments] if tool == "grep" else [tool, *arguments]
            plain = {**os.environ, "LC_ALL": "C"}
            done = subprocess.run(call, input=data, capture_output=True, cwd=name, env=plain, check=False)
        fds[1].write(done.stdout)
        fds[2].write(done.stderr)
        return status or done.returncode


def _kind(shell: Shell, path: str) -> type[Node] | None:
    try:
        return type(shell.files.find(path))
    except OSError:
        return None


def _is_directory(shell: Shell, path: str) -> bool:
    kind = _kind(shell, path)
    return kind is not None and issubclass(kind, Directory)


_FILE_TESTS: dict[str, Callable[[Shell, str], bool]] = {
    "-d": _is_directory,
    "-e": lambda shell, path: _kind(shell, path) is not None,
    "-f": lambda shell, path: _kind(shell, path) is not None and not _is_directory(shell, path),
    "-n": lambda _shell, text: bool(text),
    "-z": lambda _shell, text: not text,
}
_COMPARISONS: dict[str, Callable[[str, str], bool]] = {
    "=": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "-eq": lambda left, right: int(left) == int(right),
    "-ne": lambda left, right: int(left) != int(right),
    "-lt": lambda left, right: int(left) < int(right),
    "-le": lambda left, right: int(left) <= int(right),
    "-gt": lambda left, right: int(left) > int(right),
    "-ge": lambda left, right: int(left) >= int(right),
}


def _not_permitted(_path: str) -> None:
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


def _operands(words: list[str]) -> list[str]:
    return [word for word in words if not word.startswith("-")]


def _file_operands(words: list[str]) -> list[str]:
    """The files on the command line of a system program."""
    tool, found, scripts, skip = words[0], [], tool_scripts(words), False
    for word in words[1:]:
        if skip:
            skip = False
        elif word.startswith("-") and len(word) > 1:
            skip = word[-1] in _TEXT_TOOLS[tool] and len(word) == 2
        else:
            found.append(word)
    return found[scripts:]


def tool_scripts(words: list[str]) -> int:
    """Number of operands before the files: 1 for a pattern or script that is not given by an option, else 0; 2 for tr."""
    option, count = _SCRIPTS.get(words[0], ("", 0))
    return 0 if option in words else count


def _walk(shell: Shell, path: str, depth: int) -> Iterator[tuple[str, Node]]:
    """The path and all paths below it, with the nodes."""
    node = shell.files.find(path)
    yield path, node
    for name in sorted(node.entries) if isinstance(node, Directory) and depth else ():
        yield from _walk(shell, f"{path.rstrip('/')}/{name}", depth - 1)


def _listed(name: str, node: Node, options: str) -> str:
    if "l" not in options:
        return f"{name}\n"
    kind = stat.S_IFDIR if isinstance(node, Directory) else stat.S_IFREG
    when = time.strftime("%b %d %H:%M")
    return f"{stat.filemode(kind | node.mode)} {node.links:4} root     root             0 {when} {name}\n"


def _input(fds: Descriptors) -> bytes:
    return bytes(fds[0].read()) if fds[0] is not None else b""


def _write_all(handle: Any, data: bytes) -> None:
    while data:
        data = data[handle.write(data) :]


def _output(program: str | None, data: bytes, fds: Descriptors) -> int:
    try:
        _write_all(fds[1], data)
    except OSError as failed:
        if program:
            fds[2].write(f"{program}: write error: {os.strerror(failed.errno or 0)}\n".encode())
        return 1
    return 0


def _each(paths: list[str], action: Callable[[str], object], message: str, fds: Descriptors) -> int:
    status = 0
    for path in paths:
        try:
            action(path)
        except OSError as failed:
            fds[2].write((message.format(path, os.strerror(failed.errno or 0)) + "\n").encode())
            status = 1
    return status
