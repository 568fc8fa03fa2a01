"""The texts of crash reports, as C strings made in advance: symbols cannot be resolved during a crash.

kprobes.hit.attribution writes the reports.
"""

from __future__ import annotations

import ctypes
import functools
import signal
from typing import TYPE_CHECKING, Any

from kprobes.hit.attribution import ACCESSED, END, IN, OF_KPROBE, OF_KRETPROBE, OFFSET, OPENING, WORDS
from sandbox.threads.signals import SIGBUS, SIGFPE, SIGILL, SIGSEGV

if TYPE_CHECKING:
    from ftrace.handlers.kinds import Resolved
    from sandbox.loading.native_image import NativeImage
    from sandbox.symbols.table import Symbol

_WORDS = {
    OPENING: "kprobes: ", IN: " in the ", OF_KPROBE: " of the kprobe at ", OF_KRETPROBE: " of the kretprobe at ",
    OFFSET: "+0x", ACCESSED: ", accessing 0x", END: "\n",
}  # fmt: skip


def prepare(image: NativeImage) -> None:
    """Fill in the runtime's table of texts."""
    words = (ctypes.c_uint64 * WORDS).from_address(image.address("kprobe_report_words"))
    for number in (SIGSEGV, SIGBUS, SIGFPE, SIGILL):
        words[number] = text_of(signal.Signals(number).name)
    for place, text in _WORDS.items():
        words[place] = text_of(text)


_texts: list[Any] = []


@functools.cache
def text_of(text: str) -> int:
    """The address of `text` as a C string that is never freed."""
    kept = ctypes.create_string_buffer(text.encode())
    _texts.append(kept)
    return ctypes.addressof(kept)


def of_place(child: Any, symbol: Symbol) -> None:
    """Fill in a probe's symbol and module."""
    child.start = symbol.address
    child.symbol = text_of(symbol.name)
    child.owner = text_of(f" [{symbol.module}]") if symbol.module else 0


def of_handler(code: Resolved, role: str) -> int:
    """The address of a text that names the handler; 0 if there is none."""
    return text_of(f"{role} {code.name}") if code.address else 0
