"""The commands ls and find."""

from __future__ import annotations

import fnmatch
import os
import stat
import time
from collections.abc import Iterator

from ftrace.tracing.files.nodes import Directory, Node
from tests.busybox.files import TemporaryFile, operands, try_each
from tests.busybox.shell import Descriptors, Shell, UnsupportedError

_DEEPEST = 99


def list_files(shell: Shell, words: list[str], fds: Descriptors) -> int:
    """`ls [-1adlR] PATH...`."""
    options = "".join(word[1:] for word in words if word.startswith("-"))
    files: list[tuple[str, Node]] = []
    directories: list[tuple[str, Directory]] = []
    missing = []
    for path in operands(words) or ["."]:
        try:
            node = shell.files.find(path)
        except OSError as failed:
            missing.append(f"ls: {path}: {os.strerror(failed.errno or 0)}\n")
            continue
        if isinstance(node, Directory) and "d" not in options:
            directories += _with_those_below(path, node) if "R" in options else [(path, node)]
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


def _with_those_below(path: str, directory: Directory) -> Iterator[tuple[str, Directory]]:
    yield path, directory
    for name, node in directory.entries.items():
        if isinstance(node, Directory):
            yield from _with_those_below(f"{path.rstrip('/')}/{name}", node)


def _listed(name: str, node: Node, options: str) -> str:
    if "l" not in options:
        return f"{name}\n"
    kind = stat.S_IFDIR if isinstance(node, Directory) else stat.S_IFREG
    size = len(node.content) if isinstance(node, TemporaryFile) else 0
    when = time.strftime("%b %d %H:%M")
    return f"{stat.filemode(kind | node.mode)} {node.links:4} root     root     {size:9} {when} {name}\n"


def find_files(shell: Shell, words: list[str], fds: Descriptors) -> int:
    """`find PATH... [-name GLOB] [-type d|f] [-maxdepth N] [-mindepth N] [-print]`."""
    first = next((index for index, word in enumerate(words) if word.startswith("-")), len(words))
    tests = [word for word in words[first:] if word != "-print"]
    given = dict(zip(tests[::2], tests[1::2], strict=False))
    if len(tests) % 2 or given.keys() - {"-name", "-type", "-maxdepth", "-mindepth"}:
        raise UnsupportedError("find " + " ".join(words))

    def show(path: str) -> None:
        for found, node, depth in _walk(shell, path, int(given.get("-maxdepth", _DEEPEST))):
            kind = "d" if isinstance(node, Directory) else "f"
            name = found.rstrip("/").rpartition("/")[2]
            is_deep = depth >= int(given.get("-mindepth", 0))
            if is_deep and kind == given.get("-type", kind) and fnmatch.fnmatchcase(name, given.get("-name", "*")):
                fds[1].write(f"{found}\n".encode())

    return try_each(words[:first] or ["."], show, "find: {}: {}", fds)


def _walk(shell: Shell, path: str, deepest: int, depth: int = 0) -> Iterator[tuple[str, Node, int]]:
    """The path and what is below it, with the nodes and how deep they are."""
    node = shell.files.find(path)
    yield path, node, depth
    for name in sorted(node.entries) if isinstance(node, Directory) and depth < deepest else ():
        yield from _walk(shell, f"{path.rstrip('/')}/{name}", deepest, depth + 1)
