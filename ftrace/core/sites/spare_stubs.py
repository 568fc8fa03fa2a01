"""Spare stubs for calls of suspended greenlets (ftrace.hit.parking), made when greenlet is imported."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING

from ftrace.hit.parking import SPARES
from ftrace.hit.x86_64.stubs import RETURN_POINT, STUB_SIZE
from sandbox.memory import mappings
from sandbox.native.native_image import NativeImage
from sandbox.process import hooks

if TYPE_CHECKING:
    from ftrace.core.unwind.unwinding import FrameDescription

_COPIES_STACKS = "greenlet"
"""The package that puts stacks aside; gevent and eventlet import it."""


class SpareStubs:
    """The spare stubs of one runtime, in a block of memory that begins with the address that every stub reads.

    `slab`: the threads' records.
    """

    def __init__(self, image: NativeImage, slab: int) -> None:
        self._image = image
        self._slab = slab
        self._text: mappings.TextMapping | None = None
        self._frames: FrameDescription | None = None
        if _COPIES_STACKS in sys.modules:
            self.make()
        else:
            sys.meta_path.insert(0, _Watcher(self.make))

    def make(self) -> None:
        """Treat calls that look dead as calls of other greenlets from now on."""
        from ftrace.core.unwind.unwinding import describe_stubs
        from ftrace.hit.x86_64.frames import Stubs
        from ftrace.hit.x86_64.preserving_stub import SLOT_RESTORED, preserving_stub

        if self._text is not None:
            return
        image, size = self._image, (SPARES + 1) * STUB_SIZE
        near = image.address("dispatch_exit")
        text = mappings.allocate_text((near, near), size, "spare-stubs")
        first = text.base + STUB_SIZE
        stubs = [preserving_stub(first + number * STUB_SIZE, 0, text.base) for number in range(SPARES)]
        exit_ = image.address("ftrace_exit_preserving_all").to_bytes(8, "little")
        text.write(text.base, exit_.ljust(STUB_SIZE, b"\xcc") + b"".join(stubs))
        place = Stubs(first, SPARES * STUB_SIZE, hooked_to=SLOT_RESTORED)
        self._frames = describe_stubs(self._slab, "spare", place)
        self._text = text
        hooks.own_code.add(text.__contains__)
        image.variable("spare_stubs").value = first + RETURN_POINT

    def holds(self, address: int) -> bool:
        """Whether `address` is in one of them."""
        return self._text is not None and address in self._text


class _Watcher:
    """A finder that finds nothing, and calls `notice` before greenlet is imported."""

    def __init__(self, notice: Callable[[], None]) -> None:
        self._notice = notice

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """Always None: the next finder is used."""
        if name == _COPIES_STACKS:
            self._notice()  # it stays in the list: removing it during the iteration would skip the next finder
        return None
