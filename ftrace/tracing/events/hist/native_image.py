"""The native functions of histograms, linked when the first one is made."""

from __future__ import annotations

from ftrace.core.runtime import runtime
from ftrace.hit.events import map_records, table_records
from sandbox.native import Unit
from sandbox.native.native_image import NativeImage
from sandbox.process.once import once


@once
def hist_image() -> NativeImage:
    """The image of the functions that count."""
    functions = (*table_records.FUNCTIONS, *map_records.FUNCTIONS)
    image = NativeImage.of(Unit("event-hists", functions, bounded=False), uses=runtime().image)
    image.variable("task_offset").value = runtime().key.offset
    image.publish()
    return image
