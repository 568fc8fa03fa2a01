"""The events that always exist, as in the kernel: the records of ring buffers, and the loading and unloading of modules.

The group events/ftrace/ has the records, with the kernel's ids; they cannot be enabled. module/module_load and
module/module_free are those of include/trace/events/module.h.
"""

from __future__ import annotations

from ftrace.tracing.events.registry import TraceEvent, event_registry
from ftrace.tracing.probe_args.layout import Field
from sandbox.loading.module import Module, ModuleState, register_module_notifier
from sandbox.process.once import once

GROUP = "ftrace"


def _event(number: int, name: str, fields: tuple[Field, ...], print_fmt: str) -> TraceEvent:
    event = TraceEvent(GROUP, name, fields, print_fmt)
    event.id = number
    event_registry.reserve(event)
    return event


_WORD = "unsigned long"
FUNCTION = _event(
    1,
    "function",
    (Field(_WORD, "ip", 8, 8, False), Field(_WORD, "parent_ip", 16, 8, False)),
    '" %ps <-- %ps", (void *)REC->ip, (void *)REC->parent_ip',
)
"""A function's entry."""
_CALLER = Field("unsigned long", "caller[8]", 16, 64, False)
_CALLERS = ", ".join(f"(void *)REC->caller[{index}]" for index in range(8))
_FRAME = r"\t=> %ps\n"
KERNEL_STACK = _event(
    4,
    "kernel_stack",
    (Field("int", "size", 8, 4, True), _CALLER),
    f'"{_FRAME * 3}" "{_FRAME * 3}" "{_FRAME * 2}", {_CALLERS}',
)
"""The stack of a hit."""
_ADDRESS = '"\\t=> (" "%016lx" ")\\n'
_NEXT = '\\t=> (" "%016lx" ")\\n'
USER_STACK = _event(
    12,
    "user_stack",
    (Field("unsigned int", "tgid", 8, 4, False), _CALLER),
    f'{_ADDRESS}{_NEXT}{_NEXT}" {_ADDRESS}{_NEXT}{_NEXT}" {_ADDRESS}{_NEXT}", {_CALLERS.replace("(void *)", "")}',
)
"""The same, as the option userstacktrace records it."""
PRINT = _event(
    5,
    "print",
    (Field(_WORD, "ip", 8, 8, False), Field("char[]", "buf", 16, 0, False)),
    '"%ps: %s", (void *)REC->ip, REC->buf',
)
"""Text that was written to trace_marker, or by a program's __trace_puts()."""
_TEXT = "const char *"
BPRINT = _event(
    6,
    "bprint",
    (Field(_WORD, "ip", 8, 8, False), Field(_TEXT, "fmt", 16, 8, False), Field("u32[]", "buf", 24, 0, False)),
    '"%ps: %s", (void *)REC->ip, REC->fmt',
)
"""trace_printk: the address of a format, and its arguments as bytes."""
BPUTS = _event(
    14,
    "bputs",
    (Field(_WORD, "ip", 8, 8, False), Field(_TEXT, "str", 16, 8, False)),
    '"%ps: %s", (void *)REC->ip, REC->str',
)
"""trace_puts: the address of a text."""
RAW_DATA = _event(
    18,
    "raw_data",
    (Field("unsigned int", "id", 8, 4, False), Field("char[]", "buf", 12, 0, False)),
    '"id:%04x %08x", REC->id, (int)REC->buf[0]',
)
"""Data that was written to trace_marker_raw."""

GRAPH_EXIT = _event(
    10,
    "funcgraph_exit",
    (
        Field(_WORD, "func", 8, 8, False),
        Field(_WORD, "retval", 16, 8, False),
        Field("int", "depth", 24, 4, True),
        Field("unsigned int", "overrun", 28, 4, False),
        Field("unsigned long long", "calltime", 32, 8, False),
        Field("unsigned long long", "rettime", 40, 8, False),
    ),
    '"<-- %ps (%d) (start: %llx  end: %llx) over: %d retval: %lx", (void *)REC->func, REC->depth, REC->calltime, '
    "REC->rettime, REC->depth, REC->retval",
)
"""A function's return, with its duration: TRACE_GRAPH_RET."""
GRAPH_ENTRY = _event(
    11,
    "funcgraph_entry",
    (Field(_WORD, "func", 8, 8, False), Field("int", "depth", 16, 4, True)),
    '"--> %ps (%d)", (void *)REC->func, REC->depth',
)
"""A function's entry, of function_graph: TRACE_GRAPH_ENT."""

FUNC_REPEATS = _event(
    19,
    "func_repeats",
    (
        Field(_WORD, "ip", 8, 8, False),
        Field(_WORD, "parent_ip", 16, 8, False),
        Field("u16", "count", 24, 2, False),
        Field("u16", "top_delta_ts", 26, 2, False),
        Field("u32", "bottom_delta_ts", 28, 4, False),
    ),
    '" %ps <-%ps\\t(repeats:%u  delta: -%llu)", (void *)REC->ip, (void *)REC->parent_ip, REC->count, '
    "(((u64)(REC)->top_delta_ts << 32) | (REC)->bottom_delta_ts)",
)
"""How often a call was repeated, with func-no-repeats."""

PRINTS = (PRINT, BPRINT, BPUTS)
"""The events of a text that something has printed."""
BUILTIN_EVENTS = (FUNCTION, KERNEL_STACK, *PRINTS, GRAPH_EXIT, GRAPH_ENTRY, USER_STACK, RAW_DATA, FUNC_REPEATS)


_MODULE = "module"
_FLAGS = ((0, "P"), (12, "O"), (1, "F"), (10, "C"), (13, "E"))
_TAINTS = ", ".join(f'{{ (1UL << {bit}), "{letter}" }}' for bit, letter in _FLAGS)


def _module_name(offset: int) -> Field:
    return Field("__data_loc char[]", "name", offset, 4, True)


MODULE_LOAD = TraceEvent(
    _MODULE,
    "module_load",
    (Field("unsigned int", "taints", 8, 4, False), _module_name(12)),
    f'"%s %s", __get_str(name), __print_flags(REC->taints, "", {_TAINTS})',
)
"""A module has been loaded. Its taint flags are always 0."""
MODULE_FREE = TraceEvent(_MODULE, "module_free", (_module_name(8),), '"%s", __get_str(name)')
"""A module is about to be unloaded."""


def _record_module(event: TraceEvent, module: Module) -> None:
    fields = event.fields[-1].offset + 4
    text = module.name.encode("utf-8", "surrogateescape") + b"\0"
    word = len(text) << 16 | fields
    event.record(bytes(fields - 12) + word.to_bytes(4, "little") + text)


def _module_event(event: ModuleState, module: Module) -> None:
    if event is ModuleState.COMING and MODULE_LOAD.is_armed:
        _record_module(MODULE_LOAD, module)
    elif event is ModuleState.GOING and MODULE_FREE.is_armed:
        _record_module(MODULE_FREE, module)


@once
def register_module_events() -> None:
    """Add both events to the registry, and record the loading and unloading of modules."""
    for event in (MODULE_LOAD, MODULE_FREE):
        event_registry.add_permanent(event)
    register_module_notifier(_module_event)
