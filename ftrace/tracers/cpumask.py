"""tracing_cpumask: the slots whose records are kept. Slots take the place of the kernel's CPUs."""

from __future__ import annotations

import ctypes
import errno
import re

from sandbox.threads import tasks

_GROUP = 32
_MASK = re.compile(r"[0-9a-fA-F]{1,8}(,[0-9a-fA-F]{1,8})*")


class DroppedSlots:
    """The slots whose records are dropped, as a bitmap that hits read. New slots are not dropped."""

    def __init__(self) -> None:
        self._bits = (ctypes.c_uint64 * (tasks.CAPACITY // 64))()
        self._dropped = 0

    @property
    def address(self) -> int:
        """Address of the bitmap; 0 if no slot is dropped."""
        return ctypes.addressof(self._bits) if self._dropped else 0

    def drop(self, dropped: int) -> None:
        """Drop the records of these slots. Bit i is slot i."""
        self._dropped = dropped
        for index in range(len(self._bits)):
            self._bits[index] = dropped >> 64 * index & (1 << 64) - 1

    def traced(self, slots: int) -> int:
        """The mask of those of the first `slots` slots that are not dropped."""
        return (1 << slots) - 1 & ~self._dropped


def mask_text(mask: int, slots: int) -> str:
    """The text of a mask of `slots` bits, in groups of 32."""
    digits = -(-slots // 4)
    text = f"{mask:0{digits}x}"
    width = _GROUP // 4
    first = len(text) % width or width
    return ",".join([text[:first], *(text[at : at + width] for at in range(first, len(text), width))])


def written_mask(text: str, slots: int) -> int:
    """Parse a mask; an empty text is 0. Raises OSError: EINVAL for other text, EOVERFLOW for bits beyond `slots`."""
    digits = text.strip()
    if digits and not _MASK.fullmatch(digits):
        raise OSError(
            errno.EINVAL, f"the mask is {digits!r}; it must be hexadecimal digits, with a comma before every 8 of them"
        )
    groups = digits.split(",") if digits else ["0"]
    mask = 0
    for group in groups:
        mask = mask << _GROUP | int(group, 16)
    if mask >> slots:
        raise OSError(errno.EOVERFLOW, f"the mask is {digits!r}; there are only {slots} slots")
    return mask
