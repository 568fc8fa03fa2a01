"""Completion in bash, which takes `:` and `=` for ends of words: `hist:keys=count` are five words there, and one of ours."""

from __future__ import annotations

import os

from click.shell_completion import BashComplete, CompletionItem, add_completion_class, split_arg_string

_WORDS, _REPLY = "COMP_CWORD=$COMP_CWORD", "COMPREPLY+=($value)"
_UNFINISHED = 'COMPREPLY+=("$value")\n            [[ $value == *[:=] ]] && compopt -o nospace'


class Bash(BashComplete):
    """Completes the words that the line has, and answers with what bash replaces of the last one."""

    source_template = BashComplete.source_template.replace(
        _WORDS, f'{_WORDS} COMP_LINE="${{COMP_LINE:0:$COMP_POINT}}"'
    ).replace(_REPLY, _UNFINISHED)
    _kept = ""
    """What precedes, in the last of our words, the one that bash replaces."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the last one, and that."""
        number = int(os.environ["COMP_CWORD"])
        found = os.environ["COMP_WORDS"].split("\n")[: number + 1]
        words = _joined(found, os.environ.get("COMP_LINE", ""))
        if words is None:
            return super().get_completion_args()
        *before, last = words
        if len(last) > 1:
            self._kept = _unquoted("".join(last if last[-1] in (":", "=") else last[:-1]))
        return [_unquoted("".join(word)) for word in before[1:]], _unquoted("".join(last))

    def format_completion(self, item: CompletionItem) -> str:
        """A line for the script."""
        return f"{item.type},{item.value.removeprefix(self._kept) if item.type == 'plain' else item.value}"


def _joined(parts: list[str], line: str) -> list[list[str]] | None:
    """The parts of each word: those between which the line has no blank. None if they are not the end of the line."""
    words: list[list[str]] = []
    is_apart = True
    for part in reversed(parts):
        if not line.endswith(part):
            return None
        rest = line[: len(line) - len(part)]
        if is_apart:
            words.insert(0, [])
        words[0].insert(0, part)
        line = rest.rstrip()
        is_apart = line != rest
    return words


def _unquoted(text: str) -> str:
    return "".join(split_arg_string(text))


add_completion_class(Bash)
