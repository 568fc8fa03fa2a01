"""Parse the arguments of a probe event: abbreviations, names, types, and the limits of a whole event.

The abbreviations are `$arg*` and `$argN` for parameters, `$vars` for variables, `:%pd` and `:%pD` for the name of a dentry.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass

from ftrace.core.kstrtox import kstrtouint, simple_strtoul
from ftrace.tracing.probe_args.errors import ErrorCode, ProbeError, error
from ftrace.tracing.probe_args.fetch import (
    Argument,
    Comm,
    Dereference,
    EntryArgument,
    Fetch,
    Immediate,
    ImmediateString,
    Register,
    ReturnValue,
    StackWord,
    Store,
)
from ftrace.tracing.probe_args.grammar import FetchParser
from ftrace.tracing.probe_args.scope import Scope
from ftrace.tracing.probe_args.types import (
    KNOWN_TYPES,
    TYPES,
    Bitfield,
    FetchType,
    find_type,
    is_good_name,
    parse_bitfield,
)

MAX_ARGUMENTS = 128
MAX_EVENT_SIZE = 3072
"""The maximum size of an event's fields, without the text of strings, in bytes."""
_MAX_BODY = 63
_MAX_NAME = 32
_MAX_COUNT = 64
_RESERVED = frozenset(
    (
        "common_type", "common_flags", "common_preempt_count", "common_pid", "common_tgid",
        "__probe_ip", "__probe_ret_ip", "__probe_func",
    )
)  # fmt: skip
FIRST_ARGUMENT = 2
"""The index of the first argument among a definition's words."""


def parse_arguments(words: Sequence[str], scope: Scope) -> list[Argument]:
    """The arguments in `words`, which are already expanded. Raises ProbeError for the wrong word."""
    if len(words) > MAX_ARGUMENTS:
        raise ProbeError(errno.E2BIG)
    arguments: list[Argument] = []
    for index, word in enumerate(words):
        try:
            arguments.append(_argument(word, arguments, scope))
        except ProbeError as wrong:
            raise wrong.at_word(index + FIRST_ARGUMENT) from None
    return arguments


def _argument(word: str, before: Sequence[Argument], scope: Scope) -> Argument:
    name, equals, body = word.partition("=")
    if equals:
        if len(name) > _MAX_NAME:
            raise error(ErrorCode.ARG_NAME_TOO_LONG)
        if not name:
            raise error(ErrorCode.NO_ARG_NAME)
    else:
        name, body = _generated_name(word, len(before)), word
    if not is_good_name(name):
        raise error(ErrorCode.BAD_ARG_NAME)
    if name in _RESERVED or any(name == argument.name for argument in before):
        raise error(ErrorCode.USED_ARG_NAME)
    size = sum(argument.size for argument in before)
    return _parse_body(name, body, len(word) - len(body), size, scope)


def _generated_name(word: str, index: int) -> str:
    """The default name of an argument: the parameter's name, else argN."""
    name = word.partition(":")[0]
    return name if is_good_name(name) else f"arg{index + 1}"


def _parse_body(name: str, body: str, offset: int, size_before: int, scope: Scope) -> Argument:
    if len(body) > _MAX_BODY:
        raise error(ErrorCode.ARG_TOO_LONG, offset, number=errno.E2BIG)
    if not body:
        raise error(ErrorCode.NO_ARG_BODY, offset)
    written = _split_type(body, offset)
    parser = FetchParser(scope, offset)
    fetch = parser.parse(written.text)
    kind, bits = written.type, None
    if parser.typed.type is not None:
        if written.name in ("string", "ustring"):
            fetch = _text_behind(fetch, parser, written.name)
        elif written.name is None:
            kind, bits = parser.typed.fetch_type, parser.typed.bits
    if size_before + kind.size * max(written.count, 1) > MAX_EVENT_SIZE:
        raise error(ErrorCode.EVENT_TOO_BIG, parser.offset, number=errno.E2BIG)
    at_type = parser.offset + written.offset
    store = _store_of(kind, written.count, fetch, at_type)
    if store in (Store.SYMBOL_TEXT, Store.STRING_POINTERS):
        parser.take_step()
    if written.name is not None:
        bits = parse_bitfield(written.name, kind, at_type)
    if bits is not None:
        _take_step_of_bits(parser, None if written.name is None else at_type)
    if written.count:
        _check_array(fetch, store, at_type)
        parser.take_step(errno.E2BIG)
    return Argument(name, body, kind, written.count, fetch, store, bits)


# -- types --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _TypedBody:
    """An argument's body and its type: `name` is None if no type is given; `offset`: where the type begins."""

    text: str
    name: str | None
    type: FetchType
    offset: int
    count: int


def _split_type(body: str, offset: int) -> _TypedBody:
    text, colon, written = body.partition(":")
    name, count = _split_count(written, offset + len(text) + 1) if colon else (None, 0)
    at_type = len(text) + 1 if colon else 0
    if text in ("$comm", "$COMM") or text.startswith('\\"'):
        if count or name not in (None, "string"):
            raise error(ErrorCode.NEED_STRING_TYPE, offset + at_type)
        return _TypedBody(text, name, TYPES["string"], at_type, 0)
    kind = find_type(name)
    if kind is None:
        raise error(ErrorCode.BAD_TYPE, offset + at_type, hint=f"types are {KNOWN_TYPES}")
    return _TypedBody(text, name, kind, at_type, count)


def _split_count(written: str, offset: int) -> tuple[str, int]:
    """The type's name and the count in brackets after it, 0 if there is none."""
    name, bracket, rest = written.partition("[")
    if not bracket:
        return name, 0
    offset += len(name) + 1
    number, closed, suffix = rest.partition("]")
    if not closed:
        raise error(ErrorCode.ARRAY_NO_CLOSE, offset + len(rest))
    if suffix:
        raise error(ErrorCode.BAD_ARRAY_SUFFIX, offset + len(number) + 1)
    try:
        count = kstrtouint(number)
    except OSError:
        count = 0
    if not count:
        raise error(ErrorCode.BAD_ARRAY_NUM, offset)
    if count > _MAX_COUNT:
        raise error(ErrorCode.ARRAY_TOO_BIG, offset)
    return name, count


def _text_behind(fetch: Fetch, parser: FetchParser, kind: str) -> Fetch:
    """The fetch of a parameter or field as a string: a `char *` is dereferenced; a `char[]` is the text itself."""
    if parser.typed.is_text:
        return fetch
    if not parser.typed.leads_to_text:
        raise error(ErrorCode.BAD_TYPE4STR, parser.offset)
    parser.take_step(errno.E2BIG)
    return Fetch(fetch.source, (*fetch.dereferences, Dereference(0, kind == "ustring")))


def _take_step_of_bits(parser: FetchParser, at_type: int | None) -> None:
    """Count the step that extracts the bits. `at_type`: where the bitfield is written, None if it is a field's type."""
    try:
        parser.take_step()
    except ProbeError:
        if at_type is None:
            raise
        raise error(ErrorCode.BAD_BITFIELD, at_type) from None


def _store_of(kind: FetchType, count: int, fetch: Fetch, at_type: int) -> Store:
    """How the value is stored. Raises ProbeError if the type is a string and the fetch does not fit it."""
    if kind.name == "symstr":
        _check_symstr(fetch, at_type)
        return Store.SYMBOL_TEXT
    if not kind.is_string:
        return Store.MEMORY if fetch.reads_memory else Store.VALUE
    if count and (fetch.reads_memory or isinstance(fetch.source, Immediate)):
        return Store.STRING_POINTERS
    if fetch.reads_memory:
        return Store.STRING
    for source, store in ((Comm, Store.COMM), (ImmediateString, Store.LITERAL), (Immediate, Store.STRING_AT_VALUE)):
        if isinstance(fetch.source, source):
            return store
    raise error(ErrorCode.BAD_STRING, at_type)


def _check_symstr(fetch: Fetch, at_type: int) -> None:
    if fetch.reads_memory:
        fits = not fetch.dereferences[-1].user
    else:
        fits = isinstance(fetch.source, (Register, StackWord, ReturnValue, EntryArgument))
    if not fits:
        raise error(ErrorCode.BAD_SYMSTRING, at_type)


def _check_array(fetch: Fetch, store: Store, at_type: int) -> None:
    user_memory = store is Store.MEMORY and fetch.dereferences[-1].user
    if store not in (Store.MEMORY, Store.STRING_POINTERS) or user_memory:
        raise error(ErrorCode.BAD_STRING, at_type)


__all__ = ["FIRST_ARGUMENT", "MAX_ARGUMENTS", "MAX_EVENT_SIZE", "Bitfield", "parse_arguments"]


_MAX_PARAMETERS = 128
"""The maximum size of all words that are replaced by parameters' names, each with a NUL, in bytes."""
_MAX_DENTRIES = 256
_VARIABLES = "$vars"
"""perf probe's word for all variables."""


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
    """The arguments' words, with abbreviations replaced by parameters and variables. Raises ProbeError."""
    if _VARIABLES in words:
        words = [each for word in words for each in (_variables(scope) if word == _VARIABLES else [word])]
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


def _variables(scope: Scope) -> list[str]:
    """The variables that can be fetched here: at an entry or a return, the parameters. As it is if they are not known."""
    if not scope.has_parameters:
        known = scope.variables
        return [_VARIABLES] if known is None else [name for name, each in known.items() if not each.problem]
    prototype = scope.prototype
    if prototype is None:
        return [_VARIABLES]
    return [name for index, (name, _) in enumerate(prototype.parameters) if prototype.number(index) is not None]


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
