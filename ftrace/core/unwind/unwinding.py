"""Registration of unwind sections with the process's unwinder and with debuggers."""

from __future__ import annotations

import ctypes

from ftrace.core.unwind import libunwind
from ftrace.hit.x86_64 import frames
from sandbox.elf.debugimage import CodeSymbol, debug_image
from sandbox.elf.unwinder import registrars
from sandbox.symbols import gdbjit
from sandbox.threads import tasks


class FrameDescription:
    """An unwind section for generated code; registered with the unwinder and with debuggers until `withdraw`."""

    def __init__(self, name: str, start: int, size: int, section: bytes) -> None:
        self._section = ctypes.create_string_buffer(section, len(section))
        registrars()[0](self._section)
        where = ctypes.addressof(self._section)
        image = debug_image(start, size, [CodeSymbol(name, start, size)], section, where)
        self._seen_by_debuggers = gdbjit.register(image)

    def withdraw(self) -> None:
        """Unregister it."""
        registrars()[1](self._section)
        if self._seen_by_debuggers is not None:
            self._seen_by_debuggers.withdraw()


class StubDescription(FrameDescription):
    """The same for stubs, in calls of which the program's exceptions and stack traces pass: also for libunwind."""

    def __init__(self, name: str, stubs: frames.Stubs, records: frames.Records) -> None:
        super().__init__(name, stubs.start, stubs.size, _section(stubs, records))
        section = _section(stubs._replace(above=0), records)
        self._for_libunwind = libunwind.Description(stubs.start, stubs.size, section, frames.description_in(section))

    def withdraw(self) -> None:
        """Unregister it."""
        self._for_libunwind.withdraw()
        super().withdraw()


def _section(stubs: frames.Stubs, records: frames.Records) -> bytes:
    return frames.stub_section(stubs, frames.return_address_place(stubs, records))


def describe_stubs(slab: int, module: str, stubs: frames.Stubs) -> StubDescription:
    """Register a section for a module's stubs. `slab`: the address of the tasks."""
    fields = {name.upper(): tasks.Task.offset(name) for name in ("top", "bottom", "state")}
    fields |= {name.upper(): tasks.Node.offset(name) for name in ("frame", "stub", "parent", "made")}
    records = frames.Records(slab, tasks.STRIDE, tasks.NODE, fields, slab + tasks.NODES)
    return StubDescription(f"{module}.stubs", stubs, records)


def describe_entrances(name: str, start: int, size: int) -> FrameDescription:
    """Register a section for code that is called and then jumps elsewhere with the stack unchanged."""
    return FrameDescription(name, start, size, frames.section(start, size, b""))
