"""The definition of a hist trigger: keys, values, variables, the order of entries, and actions.

The trigger's text is first split at colons into attributes, whose names are looked up afterwards.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass, field

from ftrace.core.kstrtox import kstrtoull
from ftrace.ring_buffer.clock import CLOCKS
from ftrace.tracing.events.hist.actions import Action, ActionParser
from ftrace.tracing.events.hist.errors import HistErrorCode, HistErrors, silent
from ftrace.tracing.events.hist.expressions import HITCOUNT, ExpressionParser, Variables
from ftrace.tracing.events.hist.values import FieldUse, HistField, Sort
from ftrace.tracing.events.triggers.interfaces import EventFile, TraceInstance

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
        raise silent(f"the attribute is {part!r}; it must be one of a hist trigger, with at most {MAX_ACTIONS} actions")
    found.actions.append(part)


def variables(assignments: list[str], errors: HistErrors) -> list[tuple[str, str]]:
    """The names and expressions of `x=fd,y=$z`. Raises OSError(EINVAL)."""
    found: list[tuple[str, str]] = []
    for assignment in assignments:
        for text in assignment.split(",")[:MAX_VARIABLES]:  # the kernel does not look at more
            name, equals, expression = text.partition("=")
            if not equals:
                raise errors.error(HistErrorCode.MALFORMED_ASSIGNMENT, name)
            if len(found) == MAX_VARIABLES:
                raise errors.error(HistErrorCode.TOO_MANY_VARS, name)
            found.append((name, expression))
    return found


MAX_KEYS = 3
MAX_VALUES = 2
"""Besides the hitcount."""
MAX_SORT_KEYS = 2
_MAX_KEY_SIZE = 256 + 16 * 8


@dataclass(frozen=True)
class SortKey:
    """A sort key of entries: an index into `hitcount`, the values and the keys."""

    index: int = 0
    descending: bool = False


@dataclass(frozen=True)
class Definition:
    """A hist trigger's definition, with names resolved. `values` excludes the hitcount."""

    attributes: Attributes
    keys: tuple[HistField, ...]
    values: tuple[HistField, ...]
    variables: tuple[HistField, ...]
    sort: tuple[SortKey, ...]
    actions: tuple[Action, ...]
    uses_time: bool

    @property
    def size(self) -> int:
        """The maximum number of entries."""
        return 1 << self.attributes.bits

    @property
    def sortable(self) -> tuple[HistField, ...]:
        """The fields that SortKey's index refers to."""
        return (HITCOUNT, *self.values, *self.keys)

    @property
    def identity(self) -> object:
        """Equal for two triggers that an event cannot both have, except for their conditions (hist_trigger_match())."""
        values = tuple(field.sign for field in (*self.values, *self.variables))
        keys = tuple(field.sign for field in self.keys)
        return self.attributes.name, values, keys, self.sort, self.actions

    @property
    def refers(self) -> tuple[object, ...]:
        """The variables of other triggers that its fields refer to."""
        return tuple(key for field in (*self.values, *self.variables) for key in field.refers)

    def listed(self) -> str:
        """The line in the trigger file, up to the condition."""
        attributes = self.attributes
        name = f"name={attributes.name}:" if attributes.name else ""
        counted = [] if attributes.no_hitcount else ["hitcount"]
        values = ",".join([*counted, *(value.listed() for value in self.values)])
        assigned = f":{','.join(variable.listed() for variable in self.variables)}" if self.variables else ""
        keys = ",".join(key.listed() for key in self.keys)
        clock = f":clock={attributes.clock}" if self.uses_time else ""
        bare = ":nohitcount" if attributes.no_hitcount else ""
        actions = "".join(action.listed() for action in self.actions)
        sort = ",".join(self._listed_sort(key) for key in self.sort)
        return f"hist:{name}keys={keys}:vals={values}{assigned}:sort={sort}:size={self.size}{clock}{bare}{actions}"

    def _listed_sort(self, key: SortKey) -> str:
        field = self.sortable[key.index]
        name = field.title if field.sort is Sort.STACKTRACE else field.listed()
        return name + (".descending" if key.descending else "")


def parse_definition(
    text: str, event: EventFile, instance: TraceInstance, known: Variables, errors: HistErrors
) -> Definition:
    """The definition in `keys=...[:...]`. Raises OSError, mostly with an entry in error_log."""
    attributes = split_attributes(text.replace(".sym-offset", ".symXoffset"), errors)
    actions = tuple(ActionParser(instance, errors).parse(action) for action in attributes.actions)
    parser = ExpressionParser(event, known, errors, attributes.time_unit)
    return _Builder(attributes, actions, parser, known, errors).build()


class _Builder:
    """Resolves the fields of one definition, in the kernel's order."""

    def __init__(
        self,
        attributes: Attributes,
        actions: tuple[Action, ...],
        parser: ExpressionParser,
        known: Variables,
        errors: HistErrors,
    ) -> None:
        self._attributes = attributes
        self._actions = actions
        self._parser = parser
        self._known = known
        self._errors = errors

    def build(self) -> Definition:
        definitions = variables(self._attributes.assignments, self._errors)
        self._known.define(definitions, self._actions)
        values = self._values()
        assigned = tuple(self._variable(name, text) for name, text in definitions)
        keys = self._keys()
        sort = _SortParser((HITCOUNT, *values, *keys), self._errors).parse(self._attributes.sort)
        return Definition(
            self._attributes, keys, values, assigned, sort, self._actions, uses_time=self._parser.uses_time
        )

    def _values(self) -> tuple[HistField, ...]:
        found: list[HistField] = []
        texts = (self._attributes.values or "").split(",") if self._attributes.values is not None else []
        # As in the kernel, at most MAX_VALUES names are parsed, and one more may be `hitcount`.
        # The first `hitcount` is the implicit one; another is a value.
        is_first = True
        for index, text in enumerate(texts):
            if len(found) == MAX_VALUES or index > MAX_VALUES:
                if texts[index:] != ["hitcount"]:
                    raise silent(
                        f"vals is {self._attributes.values}; at most {MAX_VALUES} are allowed besides hitcount"
                    )
                break
            if text == "hitcount" and is_first:
                is_first = False
            else:
                found.append(self._parser.parse(text, FieldUse.VALUE))
        if not found and self._attributes.no_hitcount:
            raise self._errors.error(HistErrorCode.NEED_NOHC_VAL, None, errno.ENOENT)
        return tuple(found)

    def _variable(self, name: str, text: str) -> HistField:
        if self._known.is_defined(name):
            raise self._errors.error(HistErrorCode.DUPLICATE_VAR, name)
        made = self._parser.parse(text, FieldUse.VARIABLE).as_variable(name)
        self._known.defined(name, made)
        return made

    def _keys(self) -> tuple[HistField, ...]:
        texts = self._attributes.keys.split(",")
        found: list[HistField] = []
        for text in texts[:MAX_KEYS]:
            found.append(self._key(text))
            if sum(key.key_size for key in found) > _MAX_KEY_SIZE:
                raise silent(f"keys is {self._attributes.keys}; the maximum size of all keys is {_MAX_KEY_SIZE} bytes")
        if len(texts) > MAX_KEYS:
            raise silent(f"keys is {self._attributes.keys}; the maximum is {MAX_KEYS} keys")
        return tuple(found)

    def _key(self, text: str) -> HistField:
        found = self._parser.parse(text, FieldUse.KEY)
        if found.refers:
            raise self._errors.error(HistErrorCode.INVALID_REF_KEY, text)
        return found


class _SortParser:
    """Parses `sort=`."""

    def __init__(self, fields: tuple[HistField, ...], errors: HistErrors) -> None:
        self._names = [field.title for field in fields]
        self._errors = errors

    def parse(self, text: str | None) -> tuple[SortKey, ...]:
        """The sort keys; by hitcount if `text` is None. Raises OSError(EINVAL)."""
        if text is None:
            return (SortKey(),)
        texts = text.split(",")
        found = []
        for index, part in enumerate(texts):
            name, dot, modifier = part.partition(".")
            if part and index == MAX_SORT_KEYS - 1 and len(texts) > MAX_SORT_KEYS:
                raise self._errors.error(HistErrorCode.TOO_MANY_SORT_FIELDS, "sort=")
            if not name:
                raise self._errors.error(HistErrorCode.EMPTY_SORT_FIELD, "sort=")
            if name not in self._names:
                raise self._errors.error(HistErrorCode.INVALID_SORT_FIELD, name)
            found.append(SortKey(self._names.index(name), self._is_descending(dot, modifier)))
        return tuple(found)

    def _is_descending(self, dot: str, modifier: str) -> bool:
        if not dot or modifier == "ascending":
            return False
        if modifier != "descending":
            raise self._errors.error(HistErrorCode.INVALID_SORT_MODIFIER, modifier)
        return True


def is_summed(field: HistField) -> bool:
    """Whether a histogram's text shows a value: sums of expressions are kept but not shown."""
    return field.sort is not Sort.EXPRESSION
