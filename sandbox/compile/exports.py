"""Functions that programs may call by name: those that the packages above export to them, as EXPORT_SYMBOL() does to modules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

exported: dict[str, Callable[[str], int]] = {}
"""Symbol -> what gives its address, when a program needs it."""


def needed(symbols: Iterable[str]) -> dict[str, int]:
    """The addresses of those of `symbols` that are exported."""
    return {symbol: exported[symbol](symbol) for symbol in symbols if symbol in exported}


def jumps(addresses: Mapping[str, int]) -> str:
    """C or C++ text that defines a function of each name, which jumps to the address."""
    return "".join(
        f'__asm__(".pushsection .text\\n.globl {name}\\n.hidden {name}\\n.type {name},@function\\n{name}:\\n'
        f'.byte 0x49,0xbb\\n.quad {address:#x}\\n.byte 0x41,0xff,0xe3\\n.size {name},.-{name}\\n.popsection");\n'
        for name, address in addresses.items()
    )
