"""The text of trace_stat/functionN, as function_stat_show() of kernel/trace/ftrace.c."""

from __future__ import annotations

from ftrace.tracing import symbols
from ftrace.tracing.output.context import duration_text
from ftrace.tracing.tracers.graph_rules import graph_rules
from ftrace.tracing.tracers.profile import FunctionProfile, function_profiler

_HEAD = (
    "  Function                               Hit    Time            Avg             s^2\n"
    "  --------                               ---    ----            ---             ---\n"
)


def profile_text(slot: int) -> str:
    """The table of one slot."""
    return _HEAD + "".join(_row(profile) for profile in function_profiler.profiles(slot) if _is_shown(profile))


def _is_shown(profile: FunctionProfile) -> bool:
    return bool(profile.time // profile.hits >= graph_rules.threshold)


def _row(profile: FunctionProfile) -> str:
    durations = (profile.time, profile.time // profile.hits, _variance(profile))
    return (
        f"  {function_name(profile.ip):<30.30}  {profile.hits:10}    "
        + "    ".join(map(duration_text, durations))
        + "\n"
    )


def function_name(address: int) -> str:
    """The name of a function in the table."""
    return symbols.plain(address).partition(" [")[0]


def _variance(profile: FunctionProfile) -> int:
    """The sample variance in nanoseconds times microseconds, which is printed as square microseconds."""
    count = profile.hits
    if count < 2:
        return 0
    return int(max(count * profile.time_squared - profile.time**2, 0) // (count * (count - 1) * 1000))
