"""What the compiler says when a function is not in the language: the message, the source line and a caret."""

from __future__ import annotations

import ast
from dataclasses import dataclass


@dataclass(frozen=True)
class Origin:
    """Where a piece of source comes from: the file's name and its lines, without line ends."""

    filename: str
    lines: tuple[str, ...]

    def text(self, line: int) -> str:
        """The source line *line* (1-based), or an empty string when the file has no such line."""
        return self.lines[line - 1] if 0 < line <= len(self.lines) else ""


class NativeError(SyntaxError):
    """A function or declaration that the native language does not accept.

    Carries `filename`, `lineno`, `offset`, `text`, `end_lineno` and `end_offset` like every SyntaxError
    (offsets are 1-based, in characters); `msg` names the construct and says what to write instead.
    """

    def render(self) -> str:
        """The error as text: place, message, source line and caret."""
        return render(self)


class NativeWarning(SyntaxWarning):
    """Accepted, but probably not what was meant."""


def error_at(origin: Origin, node: ast.AST, message: str) -> NativeError:
    """A NativeError that points at *node* of the source *origin*."""
    line = getattr(node, "lineno", 1)
    end_line = getattr(node, "end_lineno", line)
    text = origin.text(line)
    begin = _characters(text, getattr(node, "col_offset", 0))
    end = _characters(origin.text(end_line), getattr(node, "end_col_offset", 0))
    return NativeError(message, (origin.filename, line, begin + 1, text + "\n", end_line, end + 1))


def render(error: SyntaxError) -> str:
    """*error* as `file:line:column: message`, the source line and carets under what is wrong."""
    place = f"{error.filename}:{error.lineno}:{error.offset}: error: {error.msg}"
    text = (error.text or "").rstrip("\n")
    if not text.strip():
        return place
    begin = (error.offset or 1) - 1
    same_line = error.end_lineno == error.lineno and error.end_offset is not None
    end = (error.end_offset or 0) - 1 if same_line else len(text)
    pad = "".join("\t" if c == "\t" else " " for c in text[:begin])
    return f"{place}\n    {text}\n    {pad}{'^' * max(1, end - begin)}"


def _characters(text: str, utf8_offset: int) -> int:
    return len(text.encode()[:utf8_offset].decode(errors="replace"))
