"""Handlers in the native language beside the same handlers in C: as few instructions, and compiled in milliseconds."""

from __future__ import annotations

import io
import shutil
import subprocess
from pathlib import Path

import capstone
import native_handlers
import pytest
from elftools.elf.elffile import ELFFile

from sandbox.native import NativeFunction, Unit
from sandbox.native.back.compile import compile_unit
from sandbox.native.back.verify import verify_object

HANDLERS = [value for value in vars(native_handlers).values() if isinstance(value, NativeFunction)]
FLAGS = ["-O2", "-fPIC", "-fvisibility=hidden", "-mgeneral-regs-only", "-fcf-protection=none"]


def instruction_counts(data: bytes) -> dict[str, int]:
    """Function -> its instructions, alignment left out."""
    file = ELFFile(io.BytesIO(data))
    code, counts = file.get_section_by_name(".text").data(), {}
    for symbol in file.get_section_by_name(".symtab").iter_symbols():
        if symbol["st_info"]["type"] == "STT_FUNC":
            body = code[symbol["st_value"] : symbol["st_value"] + symbol["st_size"]]
            decoded = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64).disasm_lite(body, 0)
            counts[symbol.name] = sum(mnemonic != "nop" for _, _, mnemonic, _ in decoded)
    return counts


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
@pytest.mark.parametrize("checked", [False, True])
def test_no_more_instructions_than_gcc(tmp_path: Path, checked: bool) -> None:
    source = Path(__file__).with_name("native_handlers.c")
    subprocess.run(["gcc", *FLAGS, "-c", str(source), "-o", str(tmp_path / "c.o")], check=True, timeout=60)
    in_c = instruction_counts((tmp_path / "c.o").read_bytes())
    ours = instruction_counts(compile_unit(Unit("handlers", HANDLERS, checked=checked)))
    assert set(ours) == set(in_c) and len(ours) >= 6
    assert {name: count for name, count in ours.items() if count > in_c[name] * 1.1} == {}


def test_the_object_of_a_handler_is_found_well() -> None:
    for handler in HANDLERS:
        assert verify_object(compile_unit(Unit("handler", [handler], checked=True))) == []
