"""A barrier for all threads of the process, from native code: the slow side of an asymmetric pair.

The fast side, on the hit path, is a plain store followed by a plain load.
"""

from __future__ import annotations

from sandbox.native import cast, global_var, native, ptr, syscall, u64, void

_SYS_MPROTECT, _SYS_MEMBARRIER = 10, 324
_PRIVATE_EXPEDITED = 8
_PAGE = 4096
_READ, _READ_WRITE = 1, 3

page = global_var(u64, 0, name="barrier_page")
"""sandbox.memory.barrier_page()"""


@native
def process_barrier() -> void:
    """Every store that another thread made before now is seen, and every load it makes after is made after."""
    if page == 0:
        syscall(_SYS_MEMBARRIER, _PRIVATE_EXPEDITED, 0, 0, 0, 0, 0)
        return
    address = cast(ptr[u64], page)
    syscall(_SYS_MPROTECT, page, _PAGE, _READ_WRITE, 0, 0, 0)
    address[0] += 1
    syscall(_SYS_MPROTECT, page, _PAGE, _READ, 0, 0, 0)
