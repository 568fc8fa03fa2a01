"""The grammar of scripts: text -> lists of pipelines of commands."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TypeAlias

from tests.busybox.tokens import IncompleteError, Token, Tokens, UnsupportedError

__all__ = ["IncompleteError", "UnsupportedError", "parse_script"]

_NAME = re.compile(r"[A-Za-z_]\w*")
_FUNCTION = re.compile(r"([A-Za-z_]\w*)\(\)")


@dataclass
class Redirection:
    """A redirection: `[FD]OPERATOR TARGET`. The target of `<<` is the text of the here-document."""

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
class Subshell(Command):
    """`( BODY )`."""

    body: Script


@dataclass
class Background(Command):
    """`BODY &`."""

    body: Script


@dataclass
class Function(Command):
    """`NAME() BODY`."""

    name: str
    body: Command


@dataclass
class For(Command):
    """`for NAME in WORDS; do BODY done`; without words, the script's arguments."""

    name: str
    words: list[str] | None
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


@dataclass
class Case(Command):
    """`case WORD in PATTERN|PATTERN) BODY;; ... esac`."""

    word: str
    branches: list[tuple[list[str], Script]]


@dataclass
class Pipeline:
    """Commands joined by `|`. `condition`: the operator before it, `;`, `&&` or `||`. `inverted`: after `!`."""

    condition: str
    commands: list[Command]
    inverted: bool


Script: TypeAlias = list[Pipeline]


def parse_script(text: str) -> Script:
    """Parse a script. Raises UnsupportedError; IncompleteError if more lines would complete it."""
    parser = _Parser(Tokens(text).found)
    script = parser.script()
    if not parser.is_at_end:
        raise UnsupportedError(parser.next[1])
    return script


_BREAKS = (("operator", ";"), ("operator", "\n"))


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens, self._at = tokens, 0

    @property
    def is_at_end(self) -> bool:
        return self._at == len(self._tokens)

    @property
    def next(self) -> Token:
        """The next token; two empty texts at the end."""
        return ("", "") if self.is_at_end else self._tokens[self._at]

    def _takes(self, *expected: Token) -> str:
        """The next token's text, if it is one of these; it is then consumed."""
        found = self.next
        if found not in expected:
            return ""
        self._at += 1
        return found[1]

    def _take(self, *words: str) -> str:
        """The next token, which must be one of these words or operators."""
        found = self._takes(*((kind, word) for word in words for kind in ("word", "operator")))
        if not found:
            raise IncompleteError(" or ".join(words)) if self.is_at_end else UnsupportedError(self.next[1])
        return found

    def _skip_breaks(self) -> None:
        while self._takes(*_BREAKS):
            pass

    def _skip_newlines(self) -> None:
        while self._takes(("operator", "\n")):
            pass

    # -- lists ----------------------------------------------------------------------------------------------------

    def script(self, *ends: str) -> Script:
        """The pipelines up to one of the words or operators `ends`, or to the end."""
        found: Script = []
        condition = ";"
        while True:
            if condition == ";":
                self._skip_breaks()
            self._skip_newlines()
            if self.is_at_end or self.next[1] in ends:
                if condition != ";":
                    raise IncompleteError("a command") if self.is_at_end else UnsupportedError(self.next[1])
                return found
            found.append(self._pipeline(condition))
            if self._takes(("operator", "&")):
                _put_into_background(found)
                condition = ";"
            else:
                condition = self._takes(("operator", "&&"), ("operator", "||")) or ";"

    def _pipeline(self, condition: str) -> Pipeline:
        made = Pipeline(condition, [], False)
        while self._takes(("word", "!")):
            made.inverted = not made.inverted
        made.commands.append(self._command())
        while self._takes(("operator", "|")):
            self._skip_newlines()
            made.commands.append(self._command())
        return made

    def _command(self) -> Command:
        kind, word = self.next
        compound = {
            "(": self._subshell, "case": self._case, "for": self._for, "if": self._if, "until": self._while,
            "while": self._while, "{": self._group,
        }  # fmt: skip
        if name := self._function_name():
            self._skip_breaks()
            return Function(name, self._command())
        if word not in compound or kind == "redirection":
            return self._simple()
        self._at += 1
        made = compound[word](word)
        while self.next[0] == "redirection":
            made.redirections.append(self._redirection())
        return made

    def _function_name(self) -> str:
        """The name of a function whose definition begins here, which is consumed with its parentheses; or ''."""
        word = self.next[1]
        if function := _FUNCTION.fullmatch(word):
            self._at += 1
            return function[1]
        if _NAME.fullmatch(word) and self._tokens[self._at + 1 : self._at + 3] == [
            ("operator", "("),
            ("operator", ")"),
        ]:
            self._at += 3
            return word
        return ""

    def _simple(self) -> Simple:
        made = Simple([])
        while self.next[0] in ("word", "redirection"):
            if self.next[0] == "redirection":
                made.redirections.append(self._redirection())
            else:
                made.words.append(self._word())
        if not made.words and not made.redirections:
            raise IncompleteError("a command") if self.is_at_end else UnsupportedError(self.next[1])
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

    def _subshell(self, _word: str) -> Subshell:
        made = Subshell(self.script(")"))
        self._take(")")
        return made

    def _for(self, _word: str) -> For:
        name = self._word()
        if not _NAME.fullmatch(name):
            raise UnsupportedError(name)
        self._skip_breaks()
        words: list[str] | None = None
        if self._takes(("word", "in")):
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

    def _case(self, _word: str) -> Case:
        made = Case(self._word(), [])
        self._skip_breaks()
        self._take("in")
        self._skip_breaks()
        while not self._takes(("word", "esac")):
            made.branches.append(self._branch())
            self._skip_breaks()
        return made

    def _branch(self) -> tuple[list[str], Script]:
        """A branch of `case`, with the `;;` after it."""
        if self.is_at_end:
            raise IncompleteError("esac")
        self._takes(("operator", "("))
        patterns = [self._word()]
        while self._takes(("operator", "|")):
            patterns.append(self._word())
        self._take(")")
        body = self.script(";;", "esac")
        if self.next != ("word", "esac"):
            self._take(";;")
        return patterns, body


def _put_into_background(found: Script) -> None:
    """Make one background command of the last pipelines that `&&` and `||` join."""
    first = max(index for index, pipeline in enumerate(found) if pipeline.condition == ";")
    job = Background(found[first:])
    found[first:] = [Pipeline(";", [job], False)]
