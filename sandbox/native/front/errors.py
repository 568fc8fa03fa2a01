"""The compiler's errors: the message, the source line and a caret."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import ast


class Origin(NamedTuple):
    """The origin of a piece of source: the file's name and its lines, without line ends."""

    filename: str
    lines: tuple[str, ...]

    def text(self, line: int) -> str:
        """The source line *line* (1-based), or an empty string when the file has no such line."""
        return self.lines[line - 1] if 0 < line <= len(self.lines) else ""


class At(NamedTuple):
    """A stretch of source: first line and column, last line and the column after it (1-based, in UTF-8 bytes)."""

    line: int
    column: int
    end_line: int
    end_column: int


class LocatedError(Exception):
    """Something wrong at a position, found where the source text is not at hand."""

    def __init__(self, at: At, message: str) -> None:
        super().__init__(message)
        self.at = at


class NativeError(SyntaxError):
    """A function or declaration that the native language does not accept.

    Carries `filename`, `lineno`, `offset`, `text`, `end_lineno` and `end_offset` like every SyntaxError
    (offsets are 1-based, in characters); `msg` names the construct and says what to write instead.
    """

    unknown: str = ""
    """The unknown name, if that is the error: it may be defined later."""

    def render(self) -> str:
        """The error as text: place, message, source line and caret."""
        return render(self)


class NativeWarning(SyntaxWarning):
    """A warning: accepted, but probably not intended."""


def position(node: ast.AST) -> At:
    """The location of *node*."""
    line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
    end_line = getattr(node, "end_lineno", None) or line
    end_column = getattr(node, "end_col_offset", None) or column
    return At(line, column + 1, end_line, end_column + 1)


def error_at(origin: Origin, at: At, message: str) -> NativeError:
    """A NativeError that points at *at* in the source *origin*."""
    text = origin.text(at.line)
    offset = _characters(text, at.column)
    end_offset = _characters(origin.text(at.end_line), at.end_column)
    return NativeError(message, (origin.filename, at.line, offset, text + "\n", at.end_line, end_offset))


def render(error: SyntaxError) -> str:
    """*error* as `file:line:column: message`, the source line and carets under the error."""
    place = f"{error.filename}:{error.lineno}:{error.offset}: error: {error.msg}"
    text = (error.text or "").rstrip("\n")
    if not text.strip():
        return place
    begin = (error.offset or 1) - 1
    same_line = error.end_lineno == error.lineno and error.end_offset is not None
    end = (error.end_offset or 0) - 1 if same_line else len(text)
    pad = "".join("\t" if c == "\t" else " " for c in text[:begin])
    return f"{place}\n    {text}\n    {pad}{'^' * max(1, end - begin)}"


def _characters(text: str, utf8_column: int) -> int:
    return len(text.encode()[: utf8_column - 1].decode(errors="replace")) + 1
