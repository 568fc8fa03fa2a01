"""Objects that are valid in one process only: they hold addresses of its memory."""

from __future__ import annotations

from typing import NoReturn


class ProcessBound:
    """Base of objects that cannot be pickled: another process would use their addresses as its own."""

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise TypeError(f"cannot pickle {self!r}: it belongs to this process; load or make it in the other one")
