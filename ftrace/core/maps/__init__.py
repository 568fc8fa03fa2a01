"""Maps: native handlers count and collect in them, and Python can read them at any time. Hits allocate nothing."""

from __future__ import annotations

from ftrace.core.maps.areas import Map
from ftrace.core.maps.array import Array
from ftrace.core.maps.hash import Hash
from ftrace.core.maps.histogram import Bucket, Histogram
from ftrace.core.maps.variable import PerTask, per_task

__all__ = ["Array", "Bucket", "Hash", "Histogram", "Map", "PerTask", "per_task"]
