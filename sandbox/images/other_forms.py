"""Functions as users of other tools write them, with what to write here instead."""

from __future__ import annotations

import re

from sandbox.images.sources import images

_OF_KERNEL = re.compile(r"(?:__(?:x64|ia32|se|do)_|k|do_)?sys_(?P<call>\w+)")
_JOINED = re.compile(r"(?P<owner>[\w+-]+?)(?:\.so[\d.]*)?(?:::|[./!`])(?P<name>\w+)")
_SEVERAL = re.compile(r"[\w*?]+(?:,[\w*?]+)+|[\w*?]*[({][\w*?]+(?:[,|][\w*?]+)+[)}][\w*?]*")
_PROBE = re.compile(r"(?:uprobe|uretprobe|u|ur|usdt|fentry|fexit)(?=:)", re.ASCII)
"""What bpftrace writes before the library."""
_OF_BPFTRACE = re.compile(r"(?:k|kret)(?:probe)?|tracepoint|t|rawtracepoint|syscalls|sched|profile|interval")
_REGULAR = re.compile(r"\^?(?P<glob>[\w:]*(?:\.\*[\w:]*)+)\$?|\^(?P<whole>[\w:]+)\$?|(?P<bare>[\w:]+)\$|/.*/")
_ADDRESS = re.compile(r"0x[\da-f]+", re.IGNORECASE)


def advice(wanted: str) -> str:
    """A clause for a name that was not found, such as `sys_read` and `libc.so.6/read`; '' if its form says nothing."""
    if found := _OF_KERNEL.fullmatch(wanted):
        return _instead_of_kernel(found["call"])
    if (found := _JOINED.fullmatch(wanted)) and _has(found["owner"], found["name"]):
        return f"did you mean {found['owner']}:{found['name']}?"
    if _SEVERAL.fullmatch(wanted):
        return "a pattern is a name, or a glob with *, ? and [a-z]: give one for each function"
    if found := _REGULAR.fullmatch(wanted):
        like = (found["glob"] or "").replace(".*", "*") or found["whole"] or found["bare"]
        such = f": give {like}" if like else ""
        return f"a pattern is no regular expression, but a name or a glob with *, ? and [a-z]{such}"
    if _ADDRESS.fullmatch(wanted):
        return "a place is a function, or FUNCTION+OFFSET"
    return ""


def of_owner(owner: str, wanted: str) -> str:
    """A clause for `owner:wanted` where there is no image `owner`, as bpftrace and perf write probes; '' for others."""
    if _PROBE.match(f"{owner}:"):
        return f"the kind of a probe is not part of a pattern: give {wanted}"
    if _OF_BPFTRACE.fullmatch(owner):
        return "functions and events of the kernel cannot be probed here"
    return ""


def _instead_of_kernel(call: str) -> str:
    here = f"; libc:{call} makes that system call" if _has("libc", call) else ""
    return f"functions of the kernel cannot be probed here{here}"


def _has(owner: str, name: str) -> bool:
    """Whether an image called `owner` has a function of that name."""
    meant = (image for image in images() if not image.module and owner in image.names)
    return any(name in image.suggestions() for image in meant)
