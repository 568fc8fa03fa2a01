"""What Numba imports at its first compilation is imported here, and nothing is compiled: for processes that fork for tests."""

from __future__ import annotations

from numba.core.registry import cpu_target

cpu_target.typing_context.refresh()
cpu_target.target_context.refresh()
