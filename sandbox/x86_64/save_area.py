"""The area in which vector and x87 state is saved, by the components that the CPU has."""

from __future__ import annotations

from typing import NamedTuple

X87, SSE, AVX, AVX512 = 1 << 0, 1 << 1, 1 << 2, 7 << 5
WANTED = X87 | SSE | AVX | AVX512
"""Everything a compiler may use for arguments, results and temporaries; not AMX, not protection keys."""


class SaveArea(NamedTuple):
    """`instruction` ('xsavec' or 'xsave'), `mask` of components, and `size` in bytes of the area (64-byte aligned).

    `register`: the widest vector registers, 'xmm', 'ymm' or 'zmm'. `tells_use`: XGETBV(1) says which components are in
    use, and the others can be kept one by one.
    """

    instruction: str
    mask: int
    size: int
    tells_use: bool

    @property
    def register(self) -> str:
        """The name of the widest vector registers."""
        return "zmm" if self.mask & AVX512 else "ymm" if self.mask & AVX else "xmm"
