"""`fprobe disasm`: machine code of a function's entry, before and while it is probed, of its stub, and of native handlers."""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fprobe.cli import candidates
from fprobe.cli.attaching import refuse_with_pid
from fprobe.cli.console import Console
from fprobe.cli.failure import input_errors
from fprobe.cli.options import ProgramTarget, output_options, program_options

if TYPE_CHECKING:
    from fprobe.cli.matching import Site
    from sandbox.loading.module import Module
    from sandbox.symbols.disassembly import Line
    from sandbox.symbols.source_lines import SourceLine
    from sandbox.symbols.table import Symbol


_EPILOG = """\b
Examples:
  fprobe disasm vfs_read
  fprobe disasm vfs_read --stub
  fprobe disasm main --program prog.c --all
  fprobe disasm d_lookup --source
  fprobe disasm libz:deflate --stub
  fprobe disasm handler.py:large_reads --source
  fprobe disasm -p 4711 libz:deflate
"""

_HANDLER = re.compile(r".+\.py:\w+")
_SHOWN = 8
"""Number of instructions that are shown without --all."""


@click.command("disasm", epilog=_EPILOG, short_help="Show machine code.")
@click.argument("function", metavar="FUNC", shell_complete=candidates.functions)
@click.option("--stub", is_flag=True, help="Also the stub that the probed entry jumps to.")
@click.option("--all", "-a", "everything", is_flag=True, help="The whole function, not only its entry.")
@click.option("--source", is_flag=True, help="The whole function under its lines of source, where those are known.")
@program_options
@output_options
def disasm_command(
    function: str, stub: bool, everything: bool, source: bool, target: ProgramTarget, console: Console
) -> None:
    """Show the bytes at the entry of FUNC as loaded, and while a probe is on it. `=>` marks the patched place.

    FUNC may also be a native handler, as FILE.py:NAME. With -p: a running process is only read, not probed.
    """
    if target.running is not None:
        from fprobe.cli.remote_code import disassemble_running

        refuse_with_pid(stub=stub, source=source)
        disassemble_running(target.running.pids, function, everything, console)
        return
    from fprobe.cli import matching, program

    if _is_handler(function):
        _show_handler(console, function, None if everything or source else _SHOWN, source)
        return
    module = program.load(target)
    with input_errors():
        symbol = matching.symbols_of_image(function)[0] if matching.names_image(function) else module.symbol(function)
    if source:
        _show_with_source(console, module, symbol)
        return
    _show_entry(console, module, function, symbol, stub, None if everything else _SHOWN, target.notrace)


def _show_entry(
    console: Console, module: Module, name: str, symbol: Symbol, stub: bool, limit: int | None, notrace: Sequence[str]
) -> None:
    """Show the first `limit` instructions as loaded and while probed, and the code that the probed entry jumps to."""
    from fprobe.actions import Count
    from fprobe.cli import matching

    before = _code(module, symbol.address, symbol.end)[:limit]
    of_image = matching.names_image(name)
    match = matching.match_image(name) if of_image else matching.match(module, [_literal(name)], notrace=notrace)
    sections = {"loaded": (symbol.address, before)}
    if match.sites:
        with matching.attached(match, action=Count()):
            now = _code(module, symbol.address, symbol.end, patched=True)
            sections["probed"] = (symbol.address, (_patched(symbol, now, before) if of_image else now)[:limit])
            if stub:
                sections["stub"] = _detour(match.sites[0]) if of_image else _stub(match.sites[0])
    _print(console, symbol, name, sections, match.skipped[0].reason if match.skipped else "")


def _show_with_source(console: Console, module: Module, symbol: Symbol) -> None:
    """Show the whole function as loaded, with its source lines. Raises Failure if these are not known."""
    from fprobe.cli.failure import Failure
    from sandbox.symbols import source_lines

    lines = _code(module, symbol.address, symbol.end)
    if not any(source_lines.at(line.address) for line in lines):
        raise Failure(f"the source lines of {symbol} are not known: it was compiled without line information")
    console.line(console.bold(_TITLES["loaded"].format(name=symbol.name)))
    objects = _print_code(console, symbol.address, lines, with_source=True)
    console.document({**_named(symbol), "loaded": objects})


def _literal(name: str) -> str:
    """A pattern that matches only this name."""
    return "".join(f"\\{character}" if character in "*?[\\!" else character for character in name)


def _code(module: Module, start: int, end: int, patched: bool = False) -> list[Line]:
    import ctypes

    from sandbox.symbols.disassembly import disassemble

    sites = module.sites if any(start in text for text in module.texts) else array("Q", [start] * patched)
    return disassemble(ctypes.string_at(start, end - start), start, _name_at, sites)


def _name_at(address: int) -> str | None:
    """The symbol at an address, with the offset; None if there is none."""
    from sandbox.symbols.table import symbol_table

    found = symbol_table.locate(address)
    return str(found) if found else None


def _stub(site: Site) -> tuple[int, list[Line]]:
    """The code that the site jumps to: its entry and its exit, without the data between them."""
    import ctypes

    from ftrace.hit.x86_64 import stubs
    from sandbox.symbols.disassembly import disassemble

    displacement = ctypes.c_int32.from_address(site.address + 1).value
    base = site.address + stubs.SITE_SIZE + displacement - stubs.ENTRY_POINT
    landmarks = _landmarks(site, base)
    lines: list[Line] = []
    for start, end in ((stubs.ENTRY_POINT, stubs.EXIT_POINT), (stubs.EXIT_POINT, stubs.SLOW_RETURN + 2)):
        lines += disassemble(ctypes.string_at(base + start, end - start), base + start, landmarks.get)
    return base, lines


def _landmarks(site: Site, base: int) -> dict[int, str]:
    """Descriptions of addresses that a stub refers to."""
    import ctypes

    from ftrace.hit.records import StubRecord
    from ftrace.hit.x86_64 import stubs

    record: Any = StubRecord
    slot = ctypes.c_uint64.from_address(base + record.offset("slot")).value
    found = {base + offset: f"stub+{offset:#x}" for offset in range(stubs.STUB_SIZE)}
    return found | {site.address + stubs.SITE_SIZE: f"body of {site.symbol.name}", slot: "slot: the list of probes"}


_TITLES = {
    "loaded": "{name}, as loaded",
    "probed": "{name}, while probed",
    "stub": "the stub of {name}: entry and exit",
}


def _named(symbol: Symbol) -> dict[str, str]:
    return {"function": symbol.readable, "symbol": symbol.name, "module": symbol.module}


def _print(
    console: Console, symbol: Symbol, name: str, sections: dict[str, tuple[int, list[Line]]], refusal: str
) -> None:
    from sandbox.symbols.disassembly import listing

    for number, (section, (base, lines)) in enumerate(sections.items()):
        if number:
            console.line()
        console.line(console.bold(_TITLES[section].format(name=name)))
        for text in listing(lines, base):
            console.line(console.good(text) if text.startswith("=>") else text)
    if refusal:
        console.line(f"{name} cannot be probed: {refusal}")
    document = {section: [_object(line) for line in lines] for section, (_, lines) in sections.items()}
    console.document({**_named(symbol), **document, **({"refused": refusal} if refusal else {})})


def _is_handler(text: str) -> bool:
    """Whether `text` names a handler in a Python file, and not a function of a program."""
    return _HANDLER.fullmatch(text) is not None


def _show_handler(console: Console, text: str, limit: int | None, with_source: bool) -> None:
    """Print the code of the handler `FILE.py:NAME`. Raises Failure if there is none, or if it does not compile."""
    from fprobe.cli import native

    handler = native.load(text).entry
    base, lines = _handler_code(native.compile_handler(handler), handler.name)
    console.line(console.bold(f"{handler.name}, native"))
    objects = _print_code(console, base, lines[:limit], with_source)
    console.document({"function": handler.name, "loaded": objects})


def _print_code(console: Console, base: int, lines: list[Line], with_source: bool) -> list[dict[str, Any]]:
    """Print instructions below their source lines. Returns them for JSON."""
    from sandbox.symbols import source_lines
    from sandbox.symbols.disassembly import listing

    places = [source_lines.at(line.address) if with_source else None for line in lines]
    before = None
    for shown, place in zip(listing(lines, base), places, strict=True):
        if place is not None and place != before:
            console.line(console.dim(f"{Path(place.file).name}:{place.line}: {place.text}"))
            before = place
        console.line(shown)
    return [_object(line, place) for line, place in zip(lines, places, strict=True)]


def _handler_code(image: Any, name: str) -> tuple[int, list[Line]]:
    """The address and the instructions of a function of an image."""
    import ctypes

    from sandbox.symbols.disassembly import disassemble

    symbol = next(symbol for symbol in image.symbols if symbol.name == name)

    code = ctypes.string_at(symbol.address, symbol.end - symbol.address)
    return symbol.address, disassemble(code, symbol.address, _name_at)


def _object(line: Line, place: SourceLine | None = None) -> dict[str, Any]:
    found = {"address": line.address, "bytes": line.code.hex(), "text": line.text, "note": line.note}
    return found | ({"file": place.file, "line": place.line} if place else {})


def _detour(site: Site) -> tuple[int, list[Line]]:
    """The code that the patched entry of a function leads to: its address, and its instructions."""
    import ctypes

    from fprobe.cli.matching import detoured
    from ftrace.hit.x86_64.entry_detour import DETOUR_SIZE, ENTRY
    from sandbox.symbols.disassembly import disassemble

    block, index = detoured(site.symbol)
    start = block.entry_at(index)
    code = ctypes.string_at(start, DETOUR_SIZE - ENTRY).rstrip(b"\xcc")
    return start, disassemble(code, start, lambda _address: None)


def _patched(symbol: Symbol, jump: list[Line], before: list[Line]) -> list[Line]:
    """A function while it is probed: the jump at its entry, then its remaining lines as loaded."""
    from fprobe.cli.matching import detoured

    block, index = detoured(symbol)
    return [*jump[:1], *(line for line in before if line.address >= symbol.address + block.owned_at(index))]
