"""Layout of histograms of numbers for the shortcuts of events (ftrace.events.shortcut_source)."""

from __future__ import annotations

from typing import Any

from ftrace.events.filters.predicates import Number
from ftrace.events.handler_source import InexpressibleError
from ftrace.events.hist import table_records
from ftrace.events.hist.native_table import NativeHistogram
from ftrace.events.hist.trigger import HistTrigger
from ftrace.events.hist.values import HistField, Sort
from ftrace.events.shortcut_source import NumberTable
from ftrace.events.triggers.records import NativeTrigger
from ftrace.events.triggers.trigger import Trigger
from sandbox.native import global_var, load, single_add, u64

hist_base = global_var(u64, 0, name="hist_base")
"""Address of the first thread's table."""
hist_target = global_var(u64, 0, name="hist_target")
"""Address of the event's Target."""
hist_trigger = global_var(u64, 0, name="hist_trigger")
"""Address of the histogram's NativeTrigger."""

NAMES: dict[str, Any] = {
    "NativeTrigger": NativeTrigger, "hist_base": hist_base, "hist_target": hist_target, "hist_trigger": hist_trigger,
    "load": load, "single_add": single_add,
}  # fmt: skip
NAMES |= {name: getattr(table_records, name) for name in ("GOLDEN", "HEADER", "KEY_AT", "mix")}
"""The names that the source of such a shortcut uses besides those of handlers."""


def number_table(trigger: Trigger) -> tuple[int, NumberTable]:
    """The address of the first thread's table, and the layout. Raises InexpressibleError if hits do not update the table or
    count anything but numbers.
    """
    if not isinstance(trigger, HistTrigger) or not isinstance(trigger.table, NativeHistogram):
        raise InexpressibleError
    native, definition = trigger.table.native, trigger.definition
    return int(native.base), NumberTable(
        tuple(map(_number, definition.keys)),
        tuple(None if value.sort is Sort.HITCOUNT else _number(value) for value in definition.values),
        *(int(getattr(native, name)) for name in ("mask", "shift", "entry", "sums", "stride")),
    )


def _number(field: HistField) -> Number:
    if field.sort is not Sort.NUMBER or field.field is None or field.modifier in ("log2", "buckets"):
        raise InexpressibleError
    return Number(field.field.offset, field.size, field.signed)
