"""Words as the fields that they stand for: quotes, parameters, substitutions, field splitting and globs."""

from __future__ import annotations

import fnmatch
import os
import re
from abc import abstractmethod
from typing import NamedTuple

from tests.busybox.arithmetic import evaluated
from tests.busybox.files import Files
from tests.busybox.tokens import SUBSTITUTION, ParameterError, UnsupportedError

_PARAMETER = rf"{SUBSTITUTION}|\$(?:[A-Za-z_]\w*|[0-9?$!#@*])"
_PART = re.compile(
    rf"""\\(?P<escaped>.)|'(?P<single>[^']*)'|"(?P<double>(?:{SUBSTITUTION}|\\.|[^"\\])*)"|"""
    rf"""(?P<parameter>{_PARAMETER})|(?P<plain>[^'"\\$`]+|.)""",
    re.DOTALL,
)
_IN_DOUBLE = re.compile(rf"""\\(?P<escaped>["\\$`\n])|(?P<parameter>{_PARAMETER})|(?P<plain>[^\\$`]+|.)""", re.DOTALL)
_MODIFIED = re.compile(r"\$\{(\w+|[?$!#@*])(?:(:?[-=+?]|##?|%%?)(.*))?\}", re.DOTALL)
_LENGTH = re.compile(r"\$\{#(\w+)\}")
_FETCH_ARGUMENT = re.compile(r"retval|comm|COMM|stack\d*|arg(\d+|N)?")
_BACKSLASH = re.compile(r"\\([$`\\])")
_BLANK = " \t\n"
_GLOB = "*?["


class Part(NamedTuple):
    """A piece of a field. In quotes, a `*` is no glob."""

    text: str
    is_quoted: bool


class _Fields:
    """The fields of a word, as they are made."""

    def __init__(self, separators: str) -> None:
        self.found: list[list[Part]] = []
        self._current: list[Part] | None = None
        blank = re.escape("".join(letter for letter in separators if letter in _BLANK))
        other = re.escape("".join(letter for letter in separators if letter not in _BLANK))
        forms = [rf"[{blank}]*[{other}][{blank}]*" if blank else f"[{other}]"] if other else []
        self._separator = re.compile("|".join([*forms, *([f"[{blank}]+"] if blank else [])]) or r"(?!)")
        self._blank = blank

    def add(self, text: str, *, is_quoted: bool) -> None:
        """Continue the field."""
        if text or is_quoted:
            self._current = [*(self._current or []), Part(text, is_quoted)]

    def split(self, text: str) -> None:
        """Continue the field with a value that may have separators."""
        at = 0
        for separator in self._separator.finditer(text):
            self.add(text[at : separator.start()], is_quoted=False)
            self.end(is_forced=bool(separator[0].strip(_BLANK)))
            at = separator.end()
        self.add(text[at:], is_quoted=False)

    def end(self, *, is_forced: bool = False) -> None:
        """End the field; if nothing was added, there is one only if `is_forced`."""
        if self._current is not None or is_forced:
            self.found.append(self._current or [])
        self._current = None


class Expansion:
    """What a shell's words stand for.

    A name after `$` that is not set is empty; that of a fetch argument stands for itself, so that `$retval` needs no quotes.
    """

    files: Files

    def __init__(self) -> None:
        self.variables: dict[str, str] = {}
        self.arguments: list[str] = []
        self.status = 0
        self.name = "sh"
        self.job = ""
        """The number of the last job in the background."""
        self.refuses_unset = False

    @abstractmethod
    def output_of(self, script: str) -> str:
        """What a script writes to standard output."""

    def expand(self, word: str) -> list[str]:
        """The fields that a word stands for, with globs as paths. Raises ParameterError, UnsupportedError."""
        return [path for field in self._fields(word) for path in self._paths(field)]

    def text(self, word: str) -> str:
        """What a word stands for where it is not split: in an assignment, or as a file."""
        return "".join(part.text for part in self._joined(word))

    def pattern(self, word: str) -> str:
        """A word as a glob, for fnmatch."""
        return _pattern(self._joined(word))

    def _paths(self, field: list[Part]) -> list[str]:
        text = "".join(part.text for part in field)
        if any(letter in part.text for part in field if not part.is_quoted for letter in _GLOB):
            return self.files.expand(_pattern(field)) or [text]
        return [text]

    def _fields(self, word: str) -> list[list[Part]]:
        fields = _Fields(self.variables.get("IFS", _BLANK))
        for part in _PART.finditer(word):
            kind, text = str(part.lastgroup), part[str(part.lastgroup)]
            if kind == "parameter" and text in ("$@", "$*", "${@}", "${*}"):
                self._add_arguments(fields)
            elif kind == "parameter":
                fields.split(self._value(text))
            elif kind == "double":
                self._add_double(fields, text)
            elif (kind, text) != ("escaped", "\n"):
                fields.add(text, is_quoted=kind != "plain")
        fields.end()
        return fields.found

    def _joined(self, word: str) -> list[Part]:
        """The parts of a word that is not split."""
        found: list[Part] = []
        for part in _PART.finditer(word):
            kind, text = str(part.lastgroup), part[str(part.lastgroup)]
            if kind == "parameter":
                found.append(Part(self._value(text), False))
            elif kind == "double":
                found.append(Part(self.double(text), True))
            elif (kind, text) != ("escaped", "\n"):
                found.append(Part(text, kind != "plain"))
        return found

    def _add_arguments(self, fields: _Fields) -> None:
        for index, argument in enumerate(self.arguments):
            if index:
                fields.end()
            fields.split(argument)

    def _add_double(self, fields: _Fields, text: str) -> None:
        """Add what is in double quotes. `$@` makes a field of each argument."""
        before, at, after = text.partition("$@")
        if not at or before.endswith("\\"):
            fields.add(self.double(text), is_quoted=True)
            return
        if self.arguments or before or after:
            fields.add(self.double(before), is_quoted=True)
        for index, argument in enumerate(self.arguments):
            if index:
                fields.end()
            fields.add(argument, is_quoted=True)
        if after:
            fields.add(self.double(after), is_quoted=True)

    def double(self, text: str) -> str:
        """What a text in double quotes stands for."""
        return "".join(map(self._in_double, _IN_DOUBLE.finditer(text)))

    def _in_double(self, part: re.Match[str]) -> str:
        kind = part.lastgroup
        if kind == "escaped":
            return part[kind].replace("\n", "")
        return self._value(part[kind]) if kind == "parameter" else part[0]

    # -- parameters -----------------------------------------------------------------------------------------------

    def _value(self, parameter: str) -> str:
        """What a parameter, an expression or commands stand for."""
        if parameter.startswith("$((") and parameter.endswith("))"):
            return str(evaluated(self.double(parameter[3:-2]), self.variables))
        if parameter.startswith("$("):
            return self.output_of(parameter[2:-1])
        if parameter.startswith("`"):
            return self.output_of(_BACKSLASH.sub(r"\1", parameter[1:-1]))
        if length := _LENGTH.fullmatch(parameter):
            return str(len(self._parameter(length[1]) or ""))
        if not parameter.startswith("${"):
            return self._known(parameter[1:], parameter)
        if (found := _MODIFIED.fullmatch(parameter)) is None:
            raise UnsupportedError(parameter)
        name, how, word = found.groups()
        return self._modified(name, how, word) if how else self._known(name, parameter)

    def _parameter(self, name: str) -> str | None:
        """The value of a parameter; None if it is not set."""
        if name.isdigit():
            number = int(name)
            given = [self.name, *self.arguments]
            return given[number] if number < len(given) else None
        special = {"?": str(self.status), "#": str(len(self.arguments)), "!": self.job, "$": str(os.getpid())}
        if name in special:
            return special[name]
        if name in ("@", "*"):
            return self.variables.get("IFS", " ")[:1].join(self.arguments)
        return self.variables.get(name)

    def _known(self, name: str, parameter: str) -> str:
        value = self._parameter(name)
        if value is not None:
            return value
        if _FETCH_ARGUMENT.fullmatch(name):
            return parameter
        if self.refuses_unset:
            raise ParameterError(f"{name}: parameter not set")
        return ""

    def _modified(self, name: str, how: str, word: str) -> str:
        """`${NAME:-WORD}` and the like."""
        value = self._parameter(name)
        if how[0] in "#%":
            return _without(value or "", how, self.pattern(word))
        is_there = bool(value) if how[0] == ":" else value is not None
        match how[-1]:
            case "+":
                return self.text(word) if is_there else ""
            case "=" if not is_there:
                self.variables[name] = value = self.text(word)
            case "-" if not is_there:
                value = self.text(word)
            case "?" if not is_there:
                raise ParameterError(f"{name}: {self.text(word) or 'parameter not set'}")
        return value or ""


def _pattern(parts: list[Part]) -> str:
    """A glob in which what was in quotes stands for itself."""
    return "".join(re.sub(r"([*?[])", r"[\1]", part.text) if part.is_quoted else part.text for part in parts)


def _without(value: str, how: str, pattern: str) -> str:
    """The value without its shortest or longest beginning (`#`, `##`) or end (`%`, `%%`) that matches."""
    ends = range(len(value) + 1)
    if how[0] == "#":
        cuts = ends if how == "#" else reversed(ends)
        return next((value[cut:] for cut in cuts if fnmatch.fnmatchcase(value[:cut], pattern)), value)
    cuts = reversed(ends) if how == "%" else ends
    return next((value[:cut] for cut in cuts if fnmatch.fnmatchcase(value[cut:], pattern)), value)
