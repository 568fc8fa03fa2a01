"""Makes vfork() safe for breakpoints in libraries: from then on it is fork()."""

from __future__ import annotations

import ctypes
import logging

from kprobes.hit.runtime import kprobe_runtime
from sandbox.images.process_text import symbol_named, text_at
from sandbox.memory import barriers, mappings
from sandbox.process.once import once
from sandbox.x86_64.encoding import jump
from sandbox.x86_64.vfork import call_of, system_call

log = logging.getLogger("kprobes")

_LENGTH = 64
"""Bytes of vfork() in which its system call is looked for."""


@once
def make_safe() -> None:
    """Redirect the C library's vfork() to `vfork_as_fork`, once. Called before a library gets its first kprobe.

    The system call is replaced, so that the function's entry can be probed. posix_spawn() does not call vfork(), nor do
    programs that make the system call themselves.
    """
    try:
        vfork, fork = symbol_named("libc:vfork").address, symbol_named("libc:fork").address
    except LookupError:
        return
    found = system_call(ctypes.string_at(vfork, _LENGTH), vfork)
    if found is None:
        log.warning("vfork() of this C library is not known; its children must not meet breakpoints")
        return
    site, covered = found
    image = kprobe_runtime().image
    image.variable("kprobe_fork").value = fork
    page = mappings.allocate_text((site, site), mappings.PAGE, "fprobe-vfork")
    page.write(page.base, call_of(covered, image.address("vfork_as_fork")))
    text_at(site).write(site, jump(site, page.base).ljust(len(covered), b"\x90"))
    barriers.sync_cores()
