"""Makes vfork() safe for breakpoints in libraries: from then on it is fork()."""

from __future__ import annotations

import ctypes
import logging
from typing import NamedTuple

from kprobes.hit.runtime import kprobe_runtime
from sandbox.images.process_text import symbol_named, text_at
from sandbox.memory import mappings, pages
from sandbox.process.once import once
from sandbox.x86_64.encoding import jump
from sandbox.x86_64.vfork import call_of, system_call

log = logging.getLogger("kprobes")

_LENGTH = 64
"""Bytes of vfork() in which its system call is looked for."""


class _Site(NamedTuple):
    """Where vfork() makes its system call, the bytes there, and the jump that replaces them."""

    address: int
    original: bytes
    jump: bytes


_redirected = [False]
"""Whether it ever was: if not, nothing has to be compiled or loaded to restore it."""


@once
def _site() -> _Site | None:
    try:
        vfork, fork = symbol_named("libc:vfork").address, symbol_named("libc:fork").address
    except LookupError:
        return None
    found = system_call(ctypes.string_at(vfork, _LENGTH), vfork)
    if found is None:
        log.warning("vfork() of this C library is not known; its children must not meet breakpoints")
        return None
    address, covered = found
    image = kprobe_runtime().image
    image.variable("kprobe_fork").value = fork
    page = mappings.allocate_text((address, address), mappings.PAGE, "fprobe-vfork")
    page.write(page.base, call_of(covered, image.address("vfork_as_fork")))
    return _Site(address, covered, jump(address, page.base).ljust(len(covered), b"\x90"))


def make_safe() -> None:
    """Redirect the C library's vfork() to `vfork_as_fork`. Called before a library gets its first kprobe.

    The system call is replaced, so that the function's entry can be probed. posix_spawn() does not call vfork()
    (ftrace.core.sites.signal_masks), nor do programs that make the system call themselves.
    """
    site = _site()
    if site is not None:
        _redirected[0] = True
        _write(site, site.jump)


def restore() -> None:
    """Give vfork() its own system call back: no library has a kprobe any more."""
    site = _site() if _redirected[0] else None
    if site is not None:
        _write(site, site.original)


def _write(site: _Site, code: bytes) -> None:
    if ctypes.string_at(site.address, len(code)) != code:
        text_at(site.address).write(site.address, code)
        pages.sync_cores()
