"""What is asked of the values of arguments: a probe event and a hist trigger for each pattern.

The words are those of these languages: arguments of a line f (docs/events.md), filters (docs/filters.md), keys and values of a
hist trigger (docs/histograms.md).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fprobe.report.tables import argument_of

GROUP = "fprobe_values"
"""The group of the events."""
SIZE = 2048
"""Entries of a histogram: what finds no place is counted as dropped."""
_ARGUMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)(?::(?P<type>[a-z0-9]+))?")
_NUMBERED = re.compile(r"arg[1-9]\d*|retval")
_TEXTS = ("string", "ustring")
_TEXT = re.compile(r"\"[^\"]*\"|'[^']*'")
_FIELD = re.compile(r"([A-Za-z_]\w*(?::[a-z]+\d*)?)(?:\.function)?\s*(?:[=!<>]=|[<>~]|&(?!&))")
_TYPED = re.compile(rf"{_TEXT.pattern}|([A-Za-z_]\w*):[a-z]+\d*(?=\s*(?:[=!<>]=|[<>~]|&(?!&)))")
_OF_EVERY_EVENT = re.compile(r"comm|cpu|common_\w+|__probe_\w+")


@dataclass(frozen=True)
class Values:
    """The question. `of`, `sum`: arguments, NAME or NAME:TYPE, where NAME may be `arg1` to `argN` or `retval`; "": none.

    `sum` may also be the product of two, as nmemb*size of calloc.

    `by`: function, caller, thread, or arg(NAME); `where`: a filter, whose fields may have types, as in arg1:s32 < 0.
    """

    of: str = ""
    by: str = "function"
    where: str = ""
    sum: str = ""

    def checked(self) -> Values:
        """The same. Raises ValueError for a text that is no argument."""
        for text in self._arguments:
            if not _ARGUMENT.fullmatch(text):
                raise ValueError(
                    f"{text!r} is not an argument; give its name, or arg1, arg2, ..., as in size or arg1:u32"
                )
        if self.of.partition(":")[2].endswith("string"):
            raise ValueError(
                f"--of counts by powers of two, and {self.of} is a text; --by 'arg({self.of})' counts by the text itself"
            )
        return self

    @property
    def _arguments(self) -> list[str]:
        argument = argument_of(self.by)
        factors = [each.strip() for each in self.sum.split("*", 1)] if self.sum else []
        return [*([self.of] if self.of else []), *factors, *([argument] if argument is not None else [])]

    @property
    def names(self) -> tuple[str, str, str]:
        """The names of the arguments of `of`, `sum` (of a product both, as NAME*NAME) and `by`; "" for none."""
        of, by = (text.partition(":")[0] for text in (self.of, argument_of(self.by) or ""))
        return of, "*".join(each.partition(":")[0].strip() for each in self.sum.split("*")), by

    @property
    def _fields(self) -> dict[str, str]:
        """The fields of the event, by name."""
        named = [each for each in _FIELD.findall(_TEXT.sub("", self.where)) if not _OF_EVERY_EVENT.fullmatch(each)]
        fields: dict[str, str] = {}
        for text in (*self._arguments, *named):
            name, colon, kind = text.partition(":")
            if name not in fields or colon:
                source = f"${name}" if _NUMBERED.fullmatch(name) else name
                if source != name and kind in _TEXTS:  # by its name, a pointer to characters is followed
                    source = f"+0({source})"
                fields[name] = f"{name}={source}{colon}{kind}"
        return fields

    def stack_definition(self, number: int, pattern: str) -> str:
        """The line that defines the event of a pattern whose calls are counted by stack. Raises ValueError for a result."""
        if "retval" in self._fields:
            raise ValueError(
                "a stack is taken when the function is entered, where retval is not known yet; give an argument"
            )
        return " ".join([f"f:{GROUP}/s{number}", pattern, *self._fields.values()])

    def definition(self, number: int, pattern: str) -> str:
        """The line that defines the event of a pattern."""
        fields = self._fields
        if self.by == "caller" and "retval" not in fields:
            fields["caller"] = "caller=$stack0"
        return " ".join([f"f:{GROUP}/h{number}", pattern, *fields.values()])

    @property
    def question(self) -> tuple[tuple[str, ...], str, str]:
        """What is asked of calls that are timed: the arguments of an event, the filter, and the name that tells calls apart."""
        return tuple(self._fields.values()), self.filter, self.names[2]

    @property
    def filter(self) -> str:
        """`where` without types."""
        return _TYPED.sub(lambda found: found[1] or found[0], self.where)

    @property
    def trigger(self) -> str:
        """The hist trigger of the events. Its keys: the function, then `by`, then `of`."""
        of, sum_, argument = self.names
        at_return = "retval" in self._fields
        groups = {"caller": "__probe_ret_ip" if at_return else "caller", "thread": "common_pid", "function": ""}
        by = groups.get(self.by, argument)
        keys = ["__probe_func" if at_return else "__probe_ip", *([by] if by else []), *([f"{of}.log2"] if of else [])]
        values = f":vals={sum_}" if sum_ else ""
        return f"hist:keys={','.join(keys)}{values}:size={SIZE}" + (f" if {self.filter}" if self.where else "")
