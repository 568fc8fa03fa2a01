"""Results of recorded calls, as far as the register ax tells them.

The record of a return has that register only. It is the result of a function only if the signature says so: a floating-point
number is in a vector register, a large structure is in memory, and a function without a result leaves anything in it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fprobe.calls.values import UNREADABLE, value_text
from fprobe.run.launcher.names import Names
from sandbox.abi import convention, layout
from sandbox.abi.signatures import Type, Void

_NUMBA = "numba"
"""The image of functions that return a status in ax; the result is in memory."""


class _Kind(NamedTuple):
    """A result. `type`: None if no signature is known; `size`: its bytes in ax, 0 if it is elsewhere."""

    type: Type | None
    size: int = 0


class Returned:
    """The results of a process's functions. `names`: the functions of the process."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._kinds: dict[int, _Kind] = {}

    def value(self, ip: int, ax: int) -> Any:
        """The Python value of a result; None if it is not known, or if there is none."""
        kind = self._kind(ip)
        if kind.type is None or not kind.size:
            return None
        return layout.decode(ax.to_bytes(8, "little")[: kind.size], kind.type)

    def text(self, ip: int, ax: int) -> tuple[str, str]:
        """The result, '' if there is none or its type is not known, and a remark: without a signature, the register."""
        kind = self._kind(ip)
        if kind.type is None:
            return "", f" /* ax={ax:#x} */"
        if isinstance(kind.type, Void):
            return "", ""
        return value_text(self.value(ip, ax), kind.type) if kind.size else UNREADABLE, ""

    def _kind(self, ip: int) -> _Kind:
        if ip not in self._kinds:
            self._kinds[ip] = self._find(ip)
        return self._kinds[ip]

    def _find(self, ip: int) -> _Kind:
        if self._names.function(ip).library == _NUMBA:
            return _Kind(Type())
        signature = self._names.signature(ip)
        if signature is None:
            return _Kind(None)
        place = convention.result_place(signature)
        in_ax = place is not None and not place.indirect and [at for _, at, _ in place.pieces] == convention.RESULTS[:1]
        is_known = in_ax and layout.is_decodable(signature.result)
        return _Kind(signature.result, place.size if place is not None and is_known else 0)
