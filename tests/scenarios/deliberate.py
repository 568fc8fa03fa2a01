"""Where we do otherwise than the kernel on purpose: what of both logs is not compared.

- Without a return node our entry handler runs all the same; those lines are dropped.
- Entry data is zero at entry, that of kretprobes too, where the kernel shows what an earlier call has left; a word that nobody
  has stored in the same call becomes `*`, also of a kretprobe with an entry handler only.
- A filter that only removes functions is refused; of an fprobe that the kernel registered so, nothing is compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tests.scenarios.log import Line

_DATA = re.compile(r"(?<= data=\[)[^\]]*(?=\])")
_NEGATED = re.compile(r" *> register_fprobe (\S+) !")
_LISTING = "enabled_functions"


def comparable(ours: Sequence[Line], kernel: Sequence[str]) -> tuple[list[str], list[str]]:
    """Both logs without what is not compared."""
    lines = [line for line in ours if not line.extra]
    refused = _refused([line.text for line in lines], kernel)
    if refused:
        kept = set(_without([line.text for line in lines], refused))
        lines = [line for index, line in enumerate(lines) if index in kept]
        kernel = [kernel[index] for index in _without(kernel, refused)]
    return _masked_alike(lines, list(kernel))


def _masked_alike(ours: Sequence[Line], kernel: list[str]) -> tuple[list[str], list[str]]:
    for index, line in enumerate(ours[: len(kernel)]):
        if _DATA.sub("", line.text) == _DATA.sub("", kernel[index]):
            kernel[index] = _masked(kernel[index], line.unstored)
    return [_masked(line.text, line.unstored) for line in ours], kernel


def _masked(line: str, unstored: frozenset[int]) -> str:
    def mask(match: re.Match[str]) -> str:
        words = match[0].split(",")
        return ",".join("*" if index in unstored else word for index, word in enumerate(words))

    return _DATA.sub(mask, line) if unstored else line


def _refused(ours: Sequence[str], kernel: Sequence[str]) -> set[str]:
    """The fprobes that the kernel registered with a negated filter and we did not."""
    pairs = zip(_negated(ours), _negated(kernel), strict=False)
    return {name for (name, result), (_, theirs) in pairs if result == "= -EINVAL" and theirs == "= 0"}


def _negated(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Name and result of each registration with a negated filter."""
    for index, line in enumerate(lines[:-1]):
        match = _NEGATED.match(line)
        if match:
            yield match[1], lines[index + 1].strip()


def _without(lines: Sequence[str], names: set[str]) -> list[int]:
    """Which lines say nothing of these fprobes: not their handlers and what those did, not the steps that name them."""
    kept = []
    head = ""
    for index, line in enumerate(lines):
        if head and _belongs(line, head):
            continue
        head = line if _is_about(line.split(), names) else ""
        if not head:
            kept.append(index)
    return kept


def _is_about(words: Sequence[str], names: set[str]) -> bool:
    if words[0] in (">", "-"):
        return words[1] == _LISTING or not names.isdisjoint(words[2:3])
    return words[0].rpartition(".")[0] in names


def _belongs(line: str, head: str) -> bool:
    """Whether `line` belongs to the step, action or handler that began with `head`."""
    level, outer = (len(text) - len(text.lstrip(" ")) for text in (line, head))
    if level != outer:
        return level > outer
    words = head.split()
    return line.lstrip().startswith("= ") or (words[1:2] == [_LISTING] and not line.lstrip().startswith(">"))
