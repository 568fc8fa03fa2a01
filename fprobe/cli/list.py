"""`fprobe list`: the functions that can be probed."""

from __future__ import annotations

import click

from fprobe.cli import candidates
from fprobe.cli.console import Console
from fprobe.cli.options import Target, output_options, program_options

_EPILOG = """\b
Examples:
  fprobe list 'vfs_*'
  fprobe list --program prog.c -v
  fprobe list '*' --all
  fprobe list 'libz:inflate*'
"""


@click.command("list", epilog=_EPILOG, short_help="List functions.")
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1, shell_complete=candidates.functions)
@click.option("--all", "-a", "everything", is_flag=True, help="Also those that cannot be probed, with the reason.")
@program_options
@output_options
def list_command(patterns: tuple[str, ...], everything: bool, target: Target, console: Console) -> None:
    """List the functions that match PATTERN and can be probed; without PATTERN, all of them.

    -v adds address, size and signature.
    """
    from fprobe.cli import matching, program

    module = program.load(target)
    match = matching.match(module, patterns or ("*",), notrace=target.notrace)
    for site in match.sites:
        detail = f"{site.symbol.address:#x} {site.symbol.size:6}  " if console.verbosity > 0 else ""
        signature = program.signature_of(module, site.symbol) if console.verbosity > 0 else None
        console.line(f"{detail}{signature or site.symbol.name} {console.dim(f'[{site.symbol.module}]')}")
    if everything:
        for name, reason in match.skipped:
            owner = "" if name.endswith("]") else f" [{module.name}]"
            console.line(console.dim(f"{name}{owner} ({reason})"))
    console.document(
        {
            "program": module.name,
            "functions": [
                {
                    "name": site.symbol.name,
                    "address": site.symbol.address,
                    "size": site.symbol.size,
                    "site": site.address,
                }
                for site in match.sites
            ],
            "skipped": [skipped._asdict() for skipped in match.skipped],
        }
    )
