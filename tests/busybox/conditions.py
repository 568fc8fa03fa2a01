"""The expressions of `test` and `[`."""

from __future__ import annotations

from collections.abc import Callable

from ftrace.tracing.files.nodes import Directory, Node
from tests.busybox.files import Files, TemporaryFile
from tests.busybox.tokens import UnsupportedError


def _node(files: Files, path: str) -> Node | None:
    try:
        return files.find(path)
    except OSError:
        return None


def _has_content(files: Files, path: str) -> bool:
    """Whether the size is not 0: that of a generated file is."""
    node = _node(files, path)
    return isinstance(node, Directory) or (isinstance(node, TemporaryFile) and bool(node.content))


def _exists(files: Files, path: str) -> bool:
    return _node(files, path) is not None


def _is_directory(files: Files, path: str) -> bool:
    return isinstance(_node(files, path), Directory)


_UNARY: dict[str, Callable[[Files, str], bool]] = {
    "-d": _is_directory,
    "-e": _exists,
    "-f": lambda files, path: _exists(files, path) and not _is_directory(files, path),
    "-h": lambda _files, _path: False,
    "-L": lambda _files, _path: False,
    "-n": lambda _files, text: bool(text),
    "-r": _exists,
    "-s": _has_content,
    "-t": lambda _files, _number: False,
    "-w": _exists,
    "-x": _is_directory,
    "-z": lambda _files, text: not text,
}
_BINARY: dict[str, Callable[[str, str], bool]] = {
    "=": lambda left, right: left == right,
    "==": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    ">": lambda left, right: left > right,
    "-eq": lambda left, right: int(left) == int(right),
    "-ne": lambda left, right: int(left) != int(right),
    "-lt": lambda left, right: int(left) < int(right),
    "-le": lambda left, right: int(left) <= int(right),
    "-gt": lambda left, right: int(left) > int(right),
    "-ge": lambda left, right: int(left) >= int(right),
}


class Condition:
    """An expression. `holds` raises UnsupportedError for what is none, ValueError for an operand that is no number."""

    def __init__(self, files: Files, words: list[str]) -> None:
        self._files, self._words, self._at = files, words, 0

    def holds(self) -> bool:
        """Whether it holds."""
        if not self._words:
            return False
        found = self._either()
        if self._at < len(self._words):
            raise UnsupportedError(self._words[self._at])
        return found

    def _takes(self, *words: str) -> bool:
        if self._words[self._at : self._at + 1] and self._words[self._at] in words:
            self._at += 1
            return True
        return False

    def _either(self) -> bool:
        found = self._both()
        while self._takes("-o"):
            found = self._both() or found
        return found

    def _both(self) -> bool:
        found = self._one()
        while self._takes("-a"):
            found = self._one() and found
        return found

    def _one(self) -> bool:
        left = self._words[self._at :]
        if len(left) > 2 and left[1] in _BINARY:
            self._at += 3
            return _BINARY[left[1]](left[0], left[2])
        if len(left) > 1 and self._takes("!"):
            return not self._one()
        if len(left) > 2 and self._takes("("):
            found = self._either()
            if self._takes(")"):
                return found
        elif len(left) > 1 and left[0] in _UNARY:
            self._at += 2
            return _UNARY[left[0]](self._files, left[1])
        elif left:
            self._at += 1
            return bool(left[0])
        raise UnsupportedError("test " + " ".join(self._words))
