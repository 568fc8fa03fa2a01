"""Whether the CPU keeps a second copy of return addresses for this process (user shadow stacks, CET)."""

from __future__ import annotations

from pathlib import Path

_STATUS = Path("/proc/self/status")


def in_use() -> bool:
    """Whether a return to another address than the call's would end the process.

    A hook that returns through a call of its own is not concerned; one that exchanges a return address is.
    """
    fields = (line.partition(":") for line in _STATUS.read_text().splitlines())
    return any(name == "x86_Thread_features" and "shstk" in value.split() for name, _, value in fields)
