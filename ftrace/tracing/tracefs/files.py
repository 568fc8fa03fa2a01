"""The files of ftrace at the top of the tree: dynamic events, filters, listings, error_log, README."""

from __future__ import annotations

from collections.abc import Callable

from ftrace.core.filters import lookup
from ftrace.core.unwind.code_map import unwind_tables
from ftrace.tracing.events import dynevent, synthetic
from ftrace.tracing.events.builtin import register_module_events
from ftrace.tracing.events.event_probes import register_event_probes
from ftrace.tracing.events.hit.symbol_names import symbol_names
from ftrace.tracing.events.registry import event_registry
from ftrace.tracing.files.nodes import Node, TextFile, written_number
from ftrace.tracing.instances.cmdlines import saved_cmdlines
from ftrace.tracing.instances.printk import printk_formats
from ftrace.tracing.instances.trace_array import global_trace
from ftrace.tracing.tracefs.function_commands import register_function_commands
from ftrace.tracing.tracefs.trace_files import InstancesDirectory, trace_array_files
from ftrace.tracing.tracefs.tracer_files import graph_files
from ftrace.tracing.tracefs.tree import tracefs
from sandbox.process.once import once


def definitions_file(
    read: Callable[[], str], run_line: Callable[[str], None], line_type: dynevent.LineType | None = None
) -> TextFile:
    """A file of definitions. Each line written is a command; O_TRUNC deletes all events of its type."""
    return TextFile(read, lambda text: dynevent.run_commands(text, run_line), lambda: dynevent.release_all(line_type))


def _available_events() -> str:
    return "".join(f"{event.group}:{event.name}\n" for event in reversed(event_registry.events()))


@once
def add_ftrace_files() -> None:
    """Add ftrace's files to the tree. Further calls do nothing."""
    unwind_tables()  # this and the next register module notifiers, which is done before any lock is taken
    symbol_names()
    register_function_commands()
    register_module_events()
    synthetic.register_synthetic_events()
    register_event_probes()
    for name, node in _files().items():
        tracefs.add(name, node)


def _files() -> dict[str, Node]:
    return {
        "README": TextFile(lambda: README),
        "available_events": TextFile(_available_events),
        "available_filter_functions": TextFile(lookup.available_filter_functions),
        "available_filter_functions_addrs": TextFile(lambda: lookup.available_filter_functions(addresses=True)),
        "dyn_ftrace_total_info": TextFile(lookup.dyn_ftrace_total_info),
        "dynamic_events": definitions_file(dynevent.show, dynevent.create_dyn_event),
        "enabled_functions": TextFile(lookup.enabled_functions),
        "printk_formats": TextFile(printk_formats),
        "saved_cmdlines": TextFile(saved_cmdlines.read),
        "saved_cmdlines_size": TextFile(
            lambda: f"{saved_cmdlines.capacity}\n",
            lambda text: setattr(saved_cmdlines, "capacity", written_number(text)),
        ),
        "saved_tgids": TextFile(global_trace().tgids.read),
        "synthetic_events": definitions_file(synthetic.show, synthetic.run_line, synthetic.synthetic_lines),
        "touched_functions": TextFile(lookup.touched_functions),
        **trace_array_files(global_trace()),
        **graph_files(),
        "instances": InstancesDirectory(),
    }


README = """\
tracing in this process: a short guide

# Definitions of probe events
  kprobe_events\t\t- kprobes and kretprobes; Create/append/delete/list them
  dynamic_events\t- every type of event; Create/append/delete/list them
  synthetic_events\t- events that triggers generate

  accepts: event-definitions (one definition per line)
   Format: p[:[<group>/][<event>]] <place> [<args>]
           r[maxactive][:[<group>/][<event>]] <place> [<args>]
           f[:[<group>/][<event>]] <func-name>[%return] [<args>]
           t[:[<group>/][<event>]] <tracepoint> [<args>]
           s:[synthetic/]<event> <field> [<field>]
           -:[<group>/][<event>]
    place: [<module>:]<symbol>[+<offset>]|<memaddr>
    place (kretprobe): [<module>:]<symbol>[+<offset>]%return|<memaddr>
           (kernel return probes support: <symbol>[+<offset>]%return)
     args: <name>=fetcharg[:type]
 fetcharg: %<register>, @<address>, @<symbol>[+|-<offset>], $comm,
           $stack<index>, $stack, $retval, $arg<N>, <argname>,
           +|-[u]<offset>(<fetcharg>), \\imm-value, \\"imm-string",
           <argname>[->field[->field|.field...]]
     type: s8/16/32/64, u8/16/32/64, x8/16/32/64, char, string, symbol,
           b<bit-width>@<bit-offset>/<container-size>, ustring,
           symstr, %pd/%pD, <type>\\[<array-size>\\]
    field: <stype> <name>;
    stype: u8/u16/u32/u64, s8/s16/s32/s64, pid_t,
           [unsigned] char/int/long

  Synthetic events, for the actions of histograms below:
   echo 'slow u64 lat; pid_t pid' >> synthetic_events
   echo 'named char name[]' >> synthetic_events
   echo 'where unsigned long[] stack' >> synthetic_events

# Listings
  available_events\t- group:event of each event
  available_filter_functions - functions that can be traced
  enabled_functions\t- functions that are traced now
  kprobe_profile\t- hits and misses of each kprobe event
  error_log\t\t- the last errors of definitions; write anything to clear it

# Control
  set_event\t\t- write group:event to enable it, !group:event to disable it
  set_ftrace_filter\t- functions to trace
     accepts: func_full_name or glob-matching-pattern, :mod:, commands
  set_ftrace_notrace\t- functions not to trace
  tracing_on\t\t- 0 stops recording, 1 resumes it
  set_event_pid\t\t- the threads whose events are recorded; empty: all
  set_event_notrace_pid - the threads whose events are not recorded
  instances\t\t- make a directory here for a buffer with settings of its own

# Tracers
  available_tracers\t- the tracers that can be set in current_tracer
  current_tracer\t- function, function_graph, or nop
  set_ftrace_pid\t- the threads whose functions are traced; empty: all
  set_ftrace_notrace_pid - the threads whose functions are not traced
  set_graph_function\t- show these functions and what they call (function_graph)
  set_graph_notrace\t- leave out these functions and what they call (function_graph)
  max_graph_depth\t- how deep function_graph goes; 0: no limit
  tracing_thresh\t- show calls that take at least so many microseconds
  function_profile_enabled - 1 counts calls and times in trace_stat/

# events/<group>/<event>/
  enable\t- 0 or 1
  filter\t- a filter expression; 0 clears
  format\t- the fields of a record
  id\t\t- the number of the event
  trigger\t- commands that run when the event is hit
  hist\t\t- the histograms of the event's triggers

# Triggers
  traceon, traceoff, snapshot, stacktrace, each with [:<count>] [if <filter>]
  enable_event:<group>:<event>, disable_event:..., enable_hist:..., disable_hist:...
  hist:keys=<field>[,<field>...][:values=<field>[,...]][:sort=<field>[.descending]]
      [:size=<entries>][:<var1>=<field|var_ref|numeric_literal>[,<var2>=...]]
      [:name=<name>][:pause|continue|clear][:nohitcount][:<handler>.<action>] [if <filter>]
    a key can be any field, or the special string 'common_stacktrace'
    modifiers: .hex .sym .sym-offset .execname .syscall .log2 .buckets=<size>
               .usecs .percent .graph .stacktrace
    expressions of variables: + - * /, with at most 3 operators
    handlers: onmatch(<group>.<event>) - an event with the same key came before
              onmax(var)    - the variable is larger than any before
              onchange(var) - the variable is another than before
    actions:  trace(<synthetic_event>,<param>[,...]), <synthetic_event>(<param>[,...])
              save(<field>[,...]) and snapshot(), for onmax and onchange
"""
