"""Names that have changed: the old one works for one version, and says the new one."""

from __future__ import annotations

import warnings
from typing import Any


def warn_renamed(old: str, new: str, stacklevel: int = 3) -> None:
    """Warn the caller's caller of an old name."""
    warnings.warn(f"{old} is now {new}; the old name goes with the next version", DeprecationWarning, stacklevel)


def renamed(old: str, new: str) -> Any:
    """A property of that old name."""

    def get(this: Any) -> Any:
        warn_renamed(f"{type(this).__name__}.{old}", new)
        return getattr(this, new)

    return property(get, doc=f"The old name of `{new}`.")
