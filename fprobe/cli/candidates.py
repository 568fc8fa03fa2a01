"""Shell completion of functions (read from sources without compiling), fields of events, and files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem

_IR_FUNCTION = re.compile(r'^define [^@\n]*@(?:([-\w$.]+)|"([^"\n]*)")', re.MULTILINE)
_C_FUNCTION = re.compile(r"^[A-Za-z_][\w\s*&:<>,]*?[\s*&](\w+)\s*\([^;{}]*\)\s*\{", re.MULTILINE)
_NO_FUNCTIONS = {"if", "for", "while", "switch", "return"}
_LAST_WORD = re.compile(r"\w+$")
_COMMON_FIELDS = ("common_pid",)
_BITCODE = b"BC\xc0\xde"


def functions(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The program's functions whose names begin with `incomplete`."""
    program = ctx.params.get("program")
    try:
        names = function_names(Path(program)) if program else demo_names()
    except (OSError, ValueError):
        return []
    return [CompletionItem(name) for name in sorted(set(names)) if name.startswith(incomplete)]


def definitions(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Event definitions: completes the function, after the first word."""
    front, blank, started = incomplete.rpartition(" ")
    if not blank or " " in front.strip():
        return []
    return [CompletionItem(f"{front} {item.value}") for item in functions(ctx, parameter, started)]


def fields(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Fields of the events given so far, as the last word of an expression."""
    begun = _LAST_WORD.search(incomplete)
    start = begun.start() if begun else len(incomplete)
    names = [*_COMMON_FIELDS, *field_names(ctx.params.get("definitions") or ())]
    return [CompletionItem(incomplete[:start] + name) for name in names if name.startswith(incomplete[start:])]


def field_names(definitions: Iterable[str]) -> list[str]:
    """The names of the arguments of definitions: as given, or generated (`arg1`)."""
    names = []
    for definition in definitions:
        for number, argument in enumerate(definition.split()[2:], 1):
            name, given, _ = argument.partition("=")
            names.append(name if given else f"arg{number}")
    return list(dict.fromkeys(names))


def files(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Files, completed by the shell."""
    return [CompletionItem(incomplete, type="file")]


def demo_names() -> list[str]:
    """The functions of the built-in demo."""
    import sandbox.demo

    return sandbox.demo.names()


def function_names(path: Path) -> list[str]:
    """The functions that the program at `path` defines, found by searching its text."""
    data = path.read_bytes()
    return bitcode_names(data) if data.startswith(_BITCODE) else _text_names(path, data)


def number_of_functions(path: Path) -> int:
    """How many functions the program at `path` seems to define; 0 for bitcode, which LLVM would have to parse."""
    data = path.read_bytes()
    return 0 if data.startswith(_BITCODE) else len(set(_text_names(path, data)))


def _text_names(path: Path, data: bytes) -> list[str]:
    text = data.decode(errors="replace")
    return ir_names(text) if path.suffix == ".ll" else c_names(text)


def ir_names(text: str) -> list[str]:
    """The functions that IR text defines."""
    return [plain or quoted for plain, quoted in _IR_FUNCTION.findall(text)]


def c_names(text: str) -> list[str]:
    """The functions that C or C++ source seems to define."""
    return [name for name in _C_FUNCTION.findall(text) if name not in _NO_FUNCTIONS]


def bitcode_names(data: bytes) -> list[str]:
    """The functions that bitcode defines."""
    from sandbox.compile.codegen import parse

    return [function.name for function in parse(data, "bitcode").functions if not function.is_declaration]
