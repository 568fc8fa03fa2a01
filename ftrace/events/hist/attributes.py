"""Split a hist trigger's text at colons into attributes; names are not looked up yet."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ftrace.events.hist.errors import HistErrorCode, HistErrors, silent
from ftrace.kstrtox import kstrtoull
from ftrace.ring_buffer.clock import CLOCKS

MAX_VARIABLES = 16
MAX_ACTIONS = 8
_DEFAULT_BITS, _LEAST_BITS, _MOST_BITS = 11, 7, 17
_TIME_IN_USECS = re.compile(r"\bcommon_timestamp\.usecs\b")
_HANDLERS = ("onmatch(", "onmax(", "onchange(")


@dataclass
class Attributes:
    """The attributes in a hist trigger's text (struct hist_trigger_attrs)."""

    keys: str = ""
    values: str | None = None
    sort: str | None = None
    name: str = ""
    clock: str = "global"
    bits: int = _DEFAULT_BITS
    """Binary logarithm of the number of entries."""
    pause: bool = False
    cont: bool = False
    clear: bool = False
    no_hitcount: bool = False
    assignments: list[str] = field(default_factory=list)
    actions: list[str] = field(default_factory=list)

    @property
    def time_unit(self) -> int:
        """Units of the trace clock in a unit of all its times: 1000 if one of them is `common_timestamp.usecs`, else 1."""
        texts = (self.keys, self.values or "", *self.assignments, *self.actions)
        is_in_ns = all(clock.in_ns for clock in CLOCKS if clock.name == self.clock)
        return 1000 if is_in_ns and any(_TIME_IN_USECS.search(text) for text in texts) else 1

    @property
    def updates_only(self) -> bool:
        """Whether the command changes an existing trigger (pause, cont or clear)."""
        return self.pause or self.cont or self.clear


def split_attributes(text: str, errors: HistErrors) -> Attributes:
    """The attributes in `keys=...:vals=...`. Raises OSError(EINVAL)."""
    found = Attributes()
    for part in text.split(":"):
        if "=" in part:
            if part.endswith("=") and part.count("=") == 1:
                raise errors.error(HistErrorCode.EMPTY_ASSIGNMENT, part)
            _assign(found, part, errors)
        elif part == "pause":
            found.pause = True
        elif part in ("cont", "continue"):
            found.cont = True
        elif part == "clear":
            found.clear = True
        elif part in ("nohitcount", "NOHC"):
            found.no_hitcount = True
        else:
            _act(found, part)
    if not found.keys:
        raise silent("the hist trigger has no keys; add keys=FIELD")
    return found


def _assign(found: Attributes, part: str, errors: HistErrors) -> None:
    name, _, value = part.partition("=")
    if name in ("key", "keys"):
        found.keys = value
    elif name in ("val", "vals", "values"):
        found.values = value
    elif name == "sort":
        found.sort = value
    elif name == "name":
        found.name = value
    elif name == "clock":
        found.clock = value.strip()
    elif name == "size":
        found.bits = _bits(value)
    elif len(found.assignments) == MAX_VARIABLES:
        raise errors.error(HistErrorCode.TOO_MANY_VARS, part)
    else:
        found.assignments.append(part)


def _bits(text: str) -> int:
    """The binary logarithm of a number of entries, rounded up."""
    size = kstrtoull(text)
    bits = max(size - 1, 0).bit_length()
    if not _LEAST_BITS <= bits <= _MOST_BITS:
        raise silent(f"size is {text}; it must be between {1 << _LEAST_BITS} and {1 << _MOST_BITS}")
    return bits


def _act(found: Attributes, part: str) -> None:
    if len(found.actions) >= MAX_ACTIONS or not part.startswith(_HANDLERS):
        raise silent(f"{part!r} is not a parameter of a hist trigger, or there are over {MAX_ACTIONS} actions")
    found.actions.append(part)


def variables(assignments: list[str], errors: HistErrors) -> list[tuple[str, str]]:
    """The names and expressions of `x=fd,y=$z`. Raises OSError(EINVAL)."""
    found: list[tuple[str, str]] = []
    for assignment in assignments:
        for text in assignment.split(","):
            name, equals, expression = text.partition("=")
            if not equals:
                raise errors.error(HistErrorCode.MALFORMED_ASSIGNMENT, name)
            if len(found) == MAX_VARIABLES:
                raise errors.error(HistErrorCode.TOO_MANY_VARS, name)
            found.append((name, expression))
    return found
