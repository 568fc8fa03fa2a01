"""Abbreviations: `$arg*` and `$argN` for parameters, `:%pd` and `:%pD` for the name of a dentry."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass

from ftrace.kstrtox import simple_strtoul
from ftrace.probe_args.arguments import FIRST_ARGUMENT
from ftrace.probe_args.errors import ErrorCode, error
from ftrace.probe_args.scope import Scope

_MAX_PARAMETERS = 128
"""Bytes of all words that are replaced by parameters' names, each with a NUL."""
_MAX_DENTRIES = 256


@dataclass
class DentryLayout:
    """Offsets, in bytes, of the fields that `%pd` and `%pD` follow; None where a program has no such structure."""

    name: int | None = None
    """Of the pointer to its name in a dentry."""
    of_file: int | None = None
    """Of the pointer to its dentry in a file."""


dentry_layout = DentryLayout()
"""What `%pd` and `%pD` mean in this process; unset, they are unknown types."""


def expand(words: Sequence[str], scope: Scope) -> list[str]:
    """The arguments' words, with parameters in place of abbreviations. Raises ProbeError."""
    star = _find_star(words, scope)
    if not any(word.startswith("$arg") for word in words):
        return list(words)
    prototype = scope.prototype
    if prototype is None or not prototype.parameters:
        if star is not None:
            last = max(index for index, word in enumerate(words) if word.startswith("$arg"))
            raise error(ErrorCode.NOSUP_BTFARG, 0, FIRST_ARGUMENT + last)
        return list(words)
    return _replaced(words, star, [name for name, _ in prototype.parameters])


def _find_star(words: Sequence[str], scope: Scope) -> int | None:
    """The index of `$arg*`; None if it is not there."""
    star = None
    for index, word in enumerate(words):
        if not word.startswith("$arg"):
            continue
        at = index + FIRST_ARGUMENT
        if not scope.has_parameters:
            raise error(ErrorCode.NOFENTRY_ARGS, 0, at)
        following = word[4:5]
        if following.isascii() and following.isdigit():
            continue
        if following != "*":
            raise error(ErrorCode.BAD_VAR, 0, at)
        if star is not None:
            raise error(ErrorCode.DOUBLE_ARGS, 0, at)
        star = index
    return star


def _replaced(words: Sequence[str], star: int | None, names: Sequence[str]) -> list[str]:
    made: list[str] = []
    used = 0
    for index, word in enumerate(words):
        if not word.startswith("$arg"):
            made.append(word)
            continue
        at = index + FIRST_ARGUMENT
        put = names if index == star else [_numbered(word, names, at)]
        for name in put:
            # The text and its NUL have to fit.
            if len(name) >= _MAX_PARAMETERS - used:
                raise error(ErrorCode.ARGS_2LONG, 0, at, errno.E2BIG)
            used += len(name) + 1
            made.append(name)
    return made


def _numbered(word: str, names: Sequence[str], at: int) -> str:
    number, rest = simple_strtoul(word[4:], 10)
    if rest and not rest.startswith(":"):
        raise error(ErrorCode.BAD_VAR, 0, at, errno.ENOENT)
    if number == 0:
        raise error(ErrorCode.NO_BTF_ENTRY, 0, at, errno.ENOENT)
    if number > len(names):
        raise error(ErrorCode.NO_BTFARG, 0, at, errno.ENOENT)
    return names[number - 1] + rest


def expand_dentries(words: Sequence[str], layout: DentryLayout) -> list[str]:
    """`NAME=X:%pd` and `:%pD` as dereferences. Raises OSError(ENOMEM) if the text gets too long."""
    made, used = [], 0
    for word in words:
        expanded = _dentry(word, layout)
        if expanded is not None:
            if len(expanded) >= _MAX_DENTRIES - used:
                raise OSError(errno.ENOMEM, f"{word!r} and what is before it expand to over {_MAX_DENTRIES} bytes")
            used += len(expanded) + 1
        made.append(word if expanded is None else expanded)
    return made


def _dentry(word: str, layout: DentryLayout) -> str | None:
    if layout.name is None or not word.endswith((":%pd", ":%pD")):
        return None
    before, equals, after = word[:-4].partition("=")
    name, body = (before, after) if equals else ("", before)
    if word.endswith("d"):
        return f"{name}{equals}+0x0(+{layout.name:#x}({body})):string"
    if layout.of_file is None:
        return None
    return f"{name}{equals}+0x0(+{layout.name:#x}(+{layout.of_file:#x}({body}))):string"
