"""Maps: what native handlers count and gather in, and Python reads as it fills. Nothing is allocated on a hit."""

from __future__ import annotations

from ftrace.maps.areas import Map
from ftrace.maps.array import Array
from ftrace.maps.bars import Bucket
from ftrace.maps.hash import Hash
from ftrace.maps.histogram import Histogram
from ftrace.maps.variable import PerTask, per_task

__all__ = ["Array", "Bucket", "Hash", "Histogram", "Map", "PerTask", "per_task"]
