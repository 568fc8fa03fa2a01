"""libgcc's unwinder, which the C++ code of this process uses."""

from __future__ import annotations

import ctypes

_ABSENT = "No such file"
_loaded: list[ctypes.CDLL] = []


def unwinder() -> ctypes.CDLL | None:
    """The library, loaded if need be; None if this system has none.

    Raises OSError if it has one that cannot be loaded now, say because no descriptor is free.
    """
    if not _loaded:
        try:
            _loaded.append(ctypes.CDLL("libgcc_s.so.1"))
        except OSError as error:
            if _ABSENT in str(error):
                return None
            raise
    return _loaded[0]
