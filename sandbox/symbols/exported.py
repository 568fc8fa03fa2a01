"""Which functions other files may call, by symbol tables. Link-time optimisation leaves fewer than debug information says."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from sandbox.elf import tables as elf
from sandbox.symbols.symbol_tables import table_of

if TYPE_CHECKING:
    from elftools.dwarf.die import DIE

_files: WeakKeyDictionary[Any, Callable[[], elf.ElfFile]] = WeakKeyDictionary()
_exported: WeakKeyDictionary[Any, frozenset[int] | None] = WeakKeyDictionary()


def remember(dwarf: Any, file: Callable[[], elf.ElfFile]) -> None:
    """Say which file pyelftools has read debug information from; `file` may raise OSError or ValueError."""
    _files[dwarf] = file


def is_exported(function: DIE, start: int) -> bool:
    """Whether a function that begins at `start` in its file is global or weak there; True if no symbol table tells."""
    dwarf = function.dwarfinfo
    if dwarf not in _files:
        return True
    if dwarf not in _exported:
        _exported[dwarf] = _global_addresses(_files[dwarf])
    addresses = _exported[dwarf]
    return addresses is None or start in addresses


def _global_addresses(opened: Callable[[], elf.ElfFile]) -> frozenset[int] | None:
    try:
        file = opened()
        table = table_of(file)
        entries = elf.SYMBOL.iter_unpack(file.contents(table)) if table else ()
        return frozenset(value for _, info, _, _, value, _ in entries if info >> 4 != elf.STB_LOCAL) if table else None
    except (OSError, ValueError):
        return None
