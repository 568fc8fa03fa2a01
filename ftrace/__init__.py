"""Patching the sites at function entries while the code runs."""

from __future__ import annotations

import sandbox  # noqa: F401  # before ctypes: it refuses sub-interpreters
