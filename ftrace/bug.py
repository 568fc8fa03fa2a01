"""What is said when a site does not hold what it should (ftrace_bug), and the end of all tracing (ftrace_kill): FT-67..70.

A mismatch that is found before anything has been written (somebody has planted a breakpoint) is reported, and that
change refused. One that is found afterwards means that text cannot be written reliably, and kills ftrace.
"""

from __future__ import annotations

import ctypes
import errno
import logging
from collections.abc import Sequence

from ftrace.listing import Record, callback_name, record_at
from ftrace.locations import Location
from ftrace.sites import SiteMismatch
from ftrace.tracer import tracer
from ftrace.x86_64.stubs import SITE_SIZE
from sandbox.symbols import symbol_table

log = logging.getLogger("ftrace")

INITIALISING = "Initializing ftrace call sites"
TO_NOP = "Setting ftrace call site to NOP"
TO_CALL = "Setting ftrace call site to call ftrace function"
TO_OTHER_CALL = "Updating ftrace call site to call a different ftrace function"

_FAILURES = {
    errno.EFAULT: "ftrace faulted on modifying ",
    errno.EINVAL: "ftrace failed to modify ",
    errno.EPERM: "ftrace faulted on writing ",
}


def bug_report(
    failed: int, location: Location, doing: str, found: bytes | None = None, expected: bytes | None = None
) -> str:
    """The report, in the kernel's form. `failed`: a positive errno; `doing`: one of the four reasons of this module.

    `found`: the bytes at the site, by default what is there now; with `expected`, they are shown for EINVAL.
    """
    lines = ["------------[ ftrace bug ]------------", _FAILURES.get(failed, "ftrace faulted on unknown error ")]
    lines.append(f"[<{location.ip:016x}>] {symbol_table.describe(location.ip)}")
    if failed == errno.EINVAL:
        lines.append(f" actual:   {(found or ctypes.string_at(location.ip, SITE_SIZE)).hex(':')}")
        if expected is not None:
            lines.append(f" expected: {expected.hex(':')}")
    return "\n".join([*lines, doing, *_record_lines(record_at(location))]) + "\n"


def _record_lines(record: Record) -> Sequence[str]:
    columns = f" ({record.count}){' R' if record.wants_regs else '  '}"
    trampoline = ""
    if record.has_trampoline:
        trampoline = f"\ttramp: {record.trampoline:#x} ({callback_name(record.wanting[0])})"
    return (
        f"ftrace record flags: {record.flags:x}",
        columns + trampoline,
        f" expected tramp: {record.trampoline:x}",
    )


def ftrace_bug(failed: int, location: Location, doing: str = TO_CALL) -> None:
    """Report a failure at a site in the log, and kill ftrace (FT-69)."""
    log.error("%s", bug_report(failed, location, doing))
    ftrace_kill()


def ftrace_kill() -> None:
    """End function tracing for good: ENODEV from now on, empty listings. What is patched goes on calling (FT-70)."""
    tracer().kill()


def ftrace_is_dead() -> bool:
    """Whether ftrace has been killed."""
    return tracer().dead


def report_mismatch(failure: SiteMismatch) -> None:
    """Report a site that somebody else has written to; ftrace is dead if that shows after it was written."""
    location = Location(failure.block, failure.index)
    doing = TO_OTHER_CALL if failure.written else _doing(location)
    log.error("%s", bug_report(errno.EINVAL, location, doing, failure.found, failure.expected))
    if failure.written:
        ftrace_kill()


def _doing(location: Location) -> str:
    """By what the site runs and by how many want it: it was to be put on, or off, or changed."""
    runs = len(location.block.list_at(location.position).probes)
    if not runs:
        return TO_CALL
    return TO_NOP if runs == 1 else TO_OTHER_CALL
