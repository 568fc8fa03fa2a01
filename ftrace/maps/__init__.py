"""Maps: native handlers count and collect in them, and Python can read them at any time. Hits allocate nothing."""

from __future__ import annotations

from ftrace.maps.areas import Map
from ftrace.maps.array import Array
from ftrace.maps.hash import Hash
from ftrace.maps.histogram import Bucket, Histogram
from ftrace.maps.variable import PerTask, per_task

__all__ = ["Array", "Bucket", "Hash", "Histogram", "Map", "PerTask", "per_task"]
