"""The text of ftrace_bug's report: the fault of a site, and its state."""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Sequence

from ftrace.core.dyn_ftrace.record import DynFtrace, callback_name
from ftrace.core.sites.block import SiteMismatch
from ftrace.core.sites.locations import Location
from ftrace.hit.x86_64.stubs import SITE_SIZE
from sandbox.symbols.table import symbol_table

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
    failed: int, record: DynFtrace, doing: str, found: bytes | None = None, expected: bytes | None = None
) -> str:
    """The report, in the kernel's form. `failed`: a positive errno; `doing`: one of the four reasons of this module.

    `found`: the bytes at the site, by default the present ones; with `expected`, they are shown for EINVAL.
    """
    ip = record.location.ip
    lines = ["------------[ ftrace bug ]------------", _FAILURES.get(failed, "ftrace faulted on unknown error ")]
    lines.append(f"[<{ip:016x}>] {symbol_table.describe(ip)}")
    if failed == errno.EINVAL:
        lines.append(f" actual:   {(found or ctypes.string_at(ip, SITE_SIZE)).hex(':')}")
        if expected is not None:
            lines.append(f" expected: {expected.hex(':')}")
    return "\n".join([*lines, doing, *_record_lines(record)]) + "\n"


def _record_lines(record: DynFtrace) -> Sequence[str]:
    columns = f" ({record.count}){' R' if record.wants_regs else '  '}"
    trampoline = ""
    if record.has_trampoline:
        trampoline = f"\ttramp: {record.trampoline:#x} ({callback_name(record.wanting[0])})"
    return (
        f"ftrace record flags: {record.flags:x}",
        columns + trampoline,
        f" expected tramp: {record.trampoline:x}",
    )


def mismatch_report(failure: SiteMismatch, record: DynFtrace) -> str:
    """The report of a site with unexpected bytes."""
    doing = TO_OTHER_CALL if failure.written else _doing(record.location)
    return bug_report(errno.EINVAL, record, doing, failure.found, failure.expected)


def _doing(location: Location) -> str:
    """Whether the site was being armed, disarmed or changed, from the list that it runs and the number of ops that select it."""
    runs = len(location.block.list_at(location.position).probes)
    if not runs:
        return TO_CALL
    return TO_NOP if runs == 1 else TO_OTHER_CALL
