"""Which functions the tracers trace, by patterns: the files of tracefs for modules, and their hashes for other images."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fprobe.cli.matching import match_image, names_image

if TYPE_CHECKING:
    from ftrace.core.sites.locations import LocationSet


def set_filter(patterns: Sequence[str]) -> None:
    """Trace the functions that match, of any image. Raises OSError for what set_ftrace_filter does not accept, and Failure."""
    from fprobe.tracefs import tracefs
    from ftrace.core.filters.set_ftrace_filter import FilterFile

    for pattern in patterns:
        if names_image(pattern):
            with FilterFile(append=True) as file:
                file.change(_selected(pattern.removeprefix("!")), pattern.startswith("!"))
        else:
            tracefs.write("set_ftrace_filter", f"{pattern}\n", append=True)


def leave_out_this_thread() -> None:
    """Trace the other threads only: this one reads what is traced, and would add to it for ever by calling the C library."""
    from fprobe.tracefs import tracefs

    tracefs.write("set_ftrace_notrace_pid", f"{threading.get_native_id()}\n", append=True)


def show_only_inside(patterns: Sequence[str]) -> None:
    """Let function_graph show only calls inside the functions that match. Raises as `set_filter` does."""
    from fprobe.tracefs import tracefs
    from ftrace.tracing.tracers.graph_rules import FUNCTIONS, graph_rules

    for pattern in [pattern for pattern in patterns if not names_image(pattern)]:
        tracefs.write("set_graph_function", f"{pattern}\n", append=True)
    selected = graph_rules.selected(FUNCTIONS)
    for pattern in filter(names_image, patterns):
        found = _selected(pattern.removeprefix("!"))
        selected = selected - found if pattern.startswith("!") else selected | found
    graph_rules.select(FUNCTIONS, selected)


def _selected(pattern: str) -> LocationSet:
    """The locations of the functions of images that match. What cannot be hooked at return is left out by the tracer."""
    from ftrace.core.entries.locate import locate_addresses

    return locate_addresses(match_image(pattern).addresses).locations
