"""Scripts as tokens. Words keep their quotes; the shell expands them."""

from __future__ import annotations

import re


class UnsupportedError(Exception):
    """A command or syntax that this shell does not support."""


class IncompleteError(UnsupportedError):
    """The script ends in a compound command, in a quotation or in a here-document."""


class ParameterError(Exception):
    """A parameter that must be set is not, or a word is no number: the script ends."""


_TEXTS = r"""\\.|'[^']*'|"(?:\\.|[^"\\])*\""""


def _nested(opening: str, closing: str, depth: int, excluded: str = "", first: str = _TEXTS) -> str:
    """A pattern for balanced brackets, up to `depth` inside each other, and what is between them: `first`, or no `excluded`."""
    opening, closing = re.escape(opening), re.escape(closing)
    inner = rf"""{first}|[^'"\\{opening}{closing}{excluded}]"""
    pattern = f"{opening}(?:{inner})*{closing}"
    for _ in range(depth):
        pattern = f"{opening}(?:{inner}|{pattern})*{closing}"
    return pattern


_COMMANDS, _BRACES = _nested("(", ")", 4), _nested("{", "}", 2)
SUBSTITUTION = rf"\${_COMMANDS}|`(?:\\.|[^`\\])*`|\${_BRACES}"
r"""A pattern for `$((EXPRESSION))`, `$(COMMANDS)`, the same in backquotes, and `${NAME...}`."""
_PARENTHESES = _nested("(", ")", 4, r"\s`;|&<>", f"{_TEXTS}|{SUBSTITUTION}")
_WORD = rf"""(?:\\.|'[^']*'|"(?:{SUBSTITUTION}|\\.|[^"\\])*"|{SUBSTITUTION}|{_PARENTHESES}|[^\s;|&<>'"\\()`])+"""
_TOKEN = re.compile(
    rf"""(?:[^\S\n]|\\\n)*(?:(?P<comment>\#[^\n]*)|(?P<redirection>\d*(?:<<-?|<>|>>|>\||>&|<&|>|<))|"""
    rf"""(?P<operator>&&|\|\||;;|[;|&\n()])|(?P<word>{_WORD}))""",
    re.DOTALL,
)
_OPEN = re.compile(r"""(?:[^\S\n]|\\\n)*(?:['"`]|[^\s'"]*(?:\$[({]|['"`]))""")
_QUOTED = re.compile(r"""\\(?P<escaped>.)|'(?P<single>[^']*)'|"(?P<double>[^"]*)"|""", re.DOTALL)
_DOCUMENT_QUOTE = re.compile(r'\\?"')

Token = tuple[str, str]
"""Kind and text."""


class Tokens:
    """The tokens of a script, in `found`. Raises UnsupportedError for text that is no token."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text.rstrip(), 0
        self.found: list[Token] = []
        self._documents: list[int] = []
        """The positions in `found` of the ends of here-documents that are not read yet."""
        while self._at < len(self._text):
            self._take()
        if self._documents:
            self._read_documents()

    def _take(self) -> None:
        match = _TOKEN.match(self._text, self._at)
        if match is None or match.end() == self._at:
            rest = self._text[self._at :]
            raise IncompleteError("the end of a quotation") if _OPEN.match(rest) else UnsupportedError(rest)
        kind, self._at = str(match.lastgroup), match.end()
        if kind == "comment":
            return
        self.found.append((kind, match[kind]))
        if len(self.found) > 1 and kind == "word" and self.found[-2][1].lstrip("0123456789") in ("<<", "<<-"):
            self._documents.append(len(self.found) - 1)
        elif self.found[-1] == ("operator", "\n"):
            self._read_documents()

    def _read_documents(self) -> None:
        """Replace the word at which each here-document ends by its text, as a word in quotes."""
        for index in self._documents:
            word, strips = self.found[index][1], self.found[index - 1][1].endswith("-")
            text = self._document(_QUOTED.sub(lambda part: part[part.lastgroup or 0] or "", word), strips)
            is_quoted = any(quote in word for quote in "'\"\\")
            self.found[index] = ("word", _in_single(text) if is_quoted else _in_double(text))
        self._documents = []

    def _document(self, end: str, strips_tabs: bool) -> str:
        """The lines up to the line `end`."""
        lines = ""
        while self._at < len(self._text):
            line, _, _ = self._text[self._at :].partition("\n")
            self._at = min(self._at + len(line) + 1, len(self._text))
            line = line.lstrip("\t") if strips_tabs else line
            if line == end:
                return lines
            lines += f"{line}\n"
        raise IncompleteError(f"<< {end}")


def _in_single(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _in_double(text: str) -> str:
    r"""The text in double quotes, where `"` is escaped, and `\"` keeps its backslash."""
    return '"' + _DOCUMENT_QUOTE.sub(lambda found: "\\\\" * (len(found[0]) - 1) + '\\"', text) + '"'
