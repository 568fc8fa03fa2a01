"""What a library's unwind tables describe as functions, by pyelftools and nothing of ours."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from elftools.dwarf.callframe import FDE
from elftools.elf.elffile import ELFFile

_COLD = re.compile(r"\.cold(\.\d+)?$")
_RSP, _RETURN_ADDRESS = 7, 16
_GNU_ARGS_SIZE = 0x2E
"""An opcode that pyelftools does not decode. It is of calls, and says nothing of the frame."""


def functions(path: Path) -> list[int]:
    """Where they begin, ascending, as addresses in the file: FDEs in .text that are no signal frame and no cold part.

    A cold part is what a symbol calls so, or where the stack is not as after a call. Linkage tables have sections of their own.
    """
    with path.open("rb") as file:
        elf = ELFFile(file)
        text = elf.get_section_by_name(".text")
        low, high = text["sh_addr"], text["sh_addr"] + text["sh_size"]
        cold = _named_cold(elf)
        return sorted(
            {
                entry["initial_location"]
                for entry in elf.get_dwarf_info().EH_CFI_entries()
                if isinstance(entry, FDE)
                and entry["address_range"]
                and low <= entry["initial_location"] < high
                and entry["initial_location"] not in cold
                and "S" not in entry.cie.augmentation_dict
                and "S" not in entry.cie["augmentation"].decode()
                and _is_as_called(entry)
            }
        )


def _named_cold(elf: ELFFile) -> set[int]:
    tables = [section for name in (".symtab", ".dynsym") if (section := elf.get_section_by_name(name))]
    return {symbol["st_value"] for table in tables for symbol in table.iter_symbols() if _COLD.search(symbol.name)}


def _is_as_called(entry: Any) -> bool:
    """Whether the CFA at the first instruction is rsp + 8, and nothing is saved but the return address."""
    entry.instructions[:] = [step for step in entry.instructions if step.opcode != _GNU_ARGS_SIZE]
    first = entry.get_decoded().table[0]
    saved = set(first) - {"pc", "cfa", _RETURN_ADDRESS}
    return first["cfa"].reg == _RSP and first["cfa"].offset == 8 and not saved
