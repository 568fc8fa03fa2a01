"""The verbs about functions that can be probed: `fprobe list`, and `fprobe explain`, which says why others cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fprobe.cli import candidates
from fprobe.cli.console import Console
from fprobe.cli.options import ProgramTarget, output_options, program_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fprobe.cli.matching import Refusals, Site
    from ftrace.core.sites.detoured import DetouredBlock
    from sandbox.abi.signatures import Signature
    from sandbox.loading.module import Module
    from sandbox.symbols.table import Symbol


_LIST_EPILOG = """\b
Examples:
  fprobe list 'vfs_*'
  fprobe list --program prog.c -v
  fprobe list '*' --all
  fprobe list 'libz:inflate*'
  fprobe list -p 4711 'libz:inflate*'
"""


@click.command("list", epilog=_LIST_EPILOG, short_help="List functions.")
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1, shell_complete=candidates.functions)
@click.option("--all", "-a", "everything", is_flag=True, help="Also those that cannot be probed, with the reason.")
@program_options
@output_options
def list_command(patterns: tuple[str, ...], everything: bool, target: ProgramTarget, console: Console) -> None:
    """List the functions that match PATTERN and can be probed; without PATTERN, all of them.

    -v adds address, size and signature.
    """
    if target.running is not None:
        from fprobe.cli.remote_code import list_running

        list_running(target.running.pids, patterns, console)
        return
    from fprobe.cli import matching, program

    module = program.load(target)
    match = matching.match(module, patterns or ("*",), notrace=target.notrace)
    for site in match.sites:
        detail = f"{site.symbol.address:#x} {site.symbol.size:6}  " if console.verbosity > 0 else ""
        signature = program.signature_of(module, site.symbol) if console.verbosity > 0 else None
        console.line(f"{detail}{signature or match.names[site.address]} {console.dim(f'[{site.symbol.module}]')}")
    if everything:
        for name, reason in match.skipped:
            owner = "" if name.endswith("]") else f" [{module.name}]"
            console.line(console.dim(f"{name}{owner} ({reason})"))
    skipped = [skipped._asdict() for skipped in match.skipped]
    console.document({"program": module.name, "functions": list(map(_object, match.sites)), "skipped": skipped})


def _object(site: Site) -> dict[str, Any]:
    symbol = site.symbol
    return {
        "name": symbol.readable,
        "symbol": symbol.name,
        "module": symbol.module,
        **_extent(symbol),
        "site": site.address,
    }


def _extent(symbol: Symbol) -> dict[str, int]:
    return {"address": symbol.address, "size": symbol.size}


_EXPLAIN_EPILOG = """\b
Examples:
  fprobe explain vfs_read
  fprobe explain get_current 'vfs_*'
  fprobe explain main --program prog.c
  fprobe explain libz:deflate
  fprobe explain -p 4711 libz:deflate
  fprobe explain -L sum --program prog.c
  fprobe explain -V sum:3 prog.c:42 --program prog.c
"""

_MEANING = {
    "notrace": 'it has the attribute "notrace" or was named by --notrace, and so was compiled without a stub',
    "no stub": "there is no 5-byte stub at its entry: it was compiled without one",
    "compiled without stubs": "the program was compiled with --flavour none",
    "returns twice": "a call may return more than once (setjmp, vfork), but its return can be hooked only once",
    "has an argument in r10 or r11": "its calling convention passes a value in these registers, which the stub overwrites",
}


@click.command("explain", epilog=_EXPLAIN_EPILOG, short_help="Say whether functions can be probed.")
@click.argument("patterns", metavar="PATTERN...", nargs=-1, required=True, shell_complete=candidates.functions)
@click.option(
    "--lines", "-L", is_flag=True, help="The source lines of the functions, with those that can be probed marked."
)
@click.option(
    "--vars", "-V", "variables", is_flag=True, help="The variables at places: FUNC:LINE, FILE:LINE, FUNC+OFFSET."
)
@program_options
@output_options
def explain_command(
    patterns: tuple[str, ...], lines: bool, variables: bool, target: ProgramTarget, console: Console
) -> None:
    """Say whether functions can be probed, where their stubs are, and how returns are hooked; if not, say why.

    PATTERN is a function's name or a glob (*, ?, [a-z]). With --json: a list with an object for each function.
    With -p: of libraries of a running process, which is only read.

    -L and -V need debug information. Lines count from the function's first, as those of places `FUNC:LINE` do.
    """
    if lines and variables:
        raise click.UsageError("-L shows lines and -V variables: give one of them")
    if target.running is not None:
        _explain_running(target.running.pids, patterns, lines, variables, console)
        return
    from fprobe.cli import matching, program

    module = program.load(target)
    if lines or variables:
        from fprobe.cli.source_lines import show_lines, show_variables

        (show_lines if lines else show_variables)(patterns, console)
        return
    refusals = matching.Refusals(module, target.notrace)
    symbols = [symbol for pattern in patterns for symbol in matching.symbols_of(module, pattern)]
    objects = [_explain(console, module, refusals, symbol) for symbol in dict.fromkeys(symbols)]
    console.document(objects)


def _explain_running(
    pids: Sequence[int], patterns: Sequence[str], lines: bool, variables: bool, console: Console
) -> None:
    """`fprobe explain -p`."""
    from fprobe.cli import remote_code, remote_lines

    if lines or variables:
        (remote_lines.lines_running if lines else remote_lines.variables_running)(pids, patterns, console)
    else:
        remote_code.explain_running(pids, patterns, console)


def _explain(console: Console, module: Module, refusals: Refusals, symbol: Symbol) -> dict[str, Any]:
    """Print the facts about a function. Returns them for JSON."""
    from fprobe.cli.matching import reason_in_image

    other = symbol.module != module.name
    reason = reason_in_image(symbol) if other else refusals.reason(symbol)
    facts = _facts(module, symbol, refusals.sites.get(symbol.address))
    ends = "at entry" if facts.get("return", "").startswith("cannot") else "at entry and at return"
    verdict = f"cannot be probed: {reason}" if reason else f"can be probed, {ends}"
    console.line(f"{console.bold(str(symbol))} {console.bad(verdict) if reason else console.good(verdict)}")
    if reason in _MEANING:
        console.line(f"  why        {_MEANING[reason]}")
    for fact, value in facts.items():
        console.line(f"  {fact:<10} {value}")
    place = {"address": symbol.address, "size": symbol.size, "section": symbol.section}
    found = {fact.replace(" ", "_"): value for fact, value in facts.items()} | place
    name = {"function": symbol.readable, "symbol": symbol.name, "module": symbol.module}
    return {**name, "probeable": not reason, "reason": reason, **found}


def _facts(module: Module, symbol: Symbol, site: int | None) -> dict[str, Any]:
    from fprobe.cli.program import signature_of
    from sandbox.images.prototypes import signature_in_library

    signature = signature_of(module, symbol) or signature_in_library(symbol)
    facts = {"signature": str(signature) if signature else "not known"} | (_places(signature) if signature else {})
    facts["address"] = f"{symbol.address:#x}, {symbol.size} bytes, in {symbol.section}"
    return facts | (_detour_facts(symbol) if site is None else _site_facts(module, symbol, site))


def _places(signature: Signature) -> dict[str, str]:
    """The places of the arguments at the entry, and of the result at the return; `?` where one is not known."""
    from sandbox.abi.convention import argument_places, result_place
    from sandbox.abi.signatures import Void

    places, _ = argument_places(signature)
    passed = [f"{each.name or f'arg{number}'}={place or '?'}" for number, (each, place) in enumerate(places, 1)]
    facts = {"passed": ", ".join(passed)} if passed else {}
    return facts if isinstance(signature.result, Void) else facts | {"returned": str(result_place(signature) or "?")}


def _site_facts(module: Module, symbol: Symbol, site: int) -> dict[str, str]:
    import ctypes

    crosses = site % 8 > 3
    by = "breakpoint, tail, first byte, while other threads run" if crosses else "a single 8-byte store"
    after = module.site_kind == "mcount"
    hook = "the return address is swapped for the stub's" if after else "balanced: the stub calls the body"
    return {
        "stub": f"{module.site_kind}, at +{site - symbol.address:#x}: {ctypes.string_at(site, 5).hex(' ')}",
        "patched by": by,
        "return": hook,
    }


def _detour_facts(symbol: Symbol) -> dict[str, str]:
    """How a library function that `match_image` has found is probed."""
    from fprobe.cli.matching import detoured

    try:
        block, index = detoured(symbol)
    except LookupError:
        return {}
    code = block.text_of(index)
    return {
        "entry": f"{block.mechanisms[index].value}, over {code.hex(' ')}",
        "return": _return_of(block, index),
    }


def _return_of(block: DetouredBlock, index: int) -> str:
    block.examine_returns(1 << index)
    why = block.reason(index)
    return (
        f"cannot be hooked: {why}" if why else "balanced: the stub calls the body; every register and flag is preserved"
    )
