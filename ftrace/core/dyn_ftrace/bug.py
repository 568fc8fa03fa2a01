"""Failures at a site: ftrace_bug reports one, ftrace_kill ends all tracing.

A mismatch found before anything has been written, such as a debugger's breakpoint, is reported, and the change is refused. A
mismatch found afterwards means that text cannot be written reliably: ftrace is killed.
"""

from __future__ import annotations

from ftrace.core.dyn_ftrace.bug_report import TO_CALL, bug_report
from ftrace.core.sites.locations import Location
from ftrace.core.tracer import log, tracer


def ftrace_bug(failed: int, location: Location, doing: str = TO_CALL) -> None:
    """Report a failure at a site in the log, and kill ftrace."""
    log.error("%s", bug_report(failed, tracer().record_at(location), doing))
    ftrace_kill()


def ftrace_kill() -> None:
    """End function tracing for good: ENODEV from now on, empty listings. Patched sites keep calling their handlers."""
    tracer().kill()


def ftrace_is_dead() -> bool:
    """Whether ftrace has been killed."""
    return tracer().dead
