"""Expand abbreviations: `$arg*` and `$argN` for parameters, `:%pd` and `:%pD` for the name of a dentry."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass

from ftrace.kstrtox import simple_strtoul
from ftrace.probe_args.arguments import FIRST_ARGUMENT
from ftrace.probe_args.errors import ErrorCode, error
from ftrace.probe_args.scope import Scope

_MAX_PARAMETERS = 128
"""The maximum size of all words that are replaced by parameters' names, each with a NUL, in bytes."""
_MAX_DENTRIES = 256


@dataclass
class DentryLayout:
    """Byte offsets of the fields that `%pd` and `%pD` read; None if a program has no such structure."""

    name: int | None = None
    """Offset of the pointer to the name in a dentry."""
    of_file: int | None = None
    """Offset of the pointer to the dentry in a file."""


dentry_layout = DentryLayout()
"""The layout for `%pd` and `%pD` in this process. Until it is set, they are unknown types."""


def expand(words: Sequence[str], scope: Scope) -> list[str]:
    """The arguments' words, with abbreviations replaced by parameters. Raises ProbeError."""
    star = _find_star(words, scope)
    if not any(word.startswith("$arg") for word in words):
        return list(words)
    prototype = scope.prototype
    scope.has_read_prototype = prototype is not None
    if prototype is None or not prototype.parameters:
        if star is not None:
            last = max(index for index, word in enumerate(words) if word.startswith("$arg"))
            raise error(ErrorCode.NOSUP_BTFARG, 0, FIRST_ARGUMENT + last)
        return list(words)
    return _replaced(words, star, [name for name, _ in prototype.parameters])


def _find_star(words: Sequence[str], scope: Scope) -> int | None:
    """The index of `$arg*`; None if there is none."""
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
            # The text must fit with its NUL.
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
    """Replace `NAME=X:%pd` and `:%pD` by dereferences. Raises OSError(ENOMEM) if the text becomes too long."""
    made, used = [], 0
    for word in words:
        expanded = _dentry(word, layout)
        if expanded is not None:
            if len(expanded) >= _MAX_DENTRIES - used:
                raise OSError(
                    errno.ENOMEM, f"the words up to {word!r} expand to too many bytes; the maximum is {_MAX_DENTRIES}"
                )
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
