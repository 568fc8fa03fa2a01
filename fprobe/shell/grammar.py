"""The grammar of scripts: text -> lists of pipelines of commands. Words keep their quotes; the shell expands them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TypeAlias

SUBSTITUTION = (
    r"\$\(\((?:[^()]|\([^()]*\))*\)\)"
    r"""|\$\((?:[^()'"]|'[^']*'|"(?:\\.|[^"\\])*"|\([^()]*\))*\)"""
    r"|`[^`]*`"
    r"|\$\{\w+\}"
)
"""A pattern for `$((EXPRESSION))`, `$(COMMANDS)`, the same in backquotes, and `${NAME}`."""
_TOKEN = re.compile(
    rf"""[^\S\n]*(?:(?P<comment>\#[^\n]*)|(?P<redirection>\d*(?:<>|>>|>&|<&|>|<))|(?P<operator>&&|\|\||;|\||\n)|"""
    rf"""(?P<word>(?:\\.|'[^']*'|"(?:{SUBSTITUTION}|\\.|[^"\\])*"|{SUBSTITUTION}|[^\s;|&<>'"\\])+))""",
    re.DOTALL,
)
_NAME = re.compile(r"[A-Za-z_]\w*")


class UnsupportedError(Exception):
    """A command or syntax that this shell does not support."""


class IncompleteError(UnsupportedError):
    """The script ends in a compound command."""


@dataclass
class Redirection:
    """A redirection: `[FD]OPERATOR TARGET`."""

    fd: int
    operator: str
    target: str


@dataclass
class Command:
    """Base of all commands."""

    redirections: list[Redirection] = field(default_factory=list, init=False)


@dataclass
class Simple(Command):
    """Words: assignments, the name of a program, and its arguments."""

    words: list[str]


@dataclass
class Group(Command):
    """`{ BODY }`."""

    body: Script


@dataclass
class For(Command):
    """`for NAME in WORDS; do BODY done`."""

    name: str
    words: list[str]
    body: Script


@dataclass
class While(Command):
    """`while CONDITION do BODY done`; `until`: while it fails."""

    condition: Script
    body: Script
    until: bool


@dataclass
class If(Command):
    """`if CONDITION then BODY elif ... else OTHERWISE fi`."""

    branches: list[tuple[Script, Script]]
    otherwise: Script


Script: TypeAlias = list[tuple[str, list[Command]]]
"""Pipelines, each with the operator before it: `;`, `&&` or `||`."""


def parse_script(text: str) -> Script:
    """Parse a script. Raises UnsupportedError; IncompleteError if more lines would complete it."""
    parser = _Parser(_tokens(text))
    script = parser.script()
    if not parser.is_at_end:
        raise UnsupportedError(parser.next[1])
    return script


def _tokens(text: str) -> list[tuple[str, str]]:
    """Kind and text of each token. Raises UnsupportedError for text that is no token."""
    found, at = [], 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.end() == at:
            raise UnsupportedError(text[at:])
        if match.lastgroup != "comment":
            found.append((str(match.lastgroup), match[str(match.lastgroup)]))
        at = match.end()
    return found


class _Parser:
    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens, self._at = tokens, 0

    @property
    def is_at_end(self) -> bool:
        return self._at == len(self._tokens)

    @property
    def next(self) -> tuple[str, str]:
        """The next token; two empty texts at the end."""
        return ("", "") if self.is_at_end else self._tokens[self._at]

    def _takes(self, *expected: tuple[str, str]) -> str:
        """The next token's text, if it is one of these; it is then consumed."""
        found = self.next
        if found not in expected:
            return ""
        self._at += 1
        return found[1]

    def _take(self, *words: str) -> str:
        """The next token, which must be one of these words."""
        found = self._takes(*(("word", word) for word in words))
        if not found:
            raise IncompleteError(" or ".join(words)) if self.is_at_end else UnsupportedError(self.next[1])
        return found

    def _skip_breaks(self) -> None:
        while self._takes(("operator", ";"), ("operator", "\n")):
            pass

    # -- lists ----------------------------------------------------------------------------------------------------

    def script(self, *ends: str) -> Script:
        """The pipelines up to one of the words `ends`, or to the end."""
        found: Script = []
        condition = ";"
        while True:
            self._skip_breaks()
            kind, text = self.next
            if self.is_at_end or (kind == "word" and text in ends):
                return found
            found.append((condition, self._pipeline()))
            condition = self._takes(("operator", "&&"), ("operator", "||")) or ";"

    def _pipeline(self) -> list[Command]:
        commands = [self._command()]
        while self._takes(("operator", "|")):
            commands.append(self._command())
        return commands

    def _command(self) -> Command:
        kind, word = self.next
        compound = {"{": self._group, "for": self._for, "if": self._if, "until": self._while, "while": self._while}
        if kind != "word" or word not in compound:
            return self._simple()
        self._at += 1
        made = compound[word](word)
        while self.next[0] == "redirection":
            made.redirections.append(self._redirection())
        return made

    def _simple(self) -> Simple:
        made = Simple([])
        while self.next[0] in ("word", "redirection"):
            if self.next[0] == "redirection":
                made.redirections.append(self._redirection())
            else:
                made.words.append(self._word())
        if not made.words and not made.redirections:
            raise UnsupportedError(self.next[1])
        return made

    def _word(self) -> str:
        kind, text = self.next
        if kind != "word":
            raise UnsupportedError(text)
        self._at += 1
        return text

    def _redirection(self) -> Redirection:
        token = self.next[1]
        self._at += 1
        operator = token.lstrip("0123456789")
        number = token[: len(token) - len(operator)]
        return Redirection(int(number or ("<" not in operator)), operator, self._word())

    # -- compound commands ----------------------------------------------------------------------------------------

    def _group(self, _word: str) -> Group:
        made = Group(self.script("}"))
        self._take("}")
        return made

    def _for(self, _word: str) -> For:
        name = self._word()
        if not _NAME.fullmatch(name):
            raise UnsupportedError(name)
        self._take("in")
        words = []
        while self.next[0] == "word":
            words.append(self._word())
        return For(name, words, self._body())

    def _while(self, word: str) -> While:
        return While(self.script("do"), self._body(), word == "until")

    def _body(self) -> Script:
        self._skip_breaks()
        self._take("do")
        body = self.script("done")
        self._take("done")
        return body

    def _if(self, _word: str) -> If:
        made = If([], [])
        end = "elif"
        while end == "elif":
            condition = self.script("then")
            self._take("then")
            made.branches.append((condition, self.script("elif", "else", "fi")))
            end = self._take("elif", "else", "fi")
        if end == "else":
            made.otherwise = self.script("fi")
            self._take("fi")
        return made
