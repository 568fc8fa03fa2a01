"""How much code can become jumps: each instruction alone, all at once, and by the kernel's own rules.

    python -m benchmarks.jump_coverage libz.so.1 libm.so.6 libsqlite3.so.0 demo program.c
    python -m benchmarks.jump_coverage --at-once right libz.so.1

The instructions are those of all code that a library's unwind tables describe, or of all functions of a program. *Probeable*
are those that a kprobe can be on, but for the ftrace locations, where it is a callback of the stub. *Alone*: a jump to a
detour was found, in this process, if no other jump was there. *Kernel*: the kernel's rules, applied to each alone, would
allow a jump. *At once*: kprobes are registered on every probeable instruction, and optimised together as `Extent.DENSE`, from
right to left or in a random order.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import sandbox
from ftrace import ftrace_location
from kprobes import kprobe, optimization, register_kprobe
from kprobes.breakpoint.patching import patching
from kprobes.jump import choice
from kprobes.jump.functions import function_at
from kprobes.jump.jumps import MOST_BORROWED
from kprobes.jump.optinsns import caches
from kprobes.jump.safety import Function, absorbable, kernel_refusal, own_refusal
from kprobes.place import original_text
from kprobes.x86_64.classify import refusal
from sandbox import Module, demo, symbol_table
from sandbox.images.process_text import library_called
from sandbox.loading.load import C_SUFFIXES, IR_SUFFIXES
from sandbox.memory.address_space import AddressSpace
from sandbox.x86_64.encoding import JMP32_SIZE
from sandbox.x86_64.instruction import Instruction, decode
from sandbox.x86_64.puns import Window, borrowed, wider_windows, windows


@dataclass
class Alone:
    """What was found of some code; counts of instructions. `refused`: by rule, of those that are probeable."""

    instructions: int = 0
    on_ftrace: int = 0
    probeable: int = 0
    jumps: int = 0
    long: int = 0
    punned: int = 0
    absorbing: int = 0
    kernel: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    kernel_refused: Counter[str] = field(default_factory=Counter)


def functions_of(target: str) -> list[tuple[int, int]]:
    """Start and end of every function of the demo program (`demo`), of a program's file, or of a shared library, which is loaded.

    Raises OSError or ValueError if it cannot be loaded.
    """
    if target == demo.NAME:
        return functions_of_program(sandbox.load(demo.source(), name=demo.NAME))
    if Path(target).suffix in (*C_SUFFIXES, *IR_SUFFIXES):
        return functions_of_program(sandbox.load(Path(target)))
    ctypes.CDLL(target)
    return [(start, end) for start, end in library_called(target).described_code() if start < end]


def functions_of_program(program: Module) -> list[tuple[int, int]]:
    """Start and end of every function of a program."""
    symbols = [symbol for symbol in symbol_table if symbol.module == program.name and symbol.size]
    return [(symbol.address, symbol.end) for symbol in symbols if any(symbol.address in text for text in program.texts)]


def instructions_of(spans: Sequence[tuple[int, int]]) -> Iterator[tuple[Function, Instruction]]:
    """Every instruction of functions that decode to their end."""
    for start, end in spans:
        function = function_at(start, end)
        if function.stopped == end:
            for at in function.starts:
                yield function, decode(function.code[at - start : at - start + 15], at)


def alone(spans: Sequence[tuple[int, int]]) -> Alone:
    """Each instruction by itself; nothing is patched."""
    found, gaps = Alone(), AddressSpace()
    for function, insn in instructions_of(spans):
        found.instructions += 1
        if _is_on_ftrace(insn.address):
            found.on_ftrace += 1
            continue
        if refusal(insn)[0]:
            continue
        found.probeable += 1
        by_kernel = kernel_refusal(function, insn.address)
        found.kernel += by_kernel is None
        if by_kernel is not None:
            found.kernel_refused[by_kernel.rule] += 1
        _count(found, _way(function, insn, gaps))
    return found


def _is_on_ftrace(address: int) -> bool:
    return ftrace_location(address) == address


def _count(found: Alone, way: str) -> None:
    found.jumps += way in ("long", "punned", "absorbing")
    if way in ("long", "punned", "absorbing"):
        setattr(found, way, getattr(found, way) + 1)
    else:
        found.refused[way] += 1


def _way(function: Function, insn: Instruction, gaps: AddressSpace) -> str:
    """How the instruction becomes a jump, or the rule that is against it."""
    against = own_refusal(function, insn)
    if against is not None:
        return against.rule
    if insn.length >= JMP32_SIZE:
        return "long"
    if any(map(gaps_in(gaps), windows(insn.address, insn.length, original_text(insn.end, MOST_BORROWED)))):
        return "punned"
    lengths = [insn.length]
    end = insn.end
    while end < insn.address + JMP32_SIZE and (behind := absorbable(function, insn.address, end)) is not None:
        lengths.append(behind.length)
        end = behind.end
        if any(map(gaps_in(gaps), wider_windows(insn.address, lengths, _behind(insn.address, end)))):
            return "absorbing"
    return "no place to land"


def _behind(address: int, end: int) -> bytes:
    return original_text(end, borrowed(end - address))


class gaps_in:
    """Whether something could land in a window."""

    def __init__(self, gaps: AddressSpace) -> None:
        self._gaps = gaps

    def __call__(self, window: Window) -> bool:
        first, last = window.low & -4096, (window.high + JMP32_SIZE - 1) & -4096
        if last - first <= 4096:
            return self._gaps.free(first) and (window.low + JMP32_SIZE <= first + 4096 or self._gaps.free(first + 4096))
        return self._gaps.first_free(first, last) is not None


@dataclass
class Together:
    """What became of kprobes on everything. `mappings`: of detours and landings; `seconds`: of the optimiser's run."""

    probes: int
    jumps: int
    mappings: int
    refused: Counter[str]
    seconds: float


_BATCH = 256
"""Probes in a random order are optimised so many at a time: few enough that hardly any two are neighbours."""


def together(spans: Sequence[tuple[int, int]], order: str, seed: int = 1) -> Together:
    """kprobes on all instructions of these functions, `order` 'right' (to left) or 'random'. They stay."""
    addresses = [at for start, end in spans for at in _starts(start, end) if not _is_on_ftrace(at)]
    if order == "random":
        random.Random(seed).shuffle(addresses)
    optimization.set_extent(optimization.Extent.DENSE)
    batch = _BATCH if order == "random" else len(addresses)
    probes: list[kprobe] = []
    seconds = 0.0
    with patching():
        for first in range(0, len(addresses), batch):
            probes += _registered(addresses[first : first + batch])
            began = time.monotonic()
            optimization.wait_for_kprobe_optimizer()
            seconds += time.monotonic() - began
    jumps = [probe for probe in probes if probe.place and probe.place.covered]
    refused = Counter(why.rule for why in choice.refusals.values())
    return Together(len(probes), len(jumps), sum(r.mappings() for r in caches()), refused, seconds)


def _registered(addresses: Sequence[int]) -> Iterator[kprobe]:
    for address in addresses:
        probe = kprobe(addr=address)
        with contextlib.suppress(OSError):
            register_kprobe(probe)
            yield probe


def _starts(start: int, end: int) -> tuple[int, ...]:
    function = function_at(start, end)
    return function.starts if function.stopped == end else ()


def _share(part: int, whole: int) -> str:
    return f"{100 * part / max(whole, 1):5.1f} %"


def _rules(refused: Counter[str]) -> str:
    return ", ".join(f"{rule} {count}" for rule, count in refused.most_common()) or "none"


def _report_alone(name: str, found: Alone) -> None:
    on_ftrace = f", {found.on_ftrace} on ftrace locations" if found.on_ftrace else ""
    print(f"{name}: {found.instructions} instructions, {found.probeable} probeable{on_ftrace}")
    print(f"  alone    {_share(found.jumps, found.probeable)}  long {found.long}, punned {found.punned}, "
          f"absorbing {found.absorbing}; refused: {_rules(found.refused)}")  # fmt: skip
    print(f"  kernel   {_share(found.kernel, found.probeable)}  refused: {_rules(found.kernel_refused)}")


def _report_together(name: str, order: str, found: Together) -> None:
    per = found.mappings * 10_000 / max(found.probes, 1)
    print(f"{name}: at once, {order}")
    print(f"  jumps    {_share(found.jumps, found.probes)}  of {found.probes}; refused: {_rules(found.refused)}")
    print(f"  mappings {found.mappings}, {per:.0f} per 10,000 probes; optimised in {found.seconds:.1f} s")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 0, or 1 if something cannot be loaded."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.jump_coverage", description=(__doc__ or "").splitlines()[0]
    )
    about = "a shared library, as dlopen() finds it, a program's file, or 'demo'"
    parser.add_argument("target", nargs="+", help=about)
    parser.add_argument("--at-once", choices=("right", "random"), help="register kprobes on everything, in this order")
    parser.add_argument("--seed", type=int, default=1, help="of the random order; 1 if not given")
    options = parser.parse_args(arguments)
    for name in options.target:
        try:
            spans = functions_of(name)
        except (OSError, ValueError) as error:
            print(f"{parser.prog}: {error}", file=sys.stderr)
            return 1
        if options.at_once:
            _report_together(name, options.at_once, together(spans, options.at_once, options.seed))
        else:
            _report_alone(name, alone(spans))
    return 0


if __name__ == "__main__":
    sys.exit(main())
