"""Parse lists of CPUs such as `0-3,8-15:2/4`, as bitmap_parselist() in the kernel's lib/bitmap-str.c."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

_REGION = re.compile(r"(?:(all)|([0-9]+|N)(?:-([0-9]+|N))?)(?::([0-9]+)/([0-9]+))?")
_POSSIBLE = Path("/sys/devices/system/cpu/possible")


@cache
def possible_cpus() -> int:
    """The highest possible CPU number of this machine, plus one."""
    try:
        return int(re.split("[-,]", _POSSIBLE.read_text().strip())[-1]) + 1
    except (OSError, ValueError):
        return os.cpu_count() or 1


def parse_cpulist(text: str, count: int) -> int:
    """The mask of the CPUs in a list. Numbers must be below `count`. Raises ValueError."""
    mask = 0
    for region in re.split(r"[,\s]+", text):
        if region:
            mask |= _region(region, count)
    return mask


def _region(text: str, count: int) -> int:
    match = _REGION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a range of CPUs")
    everything, first, last, used, group = match.groups()
    low = 0 if everything else _cpu(first, count)
    high = count - 1 if everything else low if last is None else _cpu(last, count)
    taken, period = (int(used), int(group)) if used else (1, 1)
    if low > high or high >= count or not 0 <= taken <= period or period == 0:
        raise ValueError(f"the range is {text!r}; it must ascend, and CPUs must be between 0 and {count - 1}")
    return sum(1 << cpu for cpu in range(low, high + 1) if (cpu - low) % period < taken)


def _cpu(text: str, count: int) -> int:
    return count - 1 if text == "N" else int(text)
