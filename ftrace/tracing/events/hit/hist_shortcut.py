"""What the shortcut of an event with a histogram of numbers needs: the layout that it counts in, and the names of its source."""

from __future__ import annotations

from typing import Any

from ftrace.hit.events import operations, table_records
from ftrace.hit.events.records import NativeTrigger
from ftrace.hit.hashing import GOLDEN
from ftrace.tracing.events.hist.hist_trigger import HistTrigger
from ftrace.tracing.events.hist.per_thread_table import PerThreadHistogram
from ftrace.tracing.events.hit.handler_source import InexpressibleError
from ftrace.tracing.events.hit.shortcut_source import NumberTable
from ftrace.tracing.events.triggers.trigger import Trigger
from sandbox.native import global_var, load, single_add, u64

hist_base = global_var(u64, 0, name="hist_base")
"""Address of the first thread's table."""
hist_target = global_var(u64, 0, name="hist_target")
"""Address of the event's EventTarget."""
hist_trigger = global_var(u64, 0, name="hist_trigger")
"""Address of the histogram's NativeTrigger."""

SHORTCUT_NAMES: dict[str, Any] = {
    "NativeTrigger": NativeTrigger, "hist_base": hist_base, "hist_target": hist_target, "hist_trigger": hist_trigger,
    "load": load, "single_add": single_add, "GOLDEN": GOLDEN,
}  # fmt: skip
SHORTCUT_NAMES |= {name: getattr(table_records, name) for name in ("HEADER", "KEY_AT", "mix")}
SHORTCUT_NAMES |= {name: getattr(operations, name) for name in ("logarithm", "ratio", "rounded_up")}
"""The names that the source of such a shortcut uses besides those of handlers."""


def number_table(trigger: Trigger) -> tuple[int, NumberTable]:
    """The address of the first thread's table, and the layout. Raises InexpressibleError if hits do not update the table or
    count anything but numbers.
    """
    if not isinstance(trigger, HistTrigger) or not isinstance(trigger.table, PerThreadHistogram):
        raise InexpressibleError
    native, definition = trigger.table.native, trigger.definition
    return int(native.base), NumberTable(
        tuple(key.value for key in definition.keys),
        tuple(value.value for value in definition.values),
        trigger.table.is_plain and len(definition.keys) == 1,
        *(int(getattr(native, name)) for name in ("mask", "shift", "entry", "sums", "stride")),
    )
