"""The events module/module_load and module/module_free, which always exist, as in the kernel.

include/trace/events/module.h
"""

from __future__ import annotations

from functools import cache

from ftrace.events.registry import TraceEvent, event_registry
from ftrace.probe_args.layout import Field
from sandbox.loading.module import Module, ModuleState, register_module_notifier

GROUP = "module"
_FLAGS = ((0, "P"), (12, "O"), (1, "F"), (10, "C"), (13, "E"))
_TAINTS = ", ".join(f'{{ (1UL << {bit}), "{letter}" }}' for bit, letter in _FLAGS)


def _name(offset: int) -> Field:
    return Field("__data_loc char[]", "name", offset, 4, True)


MODULE_LOAD = TraceEvent(
    GROUP,
    "module_load",
    (Field("unsigned int", "taints", 8, 4, False), _name(12)),
    f'"%s %s", __get_str(name), __print_flags(REC->taints, "", {_TAINTS})',
)
"""A module has been loaded. Its taint flags are always 0."""
MODULE_FREE = TraceEvent(GROUP, "module_free", (_name(8),), '"%s", __get_str(name)')
"""A module is about to be unloaded."""


def _record(event: TraceEvent, module: Module) -> None:
    fields = event.fields[-1].offset + 4
    text = module.name.encode() + b"\0"
    word = len(text) << 16 | fields
    event.file.record(bytes(fields - 12) + word.to_bytes(4, "little") + text)


def _module_event(event: ModuleState, module: Module) -> None:
    if event is ModuleState.COMING and MODULE_LOAD.is_armed:
        _record(MODULE_LOAD, module)
    elif event is ModuleState.GOING and MODULE_FREE.is_armed:
        _record(MODULE_FREE, module)


@cache
def register_module_events() -> None:
    """Add both events to the registry, and record modules that come and go."""
    for event in (MODULE_LOAD, MODULE_FREE):
        event_registry.add_permanent(event)
    register_module_notifier(_module_event)
