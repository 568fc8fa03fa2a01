"""`fprobe explain`: can this function be probed, how, and if not why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fprobe.cli import candidates
from fprobe.cli.console import Console
from fprobe.cli.failure import input_errors
from fprobe.cli.options import Target, output_options, program_options

if TYPE_CHECKING:
    from sandbox.loading.module import Module
    from sandbox.symbols.table import Symbol

_EPILOG = """\b
Examples:
  fprobe explain vfs_read
  fprobe explain get_current
  fprobe explain main --program prog.c
"""

_MEANING = {
    "notrace": 'it carries the attribute "notrace" or was named by --notrace, and so was compiled without a stub',
    "no stub": "there is no 5-byte stub at its entry: it was compiled without one",
    "compiled without stubs": "the program was compiled with --flavour none",
    "returns twice": "a call of it may return more than once (setjmp, vfork), and its return can be hooked only once",
    "has an argument in r10 or r11": "the stub uses these registers, and its calling convention passes something there",
}


@click.command("explain", epilog=_EPILOG, short_help="Say whether a function can be probed.")
@click.argument("function", metavar="FUNC", shell_complete=candidates.functions)
@program_options
@output_options
def explain_command(function: str, target: Target, console: Console) -> None:
    """Say whether FUNC can be probed, where its stub is and how its return is hooked; and if it cannot, why."""
    from fprobe.cli import program
    from fprobe.cli.matching import Refusals

    module = program.load(target)
    with input_errors():
        symbol = module.symbol(function)
    refusals = Refusals(module, target.notrace)
    reason = refusals.reason(symbol)
    facts = _facts(module, symbol, refusals.sites.get(symbol.address))
    verdict = f"cannot be probed: {reason}" if reason else "can be probed, at entry and at return"
    console.line(f"{console.bold(str(symbol))} {console.bad(verdict) if reason else console.good(verdict)}")
    if reason in _MEANING:
        console.line(f"  why        {_MEANING[reason]}")
    for name, value in facts.items():
        console.line(f"  {name:<10} {value}")
    console.document(
        {"function": symbol.name, "module": symbol.module, "probeable": not reason, "reason": reason} | facts
    )


def _facts(module: Module, symbol: Symbol, site: int | None) -> dict[str, Any]:
    from fprobe.cli.program import signature_of

    signature = signature_of(module, symbol.name)
    facts = {
        "signature": str(signature) if signature else "not known",
        "address": f"{symbol.address:#x}, {symbol.size} bytes, in {symbol.section}",
    }
    return facts | (_site_facts(module, symbol, site) if site is not None else {})


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
