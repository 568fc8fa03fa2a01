"""A barrier for all threads of the process, from native code: the slow side of an asymmetric pair.

The fast side, on the hit path, is a plain store followed by a plain load. Without membarrier(2), a page is written to and made
read-only, which interrupts every core that runs a thread of the process. Several threads may do so at once: the page is written
by a system call, so that finding it read-only gives an error instead of a fault.
"""

from __future__ import annotations

from sandbox.native import global_var, native, syscall, u64, void
from sandbox.x86_64.syscalls import SYS_CLOCK_GETTIME, SYS_MEMBARRIER, SYS_MPROTECT

_CLOCK_MONOTONIC = 1
"""What writes to the page."""
_PRIVATE_EXPEDITED = 8
_PAGE = 4096
_READ, _READ_WRITE = 1, 3

page = global_var(u64, 0, name="barrier_page")
"""sandbox.memory.barriers.barrier_page()"""


@native
def process_barrier() -> void:
    """Every store that another thread made before now is seen, and every load it makes after is made after."""
    if page == 0:
        syscall(SYS_MEMBARRIER, _PRIVATE_EXPEDITED, 0, 0, 0, 0, 0)
        return
    syscall(SYS_MPROTECT, page, _PAGE, _READ_WRITE, 0, 0, 0)
    while syscall(SYS_CLOCK_GETTIME, _CLOCK_MONOTONIC, page, 0, 0, 0, 0) != 0:
        syscall(SYS_MPROTECT, page, _PAGE, _READ_WRITE, 0, 0, 0)
    syscall(SYS_MPROTECT, page, _PAGE, _READ, 0, 0, 0)
