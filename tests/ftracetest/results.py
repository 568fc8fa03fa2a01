"""What the kernel's tests give: the list, and comparing a run with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

RESULTS = Path(__file__).with_name("results.txt")
"""A line `RESULT NAME` for each run of a test."""
DIRECTORIES = ["00basic", "kprobe", "dynevent", "filter", "event", "instances", "ftrace", "trigger"]
_LEFT_OUT = {
    "00basic/mount_options": "mounts tracefs again with other options",
    "00basic/test_ownership": "mounts tracefs again with other options",
    "ftrace/func_hotplug": "takes the machine's CPUs offline",
}


_NO_EVENT_PROBES = "there are no event probes (lines e)"
_NO_UPROBES = "there are no uprobe events: a function of a library is probed by lines p, r and f"
_NEWER = (
    "6.12.117 refuses a filter that ends with && or ||; the predicate_parse() before it, whose rules TE-6.1 has, looks only for "
    "open brackets and for no term at all once the text ends, and so accepts it"
)
REASONS = {
    "dynevent/add_remove_eprobe": _NO_EVENT_PROBES,
    "dynevent/add_remove_tprobe_module": "no tracepoint is hit in user space, and none is loaded with a module",
    "dynevent/add_remove_uprobe": _NO_UPROBES,
    "dynevent/eprobes_syntax_errors": _NO_EVENT_PROBES,
    "dynevent/test_duplicates": _NO_EVENT_PROBES,
    "filter/event-filter-incomplete": _NEWER,
    "filter/event-filter-incomplete (instance)": _NEWER,
    "kprobe/kprobe_args_user": "it needs the system calls of another process, and memory that only the kernel reads",
    "kprobe/uprobe_syntax_errors": _NO_UPROBES,
    "trigger/inter-event/trigger-action-hist-xfail": "it is expected to fail, as in the kernel",
    "trigger/inter-event/trigger-synthetic-eprobe": _NO_EVENT_PROBES,
}
"""Why those do not pass that do not."""


def left_out() -> Mapping[str, str]:
    """Tests that are never run, with the reasons."""
    return _LEFT_OUT


def read(path: Path) -> dict[str, str]:
    """Test -> result."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {name: result for result, name in (line.split(maxsplit=1) for line in lines)}


def table(results: Mapping[str, str]) -> str:
    """How many tests had each result."""
    return ", ".join(f"{count} {result}" for result, count in Counter(results.values()).most_common())


def compared(results: Mapping[str, str], known: Mapping[str, str]) -> Iterator[str]:
    """A line for each test that did not do what the list says."""
    for name, result in results.items():
        if known.get(name) != result:
            yield f"{name}: {result}, listed as {known.get(name, 'nothing')}"
