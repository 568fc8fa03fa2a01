"""The definition of a hist trigger: keys, values, variables, the order of entries, and actions."""

from __future__ import annotations

import errno
from dataclasses import dataclass

from ftrace.events.hist.actions import Action, ActionParser
from ftrace.events.hist.attributes import Attributes, split_attributes, variables
from ftrace.events.hist.errors import HistErrorCode, HistErrors, silent
from ftrace.events.hist.expressions import HITCOUNT, ExpressionParser, Variables
from ftrace.events.hist.fields import HistField, Role, Sort
from ftrace.events.triggers.event_file import EventFile, TraceInstance

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
        return self.sortable[key.index].listed() + (".descending" if key.descending else "")


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
                found.append(self._parser.parse(text, Role.VALUE))
        if not found and self._attributes.no_hitcount:
            raise self._errors.error(HistErrorCode.NEED_NOHC_VAL, None, errno.ENOENT)
        return tuple(found)

    def _variable(self, name: str, text: str) -> HistField:
        if self._known.is_defined(name):
            raise self._errors.error(HistErrorCode.DUPLICATE_VAR, name)
        made = self._parser.parse(text, Role.VARIABLE).as_variable(name)
        self._known.defined(name, made)
        return made

    def _keys(self) -> tuple[HistField, ...]:
        texts = self._attributes.keys.split(",")
        found = tuple(self._key(text) for text in texts[:MAX_KEYS])
        if sum(key.key_size for key in found) > _MAX_KEY_SIZE:
            raise silent(f"keys is {self._attributes.keys}; the maximum is {_MAX_KEY_SIZE} bytes of keys")
        if len(texts) > MAX_KEYS:
            raise silent(f"keys is {self._attributes.keys}; the maximum is {MAX_KEYS} keys")
        return found

    def _key(self, text: str) -> HistField:
        found = self._parser.parse(text, Role.KEY)
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
