"""The listings at the head of the modules of stubs and trampolines are what is assembled.

A listing of bytes has the offset of each instruction, and numbers for offsets in it; other names are filled in for each copy. A
listing of a trampoline is the text that is assembled, down to its first `ret` or the end of a case, with the names of constants.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from ftrace.hit.recursion import FAST
from ftrace.hit.x86_64 import (
    entry_detour,
    fast_returns,
    fast_trampolines,
    foreign_call,
    images,
    multi_probe_trampolines,
    preserving_stub,
    preserving_trampolines,
    register_trampolines,
    stubs,
    trampolines,
)
from ftrace.hit.x86_64.assembly_text import with_blocks
from kprobes.hit import assembly as kprobe_assembly
from kprobes.x86_64 import detour, optimized_detour, return_stub, single_handlers, slot
from sandbox.x86_64.encoding import INT3
from sandbox.x86_64.instruction import Instruction, decode
from sandbox.x86_64.save_area import SaveArea

TASK = -88
OFFSETS = {"REC": 16, "TOP": 24, "STUB": 8, "PROBES": 40, "EXIT": 48}
"""Of fields, all different and none of them 0, which an assembler leaves out."""
CONSTANTS = {**OFFSETS, "TASK": TASK, "FAST": FAST}
_LINE = re.compile(r"^ {1,6}(?P<at>\d+)  (?P<code>\S.*?)(?: +<- .*)?$", re.MULTILINE)
_DIRECTIVES = {".quad": 8, ".word": 2}


def lines_of(module: ModuleType) -> dict[int, str]:
    """Instruction by offset."""
    return {int(found["at"]): found["code"] for found in _LINE.finditer(module.__doc__ or "")}


def assembled(lines: dict[int, str], directory: Path) -> bytes:
    """What the listing says, by GNU as. Names that it does not know are 0."""
    text = [f".set {name}, {value}" for name, value in CONSTANTS.items()]
    for at, code in lines.items():
        code = re.sub(r"\b(\d+)\(%rip\)", r"L\1(%rip)", code)
        code = re.sub(r"^(j\w+|call) (\d+)$", r"\1 L\2", code)
        text += [f".org {at}", f"L{at}: {code}"]
    others = {int(at) for at in re.findall(r"\bL(\d+)", "\n".join(text))} - lines.keys()
    text += [f".set L{at}, L0 + {at}" for at in others]
    made, raw = directory / "listing.o", directory / "listing"
    subprocess.run(["as", "-o", made, "-"], input="\n".join(text) + "\n", text=True, check=True)
    subprocess.run(["objcopy", "-O", "binary", "-j", ".text", made, raw], check=True)
    return raw.read_bytes()


def size_at(real: bytes, at: int, code: str) -> int:
    return _DIRECTIVES.get(code.split()[0]) or len(decode(real[at : at + 15], at).code)


def filled_in(code: str) -> int:
    """Bytes at the end of an instruction that depend on where the copy is."""
    names = {name for name in re.findall(r"(?<![%\w])[a-z_]{3,}\b", code.partition(" ")[2]) if name not in CONSTANTS}
    return (8 if code.startswith(".quad") else 4) if names else 0


def insns(code: str) -> list[Instruction]:
    data, found = bytes.fromhex(code), list[Instruction]()
    while data:
        found.append(decode(data, 0x1000 + sum(len(each.code) for each in found)))
        data = data[len(found[-1].code) :]
    return found


def _stub() -> bytes:
    return stubs.stub_template(TASK, FAST, OFFSETS)


FAMILIES: dict[ModuleType, Callable[[], bytes]] = {
    stubs: _stub,
    preserving_stub: lambda: preserving_stub.preserving_stub(0x2000, 0x1000, 0x3000),
    return_stub: lambda: return_stub.return_stub(_stub(), 0x2000, 0x1000, 0x3000),
    entry_detour: lambda: entry_detour.detour_template(TASK, FAST, OFFSETS["REC"]),
    slot: lambda: slot.slot_image(insns("4889e5")[0], 0x2000, 0x3000, 0x4000, None, True)[0],
    optimized_detour: lambda: optimized_detour.detour_code(insns("55 4889e5 53"), 0x2000, 0x3000, 0x4000).code,
}
HALF = {return_stub: 55}
"""Families of which the listing shows what begins here."""


@pytest.mark.skipif(sys.platform != "linux", reason="GNU as")
@pytest.mark.parametrize("module", FAMILIES, ids=lambda module: module.__name__)
def test_a_listing_of_bytes_is_what_is_made(module: ModuleType, tmp_path: Path) -> None:
    lines, real = lines_of(module), FAMILIES[module]()
    expected = assembled(lines, tmp_path)
    end = 0
    for at, code in lines.items():
        if at >= HALF.get(module, 0):
            assert set(real[end:at]) <= {0, INT3} or at == HALF.get(module), f"{end} to {at} is not in the listing"
        end = at + size_at(real, at, code)
        same = end - filled_in(code)
        assert expected[at:same] == real[at:same], f"{at}: {code}; it is {decode(real[at:end], at).text}"
    assert set(real[end:]) <= {0, INT3} or module in HALF


def expanded(module: ModuleType, name: str) -> list[str]:
    """The text of a trampoline, an instruction to a line. `module`: the one with its listing."""
    if module in (detour, optimized_detour, single_handlers):
        texts = [module.assembly(_BY_NAME).replace("$", "$$")]  # as it is before constants are filled in
    else:
        texts = [with_blocks(text, trampolines._BLOCKS) for text in trampolines._texts()]
    text = next(text for text in texts if f"\n{name}:\n" in text)
    return plain(text[text.index(f"\n{name}:\n") :])


class _Name(str):
    """A constant by its name; an offset of 0 for what is no text."""

    __slots__ = ()

    def __int__(self) -> int:
        return 0


_BY_NAME = {name: _Name(name) for name in kprobe_assembly._constants(SaveArea("xsave", 0, 0, True))}


def plain(text: str) -> list[str]:
    """Instructions with constants by name, without comments and directives."""
    text = re.sub(r"^ *\$([a-z_]+)$", lambda found: found[1].upper(), text, flags=re.MULTILINE)  # depends on the CPU
    text = re.sub(r"\$([A-Z])", r"\1", text.replace("$$", "\0")).replace("\0", "$")
    found = [" ".join(line.partition("#")[0].split()) for line in text.splitlines()]
    return [line for line in found if line and not line.startswith(".")]


BLOCKS = {name: getattr(images, name) for name in vars(images) if name.isupper()} | {
    "ITEM_DATA": multi_probe_trampolines.ITEM_DATA
}
"""Sequences that a listing has by name."""


def listed(module: ModuleType, name: str) -> list[str]:
    text = (module.__doc__ or "").partition(f"\n    {name}:\n")[2].partition("\n\n")[0]
    code = "\n".join(line.partition("<-")[0].strip() for line in text.splitlines())
    code = "\n".join("\n".join(plain(BLOCKS[line])) if line in BLOCKS else line for line in code.splitlines())
    return [f"{name}:", *(" ".join(line.split()) for line in code.splitlines() if line.strip())]


@pytest.mark.parametrize(
    ("module", "name", "last"),
    [
        (fast_trampolines, "ftrace_both", "ret"),
        (fast_returns, "ftrace_exit_fast", "ret"),
        (trampolines, "ftrace_entry_full", "ret"),
        (multi_probe_trampolines, "ftrace_entry_multi", "ret"),
        (register_trampolines, "ftrace_both_regs", "ret"),
        (preserving_trampolines, "preserving_exit_fast", "ret"),
        (foreign_call, "ftrace_call_foreign", "jmp 8f"),
        (single_handlers, "kprobe_single", "ret"),
        (optimized_detour, "kprobe_optimized_plain", "ret $128"),
        (detour, "kprobe_detour", "ret $128"),
    ],
    ids=lambda given: given if isinstance(given, str) else given.__name__,
)
def test_a_listing_of_a_trampoline_is_the_text_that_is_assembled(module: ModuleType, name: str, last: str) -> None:
    found, text = listed(module, name), expanded(module, name)
    assert found == text[: len(found)] and found.index(last) == len(found) - 1 > 15


@pytest.mark.parametrize("wrong", ["mov STUB(%r11), %r11", "mov TOP(%r10), %r11", "mov TOP(%r11), %r10"])
def test_a_changed_listing_is_noticed(wrong: str, tmp_path: Path) -> None:
    """Otherwise the comparison would be worth nothing."""
    lines = lines_of(stubs)
    assert lines[85] == "mov TOP(%r11), %r11"
    assert assembled(lines | {85: wrong}, tmp_path)[85:89] != _stub()[85:89] == assembled(lines, tmp_path)[85:89]
