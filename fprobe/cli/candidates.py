"""Shell completion of functions (read from sources without compiling), fields of events, triggers, and files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem

_IR_FUNCTION = re.compile(r'^define [^@\n]*@(?:([-\w$.]+)|"([^"\n]*)")', re.MULTILINE)
_C_FUNCTION = re.compile(r"^[A-Za-z_][\w\s*&:<>,]*?[\s*&](\w+)\s*\([^;{}]*\)\s*\{", re.MULTILINE)
_NO_FUNCTIONS = {"if", "for", "while", "switch", "return"}
_ATTRIBUTES = re.compile(r'(?:__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)|\[\[[^\]]*\]\]|\bextern\s+"C")\s*')
_LAST_WORD = re.compile(r"\w+$")
_LAST_PART = re.compile(r"\.?\w*$")
_EVENT = re.compile(r"(?P<kind>[prf])\d*:(?:(?P<group>\w+)[/.])?(?P<event>\w+)")
_GROUPS = {"p": "kprobes", "r": "kprobes", "f": "fprobes"}
_COMMON_FIELDS = ("common_pid",)
_HIST_PARAMETERS = ("keys=", "vals=", "sort=", "size=")
_HIST_KEYS = ("common_stacktrace", "common_timestamp", "common_cpu")
_MODIFIERS = {
    "keys": ("hex", "sym", "sym-offset", "log2", "buckets=", "execname", "stacktrace", "usecs"),
    "vals": ("hex", "percent", "graph"),
    "sort": ("ascending", "descending"),
}
_TRIGGERS = ("hist:", "stacktrace", "snapshot", "traceon", "traceoff", "enable_event:", "disable_event:")
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
    return _last_words(incomplete, [*_COMMON_FIELDS, *field_names(ctx.params.get("definitions") or ())])


def hist_parameters(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """A parameter of a hist trigger: its name, the fields of the events given so far, their modifiers, the orders of entries."""
    name, is_given, value = incomplete.partition("=")
    if not is_given:
        return [CompletionItem(each) for each in _HIST_PARAMETERS if each.startswith(incomplete)]
    if name == "size":
        return []
    last = _LAST_PART.search(value)
    if last is not None and last[0].startswith("."):
        return _last_words(incomplete, _MODIFIERS.get(name, ()))
    known = {"keys": (*_HIST_KEYS, *_COMMON_FIELDS), "vals": ("hitcount",), "sort": ("hitcount", *_COMMON_FIELDS)}
    names = [*known.get(name, ()), *field_names(ctx.params.get("definitions") or ())]
    return _last_words(incomplete, names)


def triggers(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """A trigger: its command, the parameters of a histogram, the events to switch, or the fields of the condition."""
    _, has_condition, _ = incomplete.partition(" if ")
    if has_condition:
        return fields(ctx, parameter, incomplete)
    command, is_complete, rest = incomplete.partition(":")
    if not is_complete:
        return [CompletionItem(each) for each in _TRIGGERS if each.startswith(incomplete)]
    front, colon, last = rest.rpartition(":")
    if command == "hist":
        found = [item.value for item in hist_parameters(ctx, parameter, last)]
    elif command in ("enable_event", "disable_event"):
        found = [name for name in event_names(ctx.params.get("definitions") or ()) if name.startswith(rest)]
        front = colon = ""
    else:
        found = []
    return [CompletionItem(f"{command}:{front}{colon}{each}") for each in found]


def _last_words(incomplete: str, names: Iterable[str]) -> list[CompletionItem]:
    """The names that begin with the last word of `incomplete`, each with what precedes that word."""
    begun = _LAST_WORD.search(incomplete)
    start = begun.start() if begun else len(incomplete)
    return [CompletionItem(incomplete[:start] + name) for name in names if name.startswith(incomplete[start:])]


def event_names(definitions: Iterable[str]) -> list[str]:
    """The events that definitions name, as `SYSTEM:EVENT`."""
    found = (_EVENT.match(definition) for definition in definitions)
    return [f"{each['group'] or _GROUPS[each['kind']]}:{each['event']}" for each in found if each]


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
    return [name for name in _C_FUNCTION.findall(_ATTRIBUTES.sub("", text)) if name not in _NO_FUNCTIONS]


def bitcode_names(data: bytes) -> list[str]:
    """The functions that bitcode defines."""
    from sandbox.compile.codegen import parse

    return [function.name for function in parse(data, "bitcode").functions if not function.is_declaration]
