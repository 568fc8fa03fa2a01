"""The files of ftrace at the top of the tree: dynamic events, filters, listings, error_log."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from ftrace.events import dynevent, eprobe, synthetic
from ftrace.events.function_commands import register_function_commands
from ftrace.events.hist.registry import drain_all
from ftrace.events.module_events import register_module_events
from ftrace.events.registry import event_registry
from ftrace.events.symbol_names import symbol_names
from ftrace.events.trace_array import global_trace
from ftrace.files import listing
from ftrace.output.cmdlines import saved_cmdlines
from ftrace.tracefs.instances import InstancesDirectory
from ftrace.tracefs.nodes import Node, TextFile
from ftrace.tracefs.numbers import written_number
from ftrace.tracefs.readme import README
from ftrace.tracefs.trace_files import trace_array_files
from ftrace.tracefs.tracer_files import graph_files
from ftrace.tracefs.tree import tracefs
from ftrace.unwind.code_map import unwind_tables


def definitions_file(
    read: Callable[[], str], run_line: Callable[[str], None], line_type: dynevent.LineType | None = None
) -> TextFile:
    """A file of definitions. Each line written is a command; O_TRUNC deletes all events of its type."""
    return TextFile(read, lambda text: dynevent.run_commands(text, run_line), lambda: dynevent.release_all(line_type))


def _available_events() -> str:
    return "".join(f"{event.group}:{event.name}\n" for event in reversed(event_registry.events()))


@cache
def add_ftrace_files() -> None:
    """Add ftrace's files to the tree. Further calls do nothing."""
    unwind_tables()  # this and the next register module notifiers, which is done before any lock is taken
    symbol_names()
    register_function_commands()
    register_module_events()
    synthetic.register_synthetic_events()
    eprobe.register_eprobe_events()
    tracefs.before_open(drain_all)
    dynevent.on_removal(global_trace().empty)
    for name, node in _files().items():
        tracefs.add(name, node)


def _files() -> dict[str, Node]:
    return {
        "README": TextFile(lambda: README),
        "available_events": TextFile(_available_events),
        "available_filter_functions": TextFile(listing.available_filter_functions),
        "available_filter_functions_addrs": TextFile(lambda: listing.available_filter_functions(addresses=True)),
        "dyn_ftrace_total_info": TextFile(listing.dyn_ftrace_total_info),
        "dynamic_events": definitions_file(dynevent.show, dynevent.create_dyn_event),
        "enabled_functions": TextFile(listing.enabled_functions),
        "printk_formats": TextFile(lambda: ""),
        "saved_cmdlines": TextFile(saved_cmdlines.read),
        "saved_cmdlines_size": TextFile(
            lambda: f"{saved_cmdlines.capacity}\n",
            lambda text: setattr(saved_cmdlines, "capacity", written_number(text)),
        ),
        "saved_tgids": TextFile(global_trace().tgids.read),
        "synthetic_events": definitions_file(synthetic.show, synthetic.run_line, synthetic.synthetic_lines),
        "touched_functions": TextFile(listing.touched_functions),
        **trace_array_files(global_trace()),
        **graph_files(),
        "instances": InstancesDirectory(),
    }
